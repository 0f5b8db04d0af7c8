"""The optimisations of LMDBIO that spare seeks, over the model of a disk with one head.

As in `lmdbio`, readers take turns: each reads the next 256 files of 4 KB, 1 MiB, in the order of the store. Each has
four requests in flight, as the library has that loads ahead. Requests pass the server's own executor and limits; only
the disk is a model. This module starts threads.
"""

import secrets
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import trio

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.stopwatch import measure
from bench.papers.request_path import PathExecutor, RequestPath
from dieselfs.arrays import Ranges
from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import decode_preamble
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.wrapper import LimitedStore
from lab.seeking_store import SeekingStore

READERS, QUICK_READERS = (1, 2, 4, 8, 16), (1, 4)
IN_FLIGHT = 4
SEEK_S, BYTES_PER_S = 0.004, 200e6
FILE_BYTES, PART_FILES, PARTS_PER_CHUNK = 4096, 256, 4
CHUNKS, QUICK_CHUNKS = 32, 4
SOME_CHUNKS = 2
"""For steps that read file by file."""
_DATASET_ID = secrets.token_bytes(16)


@dataclass(frozen=True, slots=True)
class Step:
    """`large_reads_max`: instead of that of the server; `in_flight`: requests of a reader; `files`: of a request."""

    path: RequestPath
    large_reads_max: int | None = None
    in_flight: int = IN_FLIGHT
    files: int = PART_FILES


LMDB = "LMDB: pages of a map, 128 KiB ahead"
NOTHING = RequestPath(is_coalescing=False, is_staggering=False, is_bounded=False)
COALESCING = replace(NOTHING, is_coalescing=True)
BOUNDED = replace(COALESCING, is_bounded=True)
STAGGERING = replace(BOUNDED, is_staggering=True)
STEPS = {
    "none: file by file": Step(NOTHING),
    "+ coalescing": Step(COALESCING),
    "+ bounded concurrency: 16 reads": Step(BOUNDED),
    "+ staggering: 8 large reads, as a server has": Step(STAGGERING),
    "  2 large reads": Step(STAGGERING, 2),
    "  1 large read, as in the paper": Step(STAGGERING, 1),
    LMDB: Step(COALESCING, in_flight=1, files=32),
}


def lmdbio_disk(_: Path, scale: Scale) -> Generator[Trial]:
    store = MemoryStore()
    chunks = _chunks(store, QUICK_CHUNKS if scale.is_quick else CHUNKS)
    for readers in QUICK_READERS if scale.is_quick else READERS:
        sides = []
        for name, step in STEPS.items():
            chosen = chunks if step.path.is_coalescing else chunks[:SOME_CHUNKS]
            files = len(chosen) * PARTS_PER_CHUNK * PART_FILES
            sides.append(
                Side(name, partial(_run, store, chosen, step, readers), files, "files", files * FILE_BYTES)
            )
        title = f"Disk of {BYTES_PER_S / 1e6:.0f} MB a second, {1e3 * SEEK_S:g} ms a seek"
        yield Trial(
            f"{title}, {'1 reader' if readers == 1 else f'{readers} readers'}", sides, scale.rounds, LMDB
        )


def _chunks(store: ObjectStore, count: int) -> list[tuple[bytes, int]]:
    """New chunks: the ID of each, and the offset of its payload."""
    ids, found = ChunkIdSource(), []
    for _ in range(count):
        builder, chunk_id = ChunkBuilder(), ids.next()
        for number in range(PARTS_PER_CHUNK * PART_FILES):
            builder.add_file(b"%d" % number, secrets.token_bytes(FILE_BYTES), 0o644, 0)
        content = b"".join(builder.seal().encode(chunk_id, "bench", _DATASET_ID, 1))
        store.put(_DATASET_ID, chunk_id, [content])
        found.append((chunk_id, decode_preamble(content, "chunk").payload_start))
    return found


def _run(store: ObjectStore, chunks: list[tuple[bytes, int]], step: Step, readers: int) -> Run:
    timed, seeks = run(store, chunks, step, readers)
    return replace(
        timed, seen={"seeks a MB": seeks / (FILE_BYTES * PART_FILES * PARTS_PER_CHUNK * len(chunks) / 1e6)}
    )


def run(store: ObjectStore, chunks: list[tuple[bytes, int]], step: Step, readers: int) -> tuple[Run, int]:
    """Read all files of the chunks; also the seeks."""
    disk = SeekingStore(store, SEEK_S, BYTES_PER_S)
    for chunk_id, _ in chunks:
        disk.place(_DATASET_ID, chunk_id)
    bounds = step.path.bounds
    if step.large_reads_max is not None:
        bounds = replace(bounds, large_reads_max=step.large_reads_max)
    executor = PathExecutor(step.path, LimitedStore(disk, bounds))

    async def ask(chunk_id: bytes, ranges: Ranges, ahead: trio.Semaphore) -> None:
        await executor.ranges(_DATASET_ID, chunk_id, ranges)
        ahead.release()

    async def reader(number: int) -> None:
        ahead = trio.Semaphore(step.in_flight)
        async with trio.open_nursery() as nursery:
            for part in range(number, len(chunks) * PARTS_PER_CHUNK, readers):
                chunk, place = divmod(part, PARTS_PER_CHUNK)
                ranges = _ranges_of(place)
                for first in range(0, PART_FILES, step.files):
                    await ahead.acquire()
                    nursery.start_soon(ask, chunks[chunk][0], ranges[first : first + step.files], ahead)

    async def read_all() -> None:
        for chunk_id, _ in chunks:  # servers know the preambles of chunks that they have served
            await executor.preamble(_DATASET_ID, chunk_id)
        disk.seeks = 0

    async def read_parts() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(readers):
                nursery.start_soon(reader, number)

    trio.run(read_all)
    timed: Callable[[], None] = partial(trio.run, read_parts)
    return measure(timed), disk.seeks


def _ranges_of(place: int) -> Ranges:
    """The files of a part of a chunk: shape (n, 2): offset, length."""
    files = np.arange(place * PART_FILES, (place + 1) * PART_FILES, dtype=np.int64)
    return np.stack((files * FILE_BYTES, np.full(len(files), FILE_BYTES, np.int64)), axis=1)
