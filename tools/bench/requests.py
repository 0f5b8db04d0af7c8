"""What the request executor saves: reads issued to the store, and bytes read, for each file that clients ask for.

Eight clients go through the chunks in one order, as the nodes of a job do: each asks for its share of the files of each
chunk. Then all of them want every chunk whole, as jobs do that read one dataset. File by file is a read for each file;
by request, the ranges of each request are merged; the executor also merges and shares those of different clients.
"""

import random
import secrets
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import trio

from bench.figures import Run, Side, Trial
from bench.scale import Scale
from bench.stopwatch import measure
from bench.trees import LARGE_FILE_BYTES, can_drop_caches, drop_caches
from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import decode_preamble
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs_server.executor import STORE_READS_MAX, RequestExecutor
from dieselfs_server.ranges import Ranges, merge_ranges
from dieselfs_server.store.counting import CountingStore
from dieselfs_server.store.opening import open_store

CLIENTS = 8
CHUNKS_AHEAD = 4
"""Chunks that a client asks for at once."""

FILES_PER_CHUNK = 38
_SEED = 11


@dataclass(frozen=True, slots=True)
class Request:
    """Some files of a chunk; ranges are places in its payload."""

    chunk_id: bytes
    payload_start: int
    ranges: Ranges


Plan = list[list[Request]]
"""What each client asks for, in order."""

Reader = Callable[[Request], Awaitable[object]]


class _Chunks:
    """Chunks of files of about 110 kB, in a store in a folder."""

    def __init__(self, store: CountingStore, count: int) -> None:
        self.store = store
        self.dataset_id = secrets.token_bytes(16)
        self._starts: dict[bytes, int] = {}
        ids, source = ChunkIdSource(), random.Random(_SEED)
        for _ in range(count):
            builder = ChunkBuilder()
            for number in range(FILES_PER_CHUNK):
                builder.add_file(b"%d" % number, source.randbytes(LARGE_FILE_BYTES), 0o644, 0)
            chunk_id = ids.next()
            content = b"".join(builder.seal().encode(chunk_id, "bench", self.dataset_id, 1))
            self._starts[chunk_id] = decode_preamble(content, "chunk").payload_start
            store.put(self.dataset_id, chunk_id, [content])

    def shares(self) -> Plan:
        """Each file of a chunk belongs to one of the clients, by chance."""
        source = np.random.default_rng(_SEED)
        plan: Plan = [[] for _ in range(CLIENTS)]
        files = np.arange(FILES_PER_CHUNK, dtype=np.int64)
        for chunk_id, start in self._starts.items():
            owners = source.integers(CLIENTS, size=FILES_PER_CHUNK)
            for client in range(CLIENTS):
                plan[client].append(Request(chunk_id, start, _ranges_of(files[owners == client])))
        return plan

    def whole(self) -> Plan:
        """Every client wants all files of every chunk."""
        everything = _ranges_of(np.arange(FILES_PER_CHUNK, dtype=np.int64))
        return [[Request(chunk_id, start, everything) for chunk_id, start in self._starts.items()]] * CLIENTS


def _ranges_of(files: Ranges) -> Ranges:
    return np.stack((files * LARGE_FILE_BYTES, np.full(len(files), LARGE_FILE_BYTES, np.int64)), axis=1)


def requests(folder: Path, scale: Scale) -> Generator[Trial]:
    with closing(CountingStore(open_store(f"posix://{folder}/chunks"))) as store:
        chunks = _Chunks(store, scale.chunks)
        yield _trial("each its share of", chunks, chunks.shares(), scale.rounds)
        yield _trial("each all of", chunks, chunks.whole(), scale.rounds)


def _trial(title: str, chunks: _Chunks, plan: Plan, rounds: int) -> Trial:
    asked = sum(len(request.ranges) for client in plan for request in client)
    ways = {
        "file by file": partial(_directly, chunks, plan, False),
        "by request": partial(_directly, chunks, plan, True),
        "executor": partial(_by_executor, chunks, plan),
    }
    return Trial(
        f"{CLIENTS} clients, {title} {FILES_PER_CHUNK} files of {LARGE_FILE_BYTES:,} bytes in each chunk",
        [
            Side(_described(name, chunks.store, asked, run), run, asked, "files", asked * LARGE_FILE_BYTES)
            for name, run in ways.items()
        ],
        rounds,
    )


def _described(name: str, store: CountingStore, asked: int, run: Callable[[], Run]) -> str:
    """The name of a side, with what one run of it asks of the store."""
    before = store.statistics()
    run()
    after = store.statistics()
    reads, size_bytes = after.reads - before.reads, after.bytes_read - before.bytes_read
    return f"{name}: {reads / asked:.3f} reads, {size_bytes / asked / 1000:.0f} kB a file"


def _directly(chunks: _Chunks, plan: Plan, is_merged: bool) -> Run:
    limiter = trio.CapacityLimiter(STORE_READS_MAX)

    async def read(request: Request) -> None:
        spans = merge_ranges(request.ranges) if is_merged else request.ranges
        for offset, length in spans.tolist():
            place = request.payload_start + offset
            call = partial(chunks.store.get_range, chunks.dataset_id, request.chunk_id, place, length)
            await trio.to_thread.run_sync(call, limiter=limiter)

    return _run(plan, lambda: read)


def _by_executor(chunks: _Chunks, plan: Plan) -> Run:
    def reader() -> Reader:
        executor = RequestExecutor(chunks.store)
        return lambda request: executor.ranges(chunks.dataset_id, request.chunk_id, request.ranges)

    return _run(plan, reader)


def _run(plan: Plan, make_reader: Callable[[], Reader]) -> Run:
    """All clients at once; each has a few requests under way."""

    async def client(read: Reader, wanted: list[Request]) -> None:
        ahead = trio.Semaphore(CHUNKS_AHEAD)

        async def ask(request: Request) -> None:
            await read(request)
            ahead.release()

        async with trio.open_nursery() as nursery:
            for request in wanted:
                await ahead.acquire()
                nursery.start_soon(ask, request)

    async def serve() -> None:
        read = make_reader()
        async with trio.open_nursery() as nursery:
            for wanted in plan:
                nursery.start_soon(client, read, wanted)

    if can_drop_caches():
        drop_caches()
    return measure(lambda: trio.run(serve))
