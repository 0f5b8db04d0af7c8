"""Bounds of maintenance: one job of a dataset, two of a server; a job ends when it is cancelled."""

import threading

import pytest
import trio

from dieselfs.errors import Unavailable
from dieselfs_server.maintenance.jobs import JOBS_MAX, MaintenanceJobs, Proceed, always

WAIT_S = 60.0


class _Job:
    """A job that runs until it is let go."""

    def __init__(self) -> None:
        self.has_begun = trio.Event()
        self._may_end = threading.Event()
        self.was_cancelled = False

    def work(self, proceed: Proceed) -> str:
        trio.from_thread.run_sync(self.has_begun.set)
        try:
            while not self._may_end.wait(0.01):
                proceed()
        except BaseException:
            self.was_cancelled = True
            raise
        return "done"

    def let_go(self) -> None:
        self._may_end.set()


def test_more_jobs_than_allowed_are_refused_at_once() -> None:
    async def scenario() -> None:
        jobs, running = MaintenanceJobs(), [_Job() for _ in range(JOBS_MAX)]
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                for number, job in enumerate(running):
                    nursery.start_soon(jobs.run, bytes([number]), f"fsck of d{number}", job.work)
                for job in running:
                    await job.has_begun.wait()
                with pytest.raises(Unavailable, match="fsck of d0 of this dataset is running"):
                    await jobs.run(bytes([0]), "purge of d0", always_done)
                with pytest.raises(Unavailable, match="runs 2 jobs already"):
                    await jobs.run(b"other", "purge of other", always_done)
                for job in running:
                    job.let_go()
            assert await jobs.run(bytes([0]), "purge of d0", always_done) == "done"

    trio.run(scenario)


def test_a_job_whose_caller_has_gone_ends() -> None:
    async def scenario() -> None:
        jobs, job = MaintenanceJobs(), _Job()
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(jobs.run, b"d", "fsck of d", job.work)
                await job.has_begun.wait()
                nursery.cancel_scope.cancel()
            assert job.was_cancelled
            assert await jobs.run(b"d", "fsck of d", always_done) == "done"

    trio.run(scenario)


def always_done(proceed: Proceed) -> str:
    proceed()
    always()
    return "done"
