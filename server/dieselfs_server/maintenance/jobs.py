"""Bounds of maintenance (fsck, purge, rebuild): it reads whole datasets, and must leave threads for other calls. One
job of a dataset runs at a time, on all servers of a store.

Chunks are read ahead of their use, and given in order. A pass over all chunks reads a few kilobytes of each. Storage on
a network answers late, but many requests at once: with 30 ms for an answer, one read after the other takes an hour for
60,000 chunks. A local disk answers so soon that threads would only cost time. This module has threads.
"""

import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

import trio

from dieselfs.errors import DieselfsError, NotFound, StorageFull, Unavailable
from dieselfs.rpc.records import CopyProgress
from dieselfs.rpc.serving.keep_alive import accompanied
from dieselfs_server.leases.lease import RENEWAL_S, Excluded, end_lease, take_lease
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore

JOBS_MAX = 2
"""Of a server."""


class Proceed:
    """Called at every chunk, and asked by `check` more often; both raise when the job is cancelled. Counts the chunks:
    the thread of the job changes the numbers, others read them.
    """

    def __init__(self, check: Callable[[], object] = lambda: None) -> None:
        self.check = check
        self.done = self.total = 0

    def __call__(self) -> None:
        self.check()
        self.done += 1

    def expect(self, chunks: int) -> None:
        """Add to the number of chunks that the work will have done at its end."""
        self.total += chunks

    @property
    def progress(self) -> CopyProgress:
        return CopyProgress(self.done, 0, max(self.total, self.done), 0)


T = TypeVar("T")

log = logging.getLogger(__name__)


class MaintenanceJobs:
    """Runs jobs in threads of their own: one of each dataset, `jobs_max` in all. For one event loop."""

    def __init__(self, metadata: MetadataStore, now_ns: Callable[[], int], jobs_max: int = JOBS_MAX) -> None:
        self._metadata = metadata
        self._now_ns = now_ns
        self._running: dict[bytes, str] = {}  # by dataset ID; changed only between checkpoints
        self._jobs_max = jobs_max
        self._threads = trio.CapacityLimiter(jobs_max)

    async def run(
        self,
        dataset_id: bytes,
        what: str,
        work: Callable[[Proceed], T],
        begin: Callable[[Proceed], object] = lambda proceed: None,
    ) -> T:
        """What `work` returns. `begin` gets its `Proceed` first. If this is cancelled, it cancels `work`
        through it, and waits until `work` has ended.

        Raises Unavailable at once if a job of this dataset is running, or too many on this server; also if another
        server has taken the lease, after an outage of the metadata store.
        """
        if dataset_id in self._running:
            raise Unavailable(
                f"{self._running[dataset_id]} of this dataset is running on this server; try again when it has ended"
            )
        if len(self._running) >= self._jobs_max:
            running = ", ".join(self._running.values())
            raise Unavailable(f"this server runs {self._jobs_max} jobs already ({running}); try again later")
        self._running[dataset_id] = what
        holder = f"{what} ({os.uname().nodename}, {secrets.token_hex(4)})"
        try:
            # A rebuild of lost metadata has no place for a lease, and a purge on a full disk neither.
            with suppress(NotFound, StorageFull):
                await trio.to_thread.run_sync(self._take, dataset_id, holder)
            proceed = Proceed(trio.from_thread.check_cancelled)
            begin(proceed)
            return await self._run_leased(dataset_id, holder, partial(work, proceed))
        finally:
            del self._running[dataset_id]
            with trio.CancelScope(shield=True), suppress(DieselfsError):  # else it expires
                await trio.to_thread.run_sync(end_lease, self._metadata, dataset_id, holder)

    def _take(self, dataset_id: bytes, holder: str) -> None:
        take_lease(self._metadata, dataset_id, holder, self._now_ns())

    async def _run_leased(self, dataset_id: bytes, holder: str, work: Callable[[], T]) -> T:
        async def renew() -> None:
            while True:
                await trio.sleep(RENEWAL_S)
                try:
                    await trio.to_thread.run_sync(self._take, dataset_id, holder)
                except (NotFound, StorageFull):
                    pass
                except Excluded:  # this server could not renew it for too long
                    raise
                except DieselfsError as error:
                    log.warning("the lease of %s was not renewed: %s", holder, error)

        run = partial(trio.to_thread.run_sync, work, limiter=self._threads)
        return await accompanied(run, renew)


HEADERS_AT_ONCE = 16
"""Limit of headers that are read ahead; as many as `store/wrapper.py` lets through."""

PAYLOADS_AT_ONCE = 2
"""Limit of whole chunks, which may have 128 MiB each."""

SLOW_READ_S = 0.002
"""After a read that took this long, the following chunks are read ahead."""

Result = TypeVar("Result")


def read_in_order(
    read: Callable[[ObjectStore, bytes, bytes], Result],
    store: ObjectStore,
    dataset_id: bytes,
    chunk_ids: Iterable[bytes],
    at_once: int = HEADERS_AT_ONCE,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[tuple[bytes, Future[Result]]]:
    """`(chunk ID, result or error of read(store, dataset_id, chunk ID))` for each chunk, in the order of `chunk_ids`.

    The generator ends its reads when it is closed.
    """
    threads = ThreadPoolExecutor(at_once, thread_name_prefix="chunks")  # starts them when they are needed
    waiting: deque[tuple[bytes, Future[Result]]] = deque()
    is_slow = False
    try:
        for chunk_id in chunk_ids:
            if is_slow:
                waiting.append((chunk_id, threads.submit(read, store, dataset_id, chunk_id)))
                if len(waiting) == at_once:
                    yield waiting.popleft()
            else:
                started_s = clock()
                chunk = _read_now(read, store, dataset_id, chunk_id)
                is_slow = clock() - started_s >= SLOW_READ_S
                yield chunk_id, chunk
        while waiting:
            yield waiting.popleft()
    finally:
        threads.shutdown(cancel_futures=True)


def _read_now(
    read: Callable[[ObjectStore, bytes, bytes], Result],
    store: ObjectStore,
    dataset_id: bytes,
    chunk_id: bytes,
) -> Future[Result]:
    done: Future[Result] = Future()
    try:
        done.set_result(read(store, dataset_id, chunk_id))
    except Exception as error:  # goes to the reader of the result, as from an executor
        done.set_exception(error)
    return done
