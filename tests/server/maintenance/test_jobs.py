"""Bounds of maintenance: one job of a dataset, two of a server; a job ends when it is cancelled."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count

import pytest
import trio

from dieselfs.errors import NotFound, Unavailable
from dieselfs.rpc.records import CopyProgress
from dieselfs_server.leases.lease import LEASE_S, take_lease
from dieselfs_server.maintenance.jobs import JOBS_MAX, MaintenanceJobs, Proceed
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.ordered_reads import SLOW_READ_S, read_in_order
from tests.conformance.chunk_store_suite import DATASET_ID, chunk_at

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


def test_a_lease_of_a_clock_that_was_ahead_ends_when_nobody_renews_it(metadata: SqliteMetadata) -> None:
    now_s, ahead_ns = [0.0], NOW_NS + 25 * 3600 * 10**9

    async def scenario() -> None:
        jobs = MaintenanceJobs(metadata, lambda: NOW_NS, clock=lambda: now_s[0])

        async def refused() -> None:
            with pytest.raises(Unavailable, match=r"purge \(ahead\) is running on another server"):
                await jobs.run(DATASET, "fsck of data", always_done)

        for renewed in range(3):
            take_lease(metadata, DATASET, "purge (ahead)", ahead_ns + renewed)
            await refused()
            now_s[0] += LEASE_S - 1
            await refused()
            now_s[0] += 1
        assert await jobs.run(DATASET, "fsck of data", always_done) == "done"

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


TIMEOUT_S = 30.0
CHUNK_IDS = [chunk_at(number) for number in range(21)]


def ticking(step_s: float) -> Callable[[], float]:
    """A clock by which each read takes `step_s`."""
    ticks = count()
    return lambda: next(ticks) * step_s


SLOW, FAST = 2 * SLOW_READ_S, SLOW_READ_S / 2


def size(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> int:
    return store.size(dataset_id, chunk_id)


@pytest.mark.parametrize("step_s", [SLOW, FAST])
def test_results_and_errors_come_in_order(step_s: float) -> None:
    store = MemoryStore()
    for number, chunk_id in enumerate(CHUNK_IDS):
        if number % 3:
            store.put(DATASET_ID, chunk_id, [bytes(number)])
    found: list[tuple[bytes, int | None]] = []
    reads = read_in_order(size, store, DATASET_ID, CHUNK_IDS, at_once=4, clock=ticking(step_s))
    for chunk_id, chunk in reads:
        try:
            found.append((chunk_id, chunk.result()))
        except NotFound:
            found.append((chunk_id, None))
    assert found == [(chunk_id, n if n % 3 else None) for n, chunk_id in enumerate(CHUNK_IDS)]


def test_after_a_slow_read_as_many_as_allowed_are_read_at_once() -> None:
    together = threading.Barrier(4)  # breaks unless four reads meet

    def meet(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> int:
        return -1 if chunk_id == CHUNK_IDS[0] else together.wait(TIMEOUT_S)

    reads = read_in_order(meet, MemoryStore(), DATASET_ID, CHUNK_IDS, at_once=4, clock=ticking(SLOW))
    assert sorted(chunk.result() for _, chunk in reads) == sorted([-1, *([0, 1, 2, 3] * 5)])


def test_no_more_are_read_than_allowed_and_none_after_the_end() -> None:
    started: list[bytes] = []

    def note(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> None:
        started.append(chunk_id)

    reads = read_in_order(note, MemoryStore(), DATASET_ID, iter(CHUNK_IDS), at_once=3, clock=ticking(SLOW))
    with closing(reads):
        for _ in range(3):
            next(reads)[1].result()
    assert set(started) <= set(CHUNK_IDS[:5])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("chunks")]


def test_a_fast_store_is_read_without_threads() -> None:
    readers: set[int] = set()

    def note(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> None:
        readers.add(threading.get_ident())

    list(read_in_order(note, MemoryStore(), DATASET_ID, CHUNK_IDS, clock=ticking(FAST)))
    assert readers == {threading.get_ident()}


@pytest.mark.parametrize("step_s", [SLOW, FAST])
def test_an_error_of_the_listing_is_raised(step_s: float) -> None:
    def listing() -> Iterator[bytes]:
        yield CHUNK_IDS[0]
        raise NotFound("away")

    with pytest.raises(NotFound, match="away"):
        list(read_in_order(size, MemoryStore(), DATASET_ID, listing(), clock=ticking(step_s)))
