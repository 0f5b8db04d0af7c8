"""Bounds of maintenance (fsck, purge, rebuild): it reads whole datasets, and must leave threads for other calls."""

from collections.abc import Callable
from typing import TypeVar

import trio

from dieselfs.errors import Unavailable

JOBS_MAX = 2
"""Of a server."""

Proceed = Callable[[], None]
"""Called at every chunk; raises when the job is cancelled."""

T = TypeVar("T")


def always() -> None:
    """The `Proceed` of a job that is not cancelled."""


class MaintenanceJobs:
    """Runs jobs in threads of their own: one of each dataset, JOBS_MAX in all. For one event loop."""

    def __init__(self) -> None:
        self._running: dict[bytes, str] = {}  # by dataset ID; changed only between checkpoints
        self._threads = trio.CapacityLimiter(JOBS_MAX)

    async def run(self, dataset_id: bytes, what: str, work: Callable[[Proceed], T]) -> T:
        """What `work` returns. If cancelled, `work` is told by its `Proceed`, and this waits until it has ended.

        Raises Unavailable at once if a job of this dataset is running, or too many.
        """
        if dataset_id in self._running:
            raise Unavailable(
                f"{self._running[dataset_id]} of this dataset is running on this server; try again when it has ended"
            )
        if len(self._running) >= JOBS_MAX:
            running = ", ".join(self._running.values())
            raise Unavailable(f"this server runs {JOBS_MAX} jobs already ({running}); try again later")
        self._running[dataset_id] = what
        try:
            return await trio.to_thread.run_sync(
                work, trio.from_thread.check_cancelled, limiter=self._threads
            )
        finally:
            del self._running[dataset_id]
