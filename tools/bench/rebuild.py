"""Rebuild: metadata from the headers of chunks, without a server; reading and decoding them alone beside it."""

from collections.abc import Generator
from contextlib import closing
from itertools import count
from pathlib import Path

from bench.figures import Aim, Quantity, Run, Side, Trial
from bench.scale import Scale
from bench.stopwatch import measure
from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs_server.commit import read_header
from dieselfs_server.metadata.sqlite import SqliteMetadata
from dieselfs_server.rebuild import rebuild as rebuild_metadata
from dieselfs_server.store.posix import PosixStore

HEADERS_AIM = Aim(Quantity.RATE, 500_000)
ENTRIES_PER_FOLDER = 1280
ENTRIES_PER_CHUNK = 1024
_DATASET_ID = bytes(range(16))
_NOW_NS = 1_800_000_000 * 10**9


def rebuild(folder: Path, scale: Scale) -> Generator[Trial]:
    store = PosixStore(folder / "chunks")
    _write_chunks(store, scale.entries)
    numbers = count()

    def read_headers() -> None:
        for chunk_id in store.list_chunks(_DATASET_ID):
            read_header(store, _DATASET_ID, chunk_id)

    def build() -> Run:
        with closing(SqliteMetadata(folder / f"metadata-{next(numbers)}.db")) as metadata:
            return measure(lambda: rebuild_metadata(store, metadata, "data", _DATASET_ID, _NOW_NS))

    amounts = (scale.entries, "files")
    yield Trial(
        f"Rebuild of {scale.entries:,} files from {ENTRIES_PER_CHUNK} to a chunk",
        [
            Side("headers read and checked", lambda: measure(read_headers), *amounts, aim=HEADERS_AIM),
            Side("metadata made in SQLite", build, *amounts),
        ],
        min(scale.rounds, 3),
    )


def _write_chunks(store: PosixStore, entries: int) -> None:
    """Chunks of empty files: a rebuild reads no payloads."""
    ids, builder = ChunkIdSource(), ChunkBuilder()
    for entry in range(entries):
        builder.add_file(b"d%04d/f%07d.jpg" % (entry // ENTRIES_PER_FOLDER, entry), b"", 0o644, entry)
        if len(builder) == ENTRIES_PER_CHUNK or entry == entries - 1:
            chunk_id = ids.next()
            store.put(_DATASET_ID, chunk_id, builder.seal().encode(chunk_id, "data", _DATASET_ID, 1 + entry))
