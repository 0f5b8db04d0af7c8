"""Bounds of maintenance: one job of a dataset, two of a server; a job ends when it is cancelled."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import trio

from dieselfs.errors import Unavailable
from dieselfs.rpc.records import CopyProgress
from dieselfs_server.leases.maintenance_lease import LEASE_S, take_lease
from dieselfs_server.maintenance.jobs import JOBS_MAX, MaintenanceJobs, Proceed
from dieselfs_server.metadata.sqlite.store import SqliteMetadata

WAIT_S = 60.0
NOW_NS = 1_800_000_000 * 10**9
DATASET = bytes(range(16))


@pytest.fixture
def metadata() -> Iterator[SqliteMetadata]:
    with closing(SqliteMetadata(":memory:")) as store:
        store.create_dataset("data", DATASET)
        yield store


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


def test_more_jobs_than_allowed_are_refused_at_once(metadata: SqliteMetadata) -> None:
    async def scenario() -> None:
        jobs, running = MaintenanceJobs(metadata, lambda: NOW_NS), [_Job() for _ in range(JOBS_MAX)]
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


def test_a_job_whose_caller_has_gone_ends(metadata: SqliteMetadata) -> None:
    async def scenario() -> None:
        jobs, job = MaintenanceJobs(metadata, lambda: NOW_NS), _Job()
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(jobs.run, b"d", "fsck of d", job.work)
                await job.has_begun.wait()
                nursery.cancel_scope.cancel()
            assert job.was_cancelled
            assert await jobs.run(b"d", "fsck of d", always_done) == "done"

    trio.run(scenario)


def test_a_job_excludes_those_of_other_servers(metadata: SqliteMetadata) -> None:
    async def scenario() -> None:
        one, other = (MaintenanceJobs(metadata, lambda: NOW_NS) for _ in range(2))
        job = _Job()
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.run, DATASET, "fsck of data", job.work)
                await job.has_begun.wait()
                with pytest.raises(Unavailable, match=r"fsck of data \(.*\) is running on another server"):
                    await other.run(DATASET, "purge of data", always_done)
                job.let_go()
        assert await other.run(DATASET, "purge of data", always_done) == "done"
        assert metadata.notes_below(DATASET, "") == {}

    trio.run(scenario)


def test_a_job_that_has_lost_its_lease_ends(metadata: SqliteMetadata) -> None:
    """The metadata store was away for longer than the lease, and another server has begun a job."""

    async def scenario() -> None:
        now_ns = [NOW_NS]
        jobs, job = MaintenanceJobs(metadata, lambda: now_ns[0]), _Job()

        async def run() -> None:
            with pytest.raises(Unavailable, match=r"purge \(other\) is running on another server"):
                await jobs.run(DATASET, "fsck of data", job.work)

        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await job.has_begun.wait()
                later_ns = NOW_NS + (LEASE_S + 1) * 10**9
                take_lease(metadata, DATASET, "purge (other)", later_ns)
                now_ns[0] = later_ns
        assert job.was_cancelled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dieselfs_server.maintenance.jobs.RENEWAL_S", 0.01)
        trio.run(scenario)


def always_done(proceed: Proceed) -> str:
    proceed()
    return "done"


def test_a_job_counts_its_chunks(metadata: SqliteMetadata) -> None:
    begun: list[Proceed] = []

    def work(proceed: Proceed) -> CopyProgress:
        proceed.expect(3)
        proceed()
        return proceed.progress

    async def scenario() -> None:
        jobs = MaintenanceJobs(metadata, lambda: NOW_NS)
        assert await jobs.run(bytes(16), "fsck", work, begun.append) == CopyProgress(1, 0, 3, 0)

    trio.run(scenario)
    assert (begun[0].done, begun[0].total) == (1, 3)
    more = Proceed()
    more()
    assert more.progress == CopyProgress(1, 0, 1, 0), "more than was known before"
