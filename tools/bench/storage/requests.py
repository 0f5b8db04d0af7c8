"""The savings of the request executor: reads of the store, and bytes read, for each requested file.

Eight clients request chunks in one order, like the nodes of a job: first each its share of the files of each chunk,
then each all files. File by file issues a read for each file; by request merges the ranges of each request; the
executor also merges and shares reads of different clients.
"""

import random
import secrets
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import trio

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import LARGE_FILE_BYTES, drop_caches
from bench.harness.stopwatch import measure
from dieselfs.arrays import Ranges
from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import decode_preamble
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs_server.reading.executor import STORE_READS_MAX, RequestExecutor, merge_ranges
from dieselfs_server.store.opening import open_store
from lab.counting_store import CountingStore

CLIENTS = 8
CHUNKS_AHEAD = 4
"""Requests of a client in flight."""
FILES_PER_CHUNK = 38
_SEED = 11
_DATASET_ID = secrets.token_bytes(16)


class Request(NamedTuple):
    """Some files of a chunk; `ranges` in its payload."""

    chunk_id: bytes
    payload_start: int
    ranges: Ranges


Plan = list[list[Request]]
"""The requests of each client, in order."""
Read = Callable[[Request], Awaitable[object]]


def requests(folder: Path, scale: Scale) -> Generator[Trial]:
    source, chance = random.Random(_SEED), np.random.default_rng(_SEED)
    with closing(CountingStore(open_store(f"posix://{folder}/chunks", is_new=True))) as store:
        starts = dict(_put_chunk(store, source) for _ in range(scale.chunks))
        owners = {chunk_id: chance.integers(CLIENTS, size=FILES_PER_CHUNK) for chunk_id in starts}

        def wanted(client: int, is_share: bool) -> list[Request]:
            chosen = {each: of == client if is_share else of >= 0 for each, of in owners.items()}
            return [
                Request(each, starts[each], _ranges(np.flatnonzero(files))) for each, files in chosen.items()
            ]

        for title, is_share in (("each its share of", True), ("each all of", False)):
            plan = [wanted(client, is_share) for client in range(CLIENTS)]
            yield _trial(title, store, plan, scale.rounds)


def _put_chunk(store: CountingStore, source: random.Random) -> tuple[bytes, int]:
    """A new chunk of files of about 110 kB; its ID and the offset of its payload."""
    builder, chunk_id = ChunkBuilder(), _ids.next()
    for number in range(FILES_PER_CHUNK):
        builder.add_file(b"%d" % number, source.randbytes(LARGE_FILE_BYTES), 0o644, 0)
    content = b"".join(builder.seal().encode(chunk_id, "bench", _DATASET_ID, 1))
    store.put(_DATASET_ID, chunk_id, [content])
    return chunk_id, decode_preamble(content, "chunk").payload_start


_ids = ChunkIdSource()


def _ranges(files: Ranges) -> Ranges:
    return np.stack((files * LARGE_FILE_BYTES, np.full(len(files), LARGE_FILE_BYTES, np.int64)), axis=1)


def _trial(title: str, store: CountingStore, plan: Plan, rounds: int) -> Trial:
    asked = sum(len(request.ranges) for client in plan for request in client)
    sides = []
    for name, read in {
        "file by file": lambda: partial(_read, store, None, trio.CapacityLimiter(STORE_READS_MAX)),
        "by request": lambda: partial(_read, store, merge_ranges, trio.CapacityLimiter(STORE_READS_MAX)),
        "executor": lambda: partial(_execute, RequestExecutor(store)),
    }.items():
        run = partial(_run, plan, read)
        before, _, after = store.metrics.numbers(), run(), store.metrics.numbers()
        reads, size_bytes = (after[each] - before[each] for each in ("store.reads", "store.read_bytes"))
        name = f"{name}: {reads / asked:.3f} reads, {size_bytes / asked / 1000:.0f} kB a file"
        sides.append(Side(name, run, asked, "files", asked * LARGE_FILE_BYTES))
    what = f"{FILES_PER_CHUNK} files of {LARGE_FILE_BYTES:,} bytes in each chunk"
    return Trial(f"{CLIENTS} clients, {title} {what}", sides, rounds)


async def _read(
    store: CountingStore,
    merge: Callable[[Ranges], Ranges] | None,
    limiter: trio.CapacityLimiter,
    request: Request,
) -> None:
    for offset, length in (merge(request.ranges) if merge else request.ranges).tolist():
        place = request.payload_start + offset
        call = partial(store.get_range, _DATASET_ID, request.chunk_id, place, length)
        await trio.to_thread.run_sync(call, limiter=limiter)


async def _execute(executor: RequestExecutor, request: Request) -> None:
    await executor.ranges(_DATASET_ID, request.chunk_id, request.ranges)


def _run(plan: Plan, make_read: Callable[[], Read]) -> Run:

    async def client(read: Read, wanted: list[Request]) -> None:
        ahead = trio.Semaphore(CHUNKS_AHEAD)

        async def ask(request: Request) -> None:
            await read(request)
            ahead.release()

        async with trio.open_nursery() as nursery:
            for request in wanted:
                await ahead.acquire()
                nursery.start_soon(ask, request)

    async def serve() -> None:
        read = make_read()
        async with trio.open_nursery() as nursery:
            for wanted in plan:
                nursery.start_soon(client, read, wanted)

    drop_caches()
    return measure(lambda: trio.run(serve))
