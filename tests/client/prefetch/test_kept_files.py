"""Important files stay behind their readers: in the page cache, or in the memory of a job."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import trio

from dieselfs.cluster.peer_client import PeerClient
from dieselfs.importance.score_lines import LossBatch
from dieselfs.importance.scored_files import OrderKey, ScoredFiles
from dieselfs.samples.sample_store import name_for
from dieselfs.shuffle.listed import ListedPlan
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.policies import IMPORTANCE
from dieselfs.shuffle.spec import PlanSpec
from dieselfs_client.cluster.job_files import JobFiles
from dieselfs_client.cluster.job_nodes import JobNodes
from dieselfs_client.prefetch.prefetcher import FINISHED_S
from tests.support.dataset import PackedDataset
from tests.support.peer_nodes import CREDENTIAL
from tests.support.prefetch_rig import FILES, PAGE, Rig, read_to_the_end, run

pytestmark = pytest.mark.usefixtures("threads_take_no_time")


@pytest.fixture
def job(packed: PackedDataset, tmp_path: Path) -> Iterator[JobFiles]:
    """Of one node."""
    scored, name = ScoredFiles(packed.snapshot), name_for(str(tmp_path))
    peers = PeerClient(CREDENTIAL, packed.snapshot.digest)
    nodes = JobNodes("a", list, lambda: True, lambda: peers)
    with (
        closing(peers),
        closing(JobFiles(packed.snapshot, nodes, scored, name)) as one,
    ):
        yield one


@pytest.mark.parametrize("is_in_job", [False, True], ids=["", "in a job"])
def test_important_files_stay_behind_their_readers(
    is_in_job: bool, packed: PackedDataset, job: JobFiles
) -> None:
    """Of three epochs by importance in memory for a quarter of the dataset; pinned chunks give way to them. In a job,
    their pages go, and come from its memory.
    """
    snapshot, window, pinned = packed.snapshot, 1000, FILES // 4
    scored = job._scored
    files = np.sort(Plan(snapshot, PlanSpec()).nodes()).astype(np.uint32)
    hard = files[:: FILES * 5 // pinned]  # a fifth of what fits
    losses = LossBatch(
        [snapshot.path(node) for node in files.tolist()], np.isin(files, hard).astype(np.float64)
    )

    async def scenario(rig: Rig) -> None:
        kept = rig.prefetcher.kept
        kept.scored, kept.job = scored, job if is_in_job else None
        budget = rig.prefetcher.budget
        await rig.warm()
        assert budget.pinned_bytes == pinned * PAGE
        for epoch in range(3):
            order = scored.order(OrderKey(b"", 1, epoch), files).astype(np.int64)
            before, hits = len(rig.source.fetched_extents), scored.hits
            spec = PlanSpec(1, epoch, policy=IMPORTANCE)
            share = ListedPlan(snapshot, order, 200 * PAGE, 200 * PAGE, spec=spec).share()
            rig.prefetcher.declare(share)
            await rig.prefetcher.ahead_of(share)
            missed = await read_to_the_end(rig, share)
            scored.take(losses)
            await trio.sleep(FINISHED_S + 1)
            assert missed < FILES // 50 and scored.reads == FILES * (epoch + 1)
            assert budget.window_bytes == 0 == budget.pinned_bytes
            assert kept.used_bytes == pinned * PAGE
            left = len(rig.pages.files)
            assert left == 0 == budget.kept_bytes if is_in_job else pinned * 0.9 < left <= pinned
        fetched = len(rig.source.fetched_extents) - before
        hits = scored.hits - hits
        repeated = FILES - len(set(order.tolist()))
        assert fetched < FILES - hits < FILES // 2 < repeated
        pages = [*rig.pages.files, *rig.prefetcher.tripwires._bytes]
        held = [file for file in files.tolist() if job.read(file)] if is_in_job else pages
        assert np.isin(hard, held).mean() > 0.9 and scored.from_peers == 0

    rig = run(packed, scenario, window=window * PAGE, pinned=pinned * PAGE)
    assert rig.pages.most <= window + pinned


def test_the_next_daemon_keeps_the_same_files(packed: PackedDataset) -> None:
    """Their pages are there, but for those of tripwires, whose bytes this daemon has not."""

    async def scenario(rig: Rig) -> None:
        left = np.sort(Plan(packed.snapshot, PlanSpec()).nodes(0, FILES // 8)).astype(np.int64)
        scored = rig.prefetcher.kept.scored = ScoredFiles(packed.snapshot)
        scored.left = left.tolist()
        assert not len(rig.prefetcher.kept.begin())
        is_wire = rig.prefetcher.tripwires.usual(left)
        stored = rig.prefetcher.budget.is_stored(rig.prefetcher.table.of_files(left))
        assert is_wire.any() and (stored == ~is_wire).all()
        assert rig.prefetcher.budget.kept_bytes == len(left) * PAGE

    run(packed, scenario, window=1000 * PAGE, pinned=FILES // 4 * PAGE)


def test_reads_of_pinned_chunks_are_neither_hits_nor_misses(packed: PackedDataset, job: JobFiles) -> None:
    """The whole dataset fits, so the job keeps no files."""
    files = np.sort(Plan(packed.snapshot, PlanSpec()).nodes()).astype(np.uint32)

    async def scenario(rig: Rig) -> None:
        kept = rig.prefetcher.kept
        kept.scored, kept.job = job._scored, job
        order = job._scored.order(OrderKey(b"", 1, 0), files).astype(np.int64)
        plan = ListedPlan(packed.snapshot, order, 200 * PAGE, 200 * PAGE, spec=PlanSpec(1, policy=IMPORTANCE))
        rig.prefetcher.declare(plan.share())
        await rig.prefetcher.ahead_of(plan.share())
        await read_to_the_end(rig, plan.share())
        await trio.sleep(FINISHED_S + 1)
        assert rig.prefetcher.budget.pinned_bytes == FILES * PAGE
        assert (job._scored.reads, job._scored.hits) == (0, 0)

    run(packed, scenario, window=1000 * PAGE, pinned=FILES * PAGE)
