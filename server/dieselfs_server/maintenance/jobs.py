"""Bounds of maintenance (fsck, purge, rebuild): it reads whole datasets, and must leave threads for other calls. One
job of a dataset runs at a time, on all servers of a store. This module has threads.
"""

import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import trio

from dieselfs.errors import DieselfsError, NotFound, StorageFull, Unavailable
from dieselfs.rpc.records import CopyProgress
from dieselfs.rpc.serving.keep_alive import accompanied
from dieselfs_server.leases.lease import NOTE, RENEWAL_S, Excluded, SeenLeases, end_lease, take_lease
from dieselfs_server.metadata.interface import MetadataStore

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

    def __init__(
        self,
        metadata: MetadataStore,
        now_ns: Callable[[], int],
        jobs_max: int = JOBS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metadata = metadata
        self._now_ns = now_ns
        self._seen = SeenLeases(clock)
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
        take_lease(self._metadata, dataset_id, holder, self._now_ns(), NOTE, self._seen)

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
