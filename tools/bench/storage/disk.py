"""Chunks and files read by a node: from a server over TCP with TLS, and from the disk tier of the node.

Everything is verified, and nothing is in the page cache before. Server and node share this machine and its disk. The
server's store is a folder of the same file system.
"""

import os
import random
import shutil
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, RunFailed, Scale, Side, Trial
from bench.harness.forms import LARGE_FILE_BYTES, drop_caches, make_tree
from bench.harness.stopwatch import measure
from dieselfs.dataset import Dataset
from dieselfs.limits import CHUNK_TARGET_BYTES, MIB
from dieselfs.settings import Settings
from dieselfs.sources.interface import fetch_extent
from dieselfs.sources.plain import node_source
from dieselfs.sources.server import ServerSource
from dieselfs.transfer.upload import TreeUpload, walk_source
from lab.server import RunningServer, running_server

STREAMS = 4
FILES = 1_000
DATASET = "bench"
SERVER, TIER, FIRST = "server, TCP", "disk tier", "server, TCP, and stored on the disk"


def disk(folder: Path, scale: Scale) -> Generator[Trial]:
    files = scale.chunks * CHUNK_TARGET_BYTES // LARGE_FILE_BYTES
    tree = make_tree(folder / "source", files, LARGE_FILE_BYTES)
    with running_server(folder / "server") as server:
        with Dataset(server.settings(), DATASET, must_exist=False) as data:
            upload = TreeUpload(data.client, data.create(), None)
            if upload.run(lambda failed: walk_source(os.fsencode(tree.folder), b"", failed)).failures:
                raise RunFailed("not all files were stored")
        with Dataset(_reader(server), DATASET) as data:
            yield from _trials(data, server, folder / "tier", scale)


def _reader(server: RunningServer) -> Settings:
    return server.settings(server.user("reader", bench="read"))


def _trials(data: Dataset, server: RunningServer, tier: Path, scale: Scale) -> Generator[Trial]:
    processes = {"server": [server.process.pid]}
    chunks = data.snapshot.chunk_count
    extents = [extent for path in data.files() for extent in data.snapshot.extents(_node(data, path))]
    some = random.Random(1).sample(extents, min(FILES, len(extents)))

    def in_streams(fetch: Callable[[int], object], count: int) -> Callable[[], object]:
        def work() -> None:
            with ThreadPoolExecutor(STREAMS) as threads:
                for _ in threads.map(fetch, range(count)):
                    pass

        return work

    def read_chunks(source: ServerSource) -> Run:
        drop_caches()
        return measure(in_streams(source.fetch_chunk, chunks), processes)

    def read_files(source: ServerSource) -> Run:
        drop_caches()
        return measure(in_streams(lambda number: fetch_extent(source, some[number]), len(some)), processes)

    def read_first() -> Run:
        shutil.rmtree(tier, ignore_errors=True)
        with _source(data, tier) as source:
            return read_chunks(source)

    with _source(data, None) as server_source:
        size_bytes = chunks * CHUNK_TARGET_BYTES
        runs: dict[str, Callable[[], Run]] = {SERVER: partial(read_chunks, server_source), FIRST: read_first}
        yield Trial(
            f"First epoch: {chunks} chunks of 4 MiB, {STREAMS} at once",
            [Side(name, run, size_bytes / MIB, "MiB") for name, run in runs.items()],
            scale.rounds,
            SERVER,
        )
        with _source(data, tier) as filled:
            for chunk in range(chunks):  # what a slow disk has skipped
                filled.fetch_chunk(chunk)
        with _source(data, tier) as source:
            runs = {SERVER: partial(read_chunks, server_source), TIER: partial(read_chunks, source)}
            yield Trial(
                f"Second job: {chunks} chunks of 4 MiB, {STREAMS} at once",
                [Side(name, run, size_bytes / MIB, "MiB") for name, run in runs.items()],
                scale.rounds,
                SERVER,
            )
            runs = {SERVER: partial(read_files, server_source), TIER: partial(read_files, source)}
            yield Trial(
                f"Second job: {len(some):,} files of {LARGE_FILE_BYTES:,} bytes at random, {STREAMS} at once",
                [Side(name, run, len(some), "files") for name, run in runs.items()],
                scale.rounds,
                SERVER,
            )
            received = source.metrics.as_dict()["servers"]["received_bytes"]
            if received:
                raise RunFailed(f"{received} bytes came from the server, 0 expected")


def _node(data: Dataset, path: str) -> int:
    return data.snapshot.require(os.fsencode(path))


@contextmanager
def _source(data: Dataset, tier: Path | None) -> Iterator[ServerSource]:
    with closing(node_source(data.client, data.snapshot, str(tier) if tier else None)) as source:
        yield source
