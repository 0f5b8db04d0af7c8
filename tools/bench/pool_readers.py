"""What a training process on a host of the pool benchmark does, over the library or over a rival's client.

Each is a reader, to be called in a process of its own: it steps onto its host, connects, and returns the work that is
measured. This module steps into network namespaces, and reads files.
"""

import logging
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.figures import RunFailed
from bench.pool_hosts import RunningJob
from bench.pool_rivals import Cache, Fleet, MemcachedCache
from bench.readers import Reader, Work
from dieselfs.dataset import Dataset
from lab.network import Host

SEED, GROUP_CHUNKS = 1, 4
FILL_FILES = 256
"""Files that are read and set at one time where a cache is filled."""

OpenCache = Callable[[Host], Cache]


def on_host(host: Host, reader: Reader) -> Reader:
    """The same, on a host, with the environment of its programs."""
    return partial(_step_onto, host, reader)


def _step_onto(host: Host, reader: Reader) -> Work:
    os.environ.update(host.environment())
    logging.disable(logging.WARNING)  # that a node which was killed is avoided
    stack = ExitStack()  # the process ends there
    stack.enter_context(host.inside())
    work = reader()

    def work_there() -> int:
        with stack:
            return work()

    return work_there


# -- the library -----------------------------------------------------------------------------------------


def library_gets(job: RunningJob, memory_bytes: int, paths: Sequence[str]) -> Work:
    """One file a call. Of the job's memory, nothing is in that of the process yet."""
    return _with_memory_at_hand(job, memory_bytes, partial(_get_each, _opened(job, memory_bytes).get, paths))


def library_batches(job: RunningJob, memory_bytes: int, batch: int, paths: Sequence[str]) -> Work:
    dataset = _opened(job, memory_bytes)
    return _with_memory_at_hand(job, memory_bytes, partial(_get_batches, dataset, batch, paths))


def library_gets_again(job: RunningJob, paths: Sequence[str]) -> Work:
    """As `library_gets`, of files that were read before: the library has their chunks, unless that is too much."""
    dataset = _opened(job)
    _get_batches(dataset, FILL_FILES, paths)
    return partial(_get_each, dataset.get, paths)


def library_batches_again(job: RunningJob, batch: int, paths: Sequence[str]) -> Work:
    dataset = _opened(job)
    _get_batches(dataset, FILL_FILES, paths)
    return partial(_get_batches, dataset, batch, paths)


def library_plan(job: RunningJob, batch: int, rank: int, world: int) -> Work:
    """The share of one rank of an epoch in the chunk-wise order, which is worked out meanwhile."""
    dataset = _opened(job)

    def read() -> int:
        return _get_batches(dataset, batch, dataset.plan(SEED, 0, GROUP_CHUNKS).share(rank, world).paths)

    return read


def _opened(job: RunningJob, memory_bytes: int | None = None) -> Dataset:
    dataset = job.connect() if memory_bytes is None else job.connect(memory_bytes)
    dataset.get(job.stage.tree.paths()[0])  # connects
    return dataset


def _with_memory_at_hand(job: RunningJob, memory_bytes: int, work: Work) -> Work:
    """The same work, for which the machine has as much memory ready as the library may take. A virtual machine gives
    what is free back to its host within half a second, and then each page costs twenty times what it costs elsewhere;
    the memory of rivals was taken when they were filled.
    """
    length_bytes = min(memory_bytes, job.stage.tree.size_bytes)
    spare = mmap.mmap(-1, length_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    spare.madvise(mmap.MADV_HUGEPAGE)
    spare[:: mmap.PAGESIZE] = bytes(-(-length_bytes // mmap.PAGESIZE))

    def work_there() -> int:
        spare.close()
        return work()

    return work_there


def _get_batches(dataset: Dataset, batch: int, paths: Sequence[str]) -> int:
    return sum(len(dataset.get_many(paths[first : first + batch])) for first in range(0, len(paths), batch))


def _get_each(get: Callable[[str], bytes | None], paths: Sequence[str]) -> int:
    for path in paths:
        if get(path) is None:
            raise RunFailed(f"there is no {path}")
    return len(paths)


# -- rivals ----------------------------------------------------------------------------------------------


def cache_gets(fleet: Fleet, host: Host, paths: Sequence[str]) -> Work:
    """One file a call."""
    cache = fleet.open(host)
    cache.get_many(paths[:FILL_FILES])  # connects
    return partial(_get_each, cache.get, paths)


def cache_batches(fleet: Fleet, host: Host, batch: int, paths: Sequence[str]) -> Work:
    cache = fleet.open(host)
    cache.get_many(paths[:FILL_FILES])
    return partial(_get_cached, cache, batch, paths)


def _get_cached(cache: Cache, batch: int, paths: Sequence[str]) -> int:
    return sum(len(cache.get_many(paths[first : first + batch])) for first in range(0, len(paths), batch))


def cache_filler(fleet: Fleet, host: Host, folder: Path, paths: Sequence[str]) -> Work:
    """Reads files from the local file system, and sets them."""
    return partial(_fill, fleet.open(host), folder, paths)


def _fill(cache: Cache, folder: Path, paths: Sequence[str]) -> int:
    for first in range(0, len(paths), FILL_FILES):
        cache.set_many(_contents(folder, paths[first : first + FILL_FILES]))
    return len(paths)


def cache_refiller(fleet: Fleet, host: Host, folder: Path, paths: Sequence[str]) -> Work:
    """Reads all of these over the cache; what it does not have comes from the local file system, and is set again."""
    cache = fleet.open(host)
    assert isinstance(cache, MemcachedCache)
    return partial(_refill, cache, folder, paths)


def _refill(cache: MemcachedCache, folder: Path, paths: Sequence[str]) -> int:
    for first in range(0, len(paths), FILL_FILES):
        batch = paths[first : first + FILL_FILES]
        found = cache.get_what_lives(batch)
        missing = [path for path in batch if path not in found]
        if missing:
            cache.set_where_one_lives(_contents(folder, missing))
    return len(paths)


def _contents(folder: Path, paths: Sequence[str]) -> dict[str, bytes]:
    return {path: _content(f"{folder}/{path}") for path in paths}


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 20)
    finally:
        os.close(descriptor)


# -- LMDB ------------------------------------------------------------------------------------------------


def lmdb_gets(file: Path, paths: Sequence[str]) -> Work:
    """Out of the page cache: LMDB maps its file."""
    import lmdb

    get = lmdb.open(str(file), subdir=False, readonly=True, lock=False).begin().get
    keys = [os.fsencode(path) for path in paths]

    def read() -> int:
        return sum(get(key) is not None for key in keys)

    return read
