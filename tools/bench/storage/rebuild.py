"""Rebuild of metadata from chunk headers without a server, compared with reading and decoding the headers alone."""

from collections.abc import Generator
from contextlib import closing
from itertools import count
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.stopwatch import measure
from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs_server.datasets.commit import read_header
from dieselfs_server.maintenance.rebuild import rebuild as rebuild_metadata
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.posix import PosixStore

ENTRIES_PER_FOLDER, ENTRIES_PER_CHUNK = 1280, 1024
_DATASET_ID = bytes(range(16))
_NOW_NS = 1_800_000_000 * 10**9


def rebuild(folder: Path, scale: Scale) -> Generator[Trial]:
    store, files, numbers = PosixStore(folder / "chunks"), scale.entries, count()
    _write_chunks(store, files)

    def read_headers() -> None:
        for chunk_id in store.list_chunks(_DATASET_ID):
            read_header(store, _DATASET_ID, chunk_id)

    def build() -> Run:
        with closing(SqliteMetadata(folder / f"metadata-{next(numbers)}.db")) as metadata:
            return measure(lambda: rebuild_metadata(store, metadata, "data", _DATASET_ID, _NOW_NS))

    headers = Side("headers read and checked", lambda: measure(read_headers), files, "files")
    title = f"Rebuild of {files:,} files from {ENTRIES_PER_CHUNK} to a chunk"
    yield Trial(
        title, [headers, Side("metadata made in SQLite", build, files, "files")], min(scale.rounds, 3)
    )


def _write_chunks(store: PosixStore, entries: int) -> None:
    """Chunks of empty files: a rebuild reads no payloads."""
    ids, builder = ChunkIdSource(), ChunkBuilder()
    for entry in range(entries):
        builder.add_file(b"d%04d/f%07d.jpg" % (entry // ENTRIES_PER_FOLDER, entry), b"", 0o644, entry)
        if len(builder) == ENTRIES_PER_CHUNK or entry == entries - 1:
            chunk_id = ids.next()
            store.put(_DATASET_ID, chunk_id, builder.seal().encode(chunk_id, "data", _DATASET_ID, 1 + entry))
