"""The stock over a page cache that is a dictionary; over the kernel's it is tried in tests/client/mount."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
import trio
import trio.testing

from dieselfs.cluster.warmth import Warmth
from dieselfs.prefetch.extent_table import Extents
from dieselfs.shuffle.listed import ListedPlan
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.spec import PlanSpec
from dieselfs_client.memory.budget import Allotment
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.prefetch.budget import PUSHED_AGAIN_S
from dieselfs_client.prefetch.prefetcher import FINISHED_S, PLAN_QUIET_S, PLANS_MAX, Prefetcher
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.prefetch_rig import (
    CHUNK_BYTES,
    CHUNKS,
    FILES,
    FILES_PER_CHUNK,
    GROUP_FILES,
    PAGE,
    DictPages,
    Rig,
    read_to_the_end,
    run,
)

pytestmark = pytest.mark.usefixtures("threads_take_no_time")


def test_a_plan_is_stored_before_it_is_read(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        share = rig.plan().share()
        rig.prefetcher.declare(share)
        assert rig.prefetcher.is_starting, "the driver lets other tasks run between requests for the list"
        await rig.prefetcher.ahead_of(share)
        assert not rig.prefetcher.is_starting
        assert all(map(rig.is_at_hand, share.nodes(0, GROUP_FILES).tolist()))
        assert await read_to_the_end(rig, share) == 0

    rig = run(packed, scenario)
    assert sorted(rig.source.fetched_chunks) == list(range(CHUNKS)), "each chunk once"
    assert not rig.source.fetched_extents


def test_pushes_are_counted_with_their_time(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.warm()

    rig = run(packed, scenario)
    found, pushed = rig.prefetcher.metrics.as_dict()["prefetch"], len(rig.pages.files)
    assert (found["pushed_files"], found["pushed_bytes"]) == (pushed, pushed * PAGE) and pushed
    assert found["push_s"]["count"] == CHUNKS and found["push_s"]["sum"] >= 0


def test_a_tripwire_that_was_read_without_a_plan_works(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        share = rig.plan().share()
        nodes = share.nodes().astype(np.int64)
        wires = set(nodes[rig.prefetcher.tripwires.usual(nodes)].tolist())
        assert wires
        rig.pages.files |= wires
        rig.prefetcher.declare(share)
        await rig.prefetcher.ahead_of(share)
        first = set(share.nodes(0, GROUP_FILES).tolist())
        assert not rig.pages.files & wires & first
        assert await read_to_the_end(rig, share) == 0

    run(packed, scenario)


def test_tripwires_stay_in_the_page_cache_until_there_is_a_plan(packed: PackedDataset) -> None:
    """As a reader may be faster than the push: what it has read is not requested from the daemon again."""

    async def scenario(rig: Rig) -> None:
        nodes = rig.plan().share().nodes().astype(np.int64)
        wires = set(nodes[rig.prefetcher.tripwires.usual(nodes)].tolist())
        rig.pages.files |= wires
        for chunk in range(CHUNKS):
            await rig.prefetcher.bring(chunk, trio.CapacityLimiter(1))
        assert wires <= rig.pages.files

        share = rig.plan().share()
        rig.prefetcher.declare(share)
        await rig.prefetcher.ahead_of(share)
        assert not wires & rig.pages.files
        assert await read_to_the_end(rig, share) == 0

    rig = run(packed, scenario)
    assert sorted(rig.source.fetched_chunks) == list(range(CHUNKS)), "each chunk once"


def test_readers_that_begin_together_all_wait_for_their_files(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        shares = [rig.plan().share(rank=rank, world=4) for rank in range(4)]
        told: list[Share] = []

        async def begin(share: Share) -> None:
            rig.prefetcher.declare(share)
            await rig.prefetcher.ahead_of(share)
            told.append(share)

        async with trio.open_nursery() as nursery:
            for share in shares:
                nursery.start_soon(begin, share)
            await rig.resolve()
            assert len(told) == len(shares)

    run(packed, scenario)


def test_what_is_kept_is_not_fetched_again_in_later_epochs(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        for epoch in range(3):
            share = rig.plan(epoch).share()
            rig.prefetcher.declare(share)
            await rig.prefetcher.ahead_of(share)
            assert await read_to_the_end(rig, share) == 0

    rig = run(packed, scenario)
    assert sorted(rig.source.fetched_chunks) == list(range(CHUNKS))
    assert rig.prefetcher.budget.pinned_bytes == FILES * PAGE
    assert rig.prefetcher.metrics.numbers()["prefetch.planned_hit_bytes"] == 2 * FILES * PAGE


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_what_does_not_fit_streams_through_the_window(packed: PackedDataset, groups: int) -> None:
    async def scenario(rig: Rig) -> None:
        for epoch in range(2):
            share = rig.plan(epoch).share()
            rig.prefetcher.declare(share)
            await rig.prefetcher.ahead_of(share)
            assert await read_to_the_end(rig, share) == 0
            await trio.sleep(FINISHED_S + 1)
            assert rig.prefetcher.budget.window_bytes == 0
            assert not rig.pages.files and not rig.prefetcher.tripwires.held_bytes

    rig = run(packed, scenario, window=groups * GROUP_FILES * PAGE, pinned=0)
    assert rig.pages.most <= groups * GROUP_FILES
    assert sorted(rig.source.fetched_chunks) == sorted([*range(CHUNKS)] * 2), "each chunk once in an epoch"


def test_a_window_smaller_than_two_groups_still_serves(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        share = rig.plan().share()
        rig.prefetcher.declare(share)
        await rig.prefetcher.ahead_of(share)
        for position in range(0, FILES, 20):
            assert await rig.read(share, position, position + 20) == 0

    rig = run(packed, scenario, window=GROUP_FILES * PAGE, pinned=0)
    assert rig.pages.most <= GROUP_FILES
    assert len(rig.source.fetched_extents) > FILES // 2, "extents of chunks, where whole ones do not fit"


def test_part_is_kept_and_the_rest_streams(packed: PackedDataset) -> None:
    pinned = FILES * PAGE // 4

    async def scenario(rig: Rig) -> None:
        for epoch in range(3):
            share = rig.plan(epoch).share()
            rig.prefetcher.declare(share)
            await rig.prefetcher.ahead_of(share)
            assert await read_to_the_end(rig, share) == 0
            await trio.sleep(FINISHED_S + 1)

    rig = run(packed, scenario, window=2 * GROUP_FILES * PAGE, pinned=pinned)
    assert rig.prefetcher.budget.pinned_bytes == pinned
    assert rig.pages.most <= FILES // 4 + 2 * GROUP_FILES
    assert len(rig.source.fetched_chunks) == CHUNKS + 2 * CHUNKS * 3 // 4, "the hit rate is the best possible"
    assert rig.prefetcher.metrics.numbers()["prefetch.planned_hit_bytes"] == 2 * pinned


def test_two_plans_share_the_window(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        shares = [rig.plan(seed=seed).share() for seed in (1, 2)]
        for share in shares:
            rig.prefetcher.declare(share)
        for share in shares:
            await rig.prefetcher.ahead_of(share)
        missed = 0
        for position in range(0, FILES, 50):
            for share in shares:
                missed += await rig.read(share, position, position + 50)
        assert missed < FILES / 50

    rig = run(packed, scenario, window=4 * GROUP_FILES * PAGE, pinned=0)
    assert rig.pages.most <= 4 * GROUP_FILES


def test_without_a_plan_what_a_reader_waits_for_is_kept_and_pushed(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        assert rig.prefetcher.keeps(7)
        rig.prefetcher.note_fetched(7, await rig.chunk_cache.fetch(7))
        assert rig.prefetcher.keeps(8), "the next one, too"
        assert not rig.prefetcher.keeps(7), "it was just pushed"
        await rig.resolve()
        assert all(map(rig.is_at_hand, rig.prefetcher.table.of_chunk(7).nodes.tolist()))
        rig.pages.files.clear()  # the kernel takes its pages back
        await trio.sleep(PUSHED_AGAIN_S)
        assert rig.prefetcher.keeps(7)
        rig.prefetcher.note_fetched(7, await rig.chunk_cache.fetch(7))
        await rig.resolve()
        assert len(rig.pages.files) >= FILES_PER_CHUNK - 1
        assert rig.prefetcher.metrics.numbers()["prefetch.pushed_again_chunks"] == 1

    run(packed, scenario)


def test_nothing_more_is_kept_than_fits(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        assert [chunk for chunk in range(CHUNKS) if rig.prefetcher.keeps(chunk)] == [0, 1, 2]

    run(packed, scenario, pinned=3 * CHUNK_BYTES + 1)


def test_warming_keeps_as_much_as_fits(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        assert rig.prefetcher.budget.warmth(()) == Warmth(0, CHUNKS * CHUNK_BYTES // 2)
        await rig.warm()
        assert rig.prefetcher.budget.warmth(()).share == 1.0

    rig = run(packed, scenario, pinned=CHUNKS * CHUNK_BYTES // 2)
    assert rig.source.fetched_chunks == list(range(CHUNKS // 2))
    assert len(rig.pages.files) > FILES // 2 - FILES // 20


def test_a_damaged_chunk_is_left_to_its_readers(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        rig.source.payloads[3][100] ^= 1
        share = rig.plan().share()
        rig.prefetcher.declare(share)
        await rig.prefetcher.ahead_of(share)
        missed = 0
        for position in range(0, FILES, 100):
            missed += await rig.read(share, position, position + 100)
        assert 0 < missed <= FILES_PER_CHUNK
        assert rig.prefetcher.metrics.numbers()["prefetch.failed_chunks"] == 1

    run(packed, scenario)


def test_a_reader_who_goes_away_gives_its_memory_to_the_next(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        rig.prefetcher.declare(rig.plan(seed=1).share())
        await rig.resolve()
        assert rig.prefetcher.budget.window_bytes
        await trio.sleep(PLAN_QUIET_S + 1)
        share = rig.plan(seed=2).share()
        rig.prefetcher.declare(share)
        await rig.prefetcher.ahead_of(share)
        for position in range(0, FILES // 2, 100):
            assert await rig.read(share, position, position + 100) == 0
        assert len(rig.prefetcher.windows) == 1

    run(packed, scenario, window=2 * GROUP_FILES * PAGE, pinned=0)


def test_epochs_that_were_read_do_not_pile_up_nor_take_memory_from_each_other_for_ever(
    packed: PackedDataset,
) -> None:
    async def scenario(rig: Rig) -> None:
        for epoch in range(6):
            share = rig.plan(epoch).share()
            rig.prefetcher.declare(share)
            await rig.prefetcher.ahead_of(share)
            for position in range(0, FILES, 200):
                assert await rig.read(share, position, position + 200) == 0
            assert len(rig.prefetcher.windows) <= 2

    run(packed, scenario)


def test_a_plan_that_was_left_does_not_take_the_progress_of_another(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        left = rig.plan(seed=1).share()
        rig.prefetcher.declare(left)
        await rig.read(left, 0, FILES // 10)
        await trio.sleep(60)
        share = rig.plan(seed=2).share()
        rig.prefetcher.declare(share)
        await rig.prefetcher.ahead_of(share)
        for position in range(0, FILES, 100):
            await rig.read(share, position, position + 100)
        positions = {window.plan.spec.seed: window.position for window in rig.prefetcher.windows}
        assert positions[2] > FILES * 9 // 10
        assert positions[1] <= FILES // 10

    run(packed, scenario)


@dataclass
class ExtentPages:
    """Extents by their numbers, of whatever files."""

    extents: dict[int, set[int]] = field(default_factory=dict)

    def store(self, extents: Extents, payload: memoryview, starts: npt.NDArray[np.int64]) -> int:
        for node, number in zip(extents.nodes.tolist(), extents.numbers.tolist(), strict=True):
            self.extents.setdefault(node, set()).add(number)
        return int(extents.lengths.sum())

    def drop(self, nodes: npt.NDArray[np.integer]) -> None:
        for node in nodes.tolist():
            self.extents.pop(node, None)

    uncover = drop

    def drop_parts(self, extents: Extents) -> None:
        for node, number in zip(extents.nodes.tolist(), extents.numbers.tolist(), strict=True):
            self.extents.get(node, set()).discard(number)

    def prepare(self) -> None:
        pass

    def reclaimed(self, extents: Extents, of_readers: bool = False) -> npt.NDArray[np.bool_]:
        pairs = zip(extents.nodes.tolist(), extents.numbers.tolist(), strict=True)
        return np.array([number not in self.extents.get(node, ()) for node, number in pairs], np.bool_)


def test_files_that_span_chunks_stream_too() -> None:
    """None of them lies in one chunk; the first extent of a tripwire is left to its reader."""
    files, extents_each = 300, 3
    entries = [TreeEntry(b"%03d" % n, 0o100644, 0, bytes(extents_each * PAGE)) for n in range(files)]
    snapshot = pack_entries(entries, chunk_bytes=PAGE).snapshot

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            source = pack_entries(entries, chunk_bytes=PAGE).source()
            chunk_cache = ChunkCache(snapshot, source, 16 * PAGE, nursery)
            pages = ExtentPages()
            allotment = Allotment(0, 0, 16 * PAGE, 80 * extents_each * PAGE, 0)
            prefetcher = Prefetcher(snapshot, chunk_cache, source, pages, allotment, nursery)
            rig = Rig(prefetcher, chunk_cache, DictPages(snapshot), source, snapshot)
            share = Plan(snapshot, PlanSpec(seed=1, group_chunks=0)).share()
            prefetcher.declare(share)
            await prefetcher.ahead_of(share)
            missing = 0
            for node in share.nodes().tolist():
                there = len(pages.extents.get(node, ()))
                missing += extents_each - there
                if there < extents_each:
                    prefetcher.note_read(node)
                await rig.resolve()
            assert 0 < missing <= 3 * files / prefetcher.tripwires.every
            assert prefetcher.windows[0].ahead == files
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock())


@pytest.mark.parametrize("seed", range(3))
def test_a_list_with_repeated_files_is_stored_before_it_is_read(packed: PackedDataset, seed: int) -> None:
    """As orders by importance: drawn with replacement, from all chunks."""
    files = Plan(packed.snapshot, PlanSpec()).nodes()
    drawn = np.random.default_rng(seed).choice(files, FILES).astype(np.int64)

    async def scenario(rig: Rig) -> None:
        plan = ListedPlan(packed.snapshot, drawn, 200 * PAGE, 200 * PAGE)
        shares = [plan.share(rank, world=2, batch=20) for rank in (0, 1)]
        for share in shares:
            rig.prefetcher.declare(share)
            await rig.prefetcher.ahead_of(share)
        missed = 0
        for first in range(0, FILES // 2, 50):
            missed += sum([await rig.read(share, first, first + 50) for share in shares])
        assert missed < FILES // 100
        await trio.sleep(FINISHED_S + 1)
        assert not rig.prefetcher.windows and rig.prefetcher.budget.window_bytes == 0
        assert not rig.pages.files

    rig = run(packed, scenario, window=1000 * PAGE, pinned=0)
    assert rig.pages.most <= 1000


def test_when_the_mount_is_gone_nothing_more_is_fetched(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        rig.pages.is_gone = True
        rig.prefetcher.declare(rig.plan().share())
        await rig.resolve()
        await rig.warm()

    assert len(run(packed, scenario).source.fetched_chunks) < CHUNKS // 2


async def assert_nothing_is_left(rig: Rig) -> None:
    await trio.sleep(FINISHED_S + 1)
    assert not rig.prefetcher.windows and rig.prefetcher.budget.window_bytes == 0
    assert not rig.pages.files and not rig.prefetcher.tripwires.held_bytes


def test_what_was_stored_before_another_rank_joined_is_dropped_as_well(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        shares = [rig.plan().share(rank, world=2, batch=64) for rank in (0, 1)]
        for share in shares:
            rig.prefetcher.declare(share)
            await rig.prefetcher.ahead_of(share)
        for first in range(0, FILES // 2, 32):
            for share in shares:
                assert await rig.read(share, first, first + 32) == 0
        await assert_nothing_is_left(rig)

    run(packed, scenario, window=2 * GROUP_FILES * PAGE, pinned=0)


def test_what_was_in_stock_before_a_reader_began_anew_is_dropped_as_well(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        share = rig.plan().share()
        for _ in range(4):
            rig.prefetcher.declare(share)
            await rig.resolve()
            assert await read_to_the_end(rig, share, GROUP_FILES) == 0
        rig.prefetcher.declare(share)
        await rig.resolve()
        assert await read_to_the_end(rig, share) == 0
        await assert_nothing_is_left(rig)

    run(packed, scenario, window=2 * GROUP_FILES * PAGE, pinned=0)


def test_readers_who_go_away_while_more_is_waiting_for_room_leave_nothing(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        for seed in range(4):
            share = rig.plan(seed=seed).share()
            rig.prefetcher.declare(share)
            await rig.prefetcher.ahead_of(share)
            assert await read_to_the_end(rig, share, FILES // 2 + 100) == 0
            assert len(rig.prefetcher.windows) == 1
            await trio.sleep(PLAN_QUIET_S + 1)
        rig.prefetcher.declare(rig.plan(seed=4).share(start=FILES))
        await assert_nothing_is_left(rig)

    run(packed, scenario, window=2 * GROUP_FILES * PAGE, pinned=0)


def test_lists_that_were_only_looked_at_do_not_pile_up_nor_take_memory_from_each_other_for_ever(
    packed: PackedDataset,
) -> None:
    async def scenario(rig: Rig) -> None:
        for seed in range(PLANS_MAX + 8):
            rig.prefetcher.declare(rig.plan(seed=seed).share())
            await rig.resolve()
        assert len(rig.prefetcher.windows) == PLANS_MAX

    assert run(packed, scenario, window=2 * GROUP_FILES * PAGE, pinned=0).pages.most <= 2 * GROUP_FILES
