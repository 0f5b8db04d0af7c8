import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.prefetch.extent_table import ExtentTable
from dieselfs.prefetch.window import (
    AHEAD_S,
    OVERTAKEN_S,
    READER_QUIET_S,
    READS_MIN,
    PlanWindow,
    Span,
    WindowMiss,
)
from dieselfs.shuffle.listed import ListedPlan
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.spec import PlanSpec
from dieselfs_client.prefetch.tripwires import Tripwires
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries

FILES = 8000
FILES_PER_CHUNK = 20
GROUP_CHUNKS = 50
GROUP_FILES = FILES_PER_CHUNK * GROUP_CHUNKS
FILE_BYTES = 100
ALL = 1 << 40
"""Room for any span."""


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%04d" % n, 0o100644, 0, bytes(FILE_BYTES)) for n in range(FILES)]
    return pack_entries(entries, chunk_bytes=FILES_PER_CHUNK * FILE_BYTES)


@pytest.fixture
def plan(packed: PackedDataset) -> Plan:
    return Plan(packed.snapshot, PlanSpec(seed=3, group_chunks=GROUP_CHUNKS))


def window_of(plan: Plan, clock: Clock | None = None) -> PlanWindow:
    table = ExtentTable(plan.snapshot)
    return PlanWindow(plan, Tripwires(plan.snapshot), table.page_bytes, clock or Clock())


def read(window: PlanWindow, share: Share, upto: int) -> None:
    """Read files of a share up to a position, as a mount notices it."""
    for node in share.nodes(0, share.count_before(upto)).tolist():
        if window.advance(node) is not None:
            window.note_read(node)


def spans(window: PlanWindow, bytes_max: int = ALL, together_bytes: int = 0) -> list[Span]:
    """All that are to be fetched now; `together_bytes`: as many groups together as come to no more than this."""
    found: list[Span] = []
    while True:
        while window.gather(together_bytes):
            pass
        span = window.next_span(bytes_max)
        if span is None:
            return found
        found.append(span)


def test_two_spans_are_handed_out_and_the_next_when_the_first_is_read(plan: Plan) -> None:
    window, share = window_of(plan), plan.share()
    window.join(share)
    first, second = spans(window)
    assert (first.first, first.end, second.end) == (0, GROUP_FILES, 2 * GROUP_FILES)
    assert first.nodes.tolist() == plan.nodes(0, GROUP_FILES).tolist()
    read(window, share, GROUP_FILES // 2)
    assert spans(window) == []
    read(window, share, GROUP_FILES + GROUP_FILES // 2)
    (third,) = spans(window)
    assert (third.first, third.end) == (2 * GROUP_FILES, 3 * GROUP_FILES)


def test_small_groups_at_the_start_are_fetched_further_ahead(packed: PackedDataset) -> None:
    plan = Plan(packed.snapshot, PlanSpec(seed=3))  # the default groups grow
    table = ExtentTable(packed.snapshot)
    sizes = np.diff(plan.group_bounds()) // FILES_PER_CHUNK
    assert sizes[:3].tolist() == [4, 8, 16]
    first_bytes = int(table.page_bytes(plan.nodes(0, int(plan.group_bounds()[2]))).sum())
    for ahead_bytes, expected in ((0, 2), (first_bytes, 2), (first_bytes + 1, 3)):
        window = PlanWindow(plan, Tripwires(packed.snapshot), table.page_bytes, Clock(), ahead_bytes)
        window.join(plan.share())
        assert len(spans(window)) == expected


def test_a_fast_reader_is_fetched_for_further_ahead(plan: Plan) -> None:
    clock = Clock()
    window, share = window_of(plan, clock), plan.share()
    window.join(share)
    spans(window)
    read(window, share, GROUP_FILES // 4)
    clock.now_s = 1.0
    read(window, share, GROUP_FILES)
    rate = window.rate()
    assert rate is not None and rate > GROUP_FILES / 4
    spans(window)
    assert window.ahead >= min(len(plan), window.position + rate * AHEAD_S)


def test_what_was_read_comes_back_once_and_lags_a_little(plan: Plan) -> None:
    window, share = window_of(plan), plan.share()
    window.join(share)
    spans(window)
    assert window.passed() == []
    read(window, share, GROUP_FILES)
    passed = np.concatenate(window.passed())
    assert GROUP_FILES // 4 <= len(passed) < GROUP_FILES
    assert passed.tolist() == plan.nodes(0, len(passed)).tolist()
    assert window.passed() == []


def test_what_each_reader_has_read_is_told_once(plan: Plan) -> None:
    window, shares = window_of(plan), {rank: plan.share(rank, world=2, batch=64) for rank in (0, 1)}
    window.join(shares[0], number=0)
    window.join(shares[1], number=1, position=GROUP_FILES)  # it goes on where it was before
    told: dict[int, list[int]] = {0: [], 1: []}
    for upto in range(GROUP_FILES // 2, len(plan) + 1, GROUP_FILES // 2):
        spans(window)
        for share in shares.values():
            read(window, share, upto)
        for rank, nodes in window.newly_read():
            told[rank] += nodes.tolist()
    known = {share.rank: position for share, position in window.positions()}
    for rank, share in shares.items():
        first = share.count_before(rank * GROUP_FILES)
        assert told[rank] == share.nodes(first, share.count_before(known[rank])).tolist()
        assert known[rank] > len(plan) - GROUP_FILES
    assert list(window.newly_read()) == []


def test_a_span_larger_than_the_memory_is_cut_into_equal_parts(plan: Plan) -> None:
    window = window_of(plan)
    window.join(plan.share())
    page_bytes = 4096 * GROUP_FILES
    span = window.next_span(page_bytes // 3)
    assert span is not None and len(span.nodes) * 4096 <= page_bytes // 3
    assert len(span.nodes) > GROUP_FILES // 3 - GROUP_FILES // 8
    alone = window_of(plan)
    alone.join(plan.share())
    tiny = alone.next_span(1)
    assert tiny is not None and len(tiny.nodes) == 1, "a file at least, whatever the memory"


@pytest.mark.parametrize("groups", [1, 2, 3, 8])
def test_small_shares_of_several_groups_are_one_span_but_for_the_first(plan: Plan, groups: int) -> None:
    window, share = window_of(plan), plan.share(3, 10, 40)
    window.join(share)
    together_bytes = 4096 * (groups * GROUP_FILES // 10 + 10)
    found = spans(window, ALL, together_bytes)
    while window.ahead < len(plan):
        read(window, share, window.ahead - 1)
        found += spans(window, ALL, together_bytes)
    ends = [span.end // GROUP_FILES for span in found]
    assert ends == sorted({1, 8, *range(1 + groups, 8, groups)}), (
        "a reader who begins waits for one group only"
    )
    assert np.concatenate([span.nodes for span in found]).tolist() == share.nodes().tolist()


def test_groups_that_were_gathered_are_forgotten_when_a_reader_joins(plan: Plan) -> None:
    window, shares = window_of(plan), [plan.share(rank, 2, 64) for rank in (0, 1)]
    window.join(shares[0])
    first = window.next_span(ALL)
    assert first is not None
    assert window.gather(ALL) and window.gather(ALL)
    window.join(shares[1], position=first.end)
    (both,) = spans(window, ALL, ALL)
    assert sorted(both.nodes.tolist()) == sorted(
        node
        for share in shares
        for node in share.nodes(share.count_before(first.end), share.count_before(both.end)).tolist()
    )


def test_ranks_of_one_node_share_a_window(plan: Plan) -> None:
    window = window_of(plan)
    shares = [plan.share(rank, 3, 60) for rank in (0, 2)]
    for share in shares:
        window.join(share)
    (span, _) = spans(window)
    wanted = sorted(
        node for share in shares for node in share.nodes(0, share.count_before(GROUP_FILES)).tolist()
    )
    assert sorted(span.nodes.tolist()) == wanted
    read(window, shares[0], 2 * GROUP_FILES)
    assert window.passed() == [], "the other rank is still at the start"
    read(window, shares[1], GROUP_FILES)
    assert window.passed()


def test_a_reader_who_joins_late_gets_what_it_missed(plan: Plan) -> None:
    window = window_of(plan)
    early, late = plan.share(0, 2, 64), plan.share(1, 2, 64)
    window.join(early)
    spans(window)
    read(window, early, GROUP_FILES)
    window.join(late)
    handed = np.concatenate([span.nodes for span in spans(window)])
    missed = late.nodes(0, late.count_before(2 * GROUP_FILES))
    assert set(missed.tolist()) <= set(handed.tolist())


def test_a_reader_who_begins_anew_takes_the_place_of_the_one_before(plan: Plan) -> None:
    window = window_of(plan)
    window.join(plan.share())
    spans(window)
    read(window, plan.share(), 2 * GROUP_FILES)
    window.join(plan.share())
    assert window.position == 0
    assert spans(window)[0].first == 0
    read(window, plan.share(), GROUP_FILES)
    assert len(list(window.positions())) == 1 and window.passed()


def test_nobody_waits_for_somebody_who_only_looked_at_the_list(plan: Plan) -> None:
    clock = Clock()
    window = window_of(plan, clock)
    looker, reader = plan.share(0, 2, 64), plan.share(1, 2, 64)
    window.join(looker)
    window.join(reader)
    spans(window)
    read(window, reader, GROUP_FILES)
    assert window.passed() == []
    clock.now_s = READER_QUIET_S + 1
    read(window, reader, 2 * GROUP_FILES)
    assert window.passed()


def test_a_share_without_a_tripwire_gets_one(plan: Plan) -> None:
    """Rank 999 of 1000 reads one file in a thousand: a span may hold none of the usual tripwires."""
    window, share = window_of(plan), plan.share(999, 1000, 1000)
    window.join(share)
    found = spans(window)
    assert window.ahead == len(plan), "nothing may be heard of such a span, so there is no waiting for it"
    assert [span.extra_tripwires.tolist() for span in found] == [[int(span.nodes[-1])] for span in found]
    read(window, share, len(plan))
    assert window.is_finished


def test_a_file_that_comes_several_times_shows_no_position(packed: PackedDataset) -> None:
    snapshot = packed.snapshot
    nodes = Plan(snapshot, PlanSpec(seed=3)).nodes().astype(np.int64)
    wires = nodes[Tripwires(snapshot).usual(nodes)]
    listed = np.concatenate((nodes[:1000], wires[:3], nodes[1000:2000]))
    plan = ListedPlan(snapshot, listed)
    window, share = window_of(plan), plan.share()
    window.join(share)
    spans(window)
    is_twice = np.bincount(listed, minlength=len(snapshot))[wires] == 2
    assert is_twice.any() and not is_twice.all()
    is_listed = np.isin(wires, listed)
    assert all(window.advance(wire) is None for wire in wires[is_twice].tolist())
    assert all(window.advance(wire) is not None for wire in wires[is_listed & ~is_twice].tolist())


def test_a_reader_outruns_the_stock_at_the_last_tripwire_before_what_it_lacks(plan: Plan) -> None:
    window, share = window_of(plan), plan.share()
    window.join(share)
    first, second = spans(window)
    assert not any(map(window.is_starved, first.nodes.tolist())), "nothing was read yet"
    window.complete(first)
    outrun = []
    wires = first.nodes[Tripwires(plan.snapshot).usual(first.nodes)].tolist()
    for wire in wires:
        window.note_read(wire)
        outrun.append(window.is_starved(wire))
    assert outrun == [False] * (len(wires) - 1) + [True]
    window.complete(second)
    assert not window.is_starved(wires[-1])


def test_a_reader_outruns_what_was_not_handed_out_yet_but_not_the_end(plan: Plan) -> None:
    window, share = window_of(plan), plan.share()
    window.join(share)
    while window.ahead < len(plan):
        for span in spans(window):
            window.complete(span)
        read(window, share, window.ahead)
        wires = np.flatnonzero(Tripwires(plan.snapshot).usual(plan.nodes(0, window.ahead).astype(np.int64)))
        assert window.is_starved(int(plan.nodes()[wires[-1]])) == (window.ahead < len(plan))


def test_a_reader_who_overtakes_the_window_is_found_again(plan: Plan) -> None:
    """The files of two groups were read before they were in stock: no tripwire of theirs was sprung."""
    clock = Clock()
    window, share = window_of(plan, clock), plan.share()
    window.join(share)
    spans(window)
    clock.now_s = OVERTAKEN_S + 1
    reached = 2 * GROUP_FILES + 100
    found = [window.is_overtaken(node) for node in share.nodes(2 * GROUP_FILES, reached).tolist()]
    assert any(found)
    assert reached - 100 < window.position <= reached
    ((_, told),) = window.newly_read()
    assert told.tolist() == plan.nodes(0, window.position).tolist(), "whether it was handed out or not"
    passed = np.concatenate(window.passed()).tolist()
    assert len(passed) > GROUP_FILES and passed == plan.nodes(0, len(passed)).tolist()
    assert spans(window)[0].first >= window.position


def test_other_reads_do_not_move_the_window(plan: Plan) -> None:
    clock = Clock()
    window, share = window_of(plan, clock), plan.share()
    window.join(share)
    spans(window)
    beyond = share.nodes(2 * GROUP_FILES, 2 * GROUP_FILES + 50).tolist()
    assert not any(map(window.is_overtaken, beyond)), "its reader was heard of a moment ago"
    clock.now_s = OVERTAKEN_S + 1
    assert not any(map(window.is_overtaken, sorted(share.nodes().tolist()))), (
        "a copy of all, in order of names"
    )
    assert window.position == 0


@settings(max_examples=30)
@given(
    world=st.integers(1, 5),
    start=st.integers(0, FILES),
    room=st.sampled_from([4096 * 50, 4096 * 300, ALL]),
    together=st.sampled_from([0, 4096 * 300, 4096 * 2500, ALL]),
    steps=st.lists(st.integers(1, 700), max_size=30),
)
def test_everything_is_handed_out_once_and_comes_back_once(
    packed: PackedDataset, world: int, start: int, room: int, together: int, steps: list[int]
) -> None:
    plan = Plan(packed.snapshot, PlanSpec(seed=world, group_chunks=GROUP_CHUNKS))
    window, share = window_of(plan), plan.share(world - 1, world, 32, start)
    window.join(share)
    handed: list[int] = []
    back: list[int] = []
    position = start
    for step in [*steps, FILES]:
        for span in spans(window, room, together):
            handed += span.nodes.tolist()
        position = min(position + step, window.ahead)
        read(window, share, position)
        for nodes in window.passed():
            back += nodes.tolist()
    while not window.is_finished:
        for span in spans(window, room, together):
            handed += span.nodes.tolist()
        read(window, share, window.ahead)
        for nodes in window.passed():
            back += nodes.tolist()
    for nodes in window.close():
        back += nodes.tolist()
    assert handed == share.nodes().tolist()
    assert sorted(back) == sorted(handed)


def test_what_was_handed_out_before_a_reader_joined_is_given_back_once_handed_out_again(plan: Plan) -> None:
    window = window_of(plan)
    window.join(plan.share(0, 2, 64))
    before = [span.nodes for span in spans(window)]
    window.join(plan.share(1, 2, 64))
    assert not window.passed(), "the second rank wants the same chunks"
    spans(window)
    given_back = np.concatenate(window.passed())
    assert sorted(given_back.tolist()) == sorted(np.concatenate(before).tolist())


def test_what_gave_way_to_another_plan_comes_again_when_its_reader_moves_on(plan: Plan) -> None:
    window, share = window_of(plan), plan.share()
    window.join(share)
    _, second = spans(window)
    assert window.shrink().tolist() == second.nodes.tolist()
    assert spans(window) == []
    read(window, share, GROUP_FILES // 2)
    assert spans(window)[0].first == second.first


def test_files_in_the_order_of_the_plan_tell(plan: Plan) -> None:
    window_miss = WindowMiss(plan)
    nodes = plan.nodes(900, 900 + READS_MIN).tolist()
    found = [window_miss.note_read(node, ahead=800) for node in nodes]
    assert found == [None] * (READS_MIN - 1) + [900 + READS_MIN - 1]


def test_so_do_files_of_several_processes_that_are_about_where_the_others_are(plan: Plan) -> None:
    window_miss = WindowMiss(plan)
    nodes = plan.nodes(900, 940).tolist()
    mixed = [nodes[place] for start in range(10) for place in range(start, 40, 10)]
    positions = [window_miss.note_read(node, ahead=800) for node in mixed]
    assert any(position is not None for position in positions)


@pytest.mark.parametrize("seed", range(20))
def test_files_in_another_order_do_not(plan: Plan, seed: int) -> None:
    window_miss = WindowMiss(plan)
    nodes = plan.nodes().tolist()
    random.Random(seed).shuffle(nodes)
    assert not any(window_miss.note_read(node, ahead=800) for node in nodes)


def test_nor_do_files_that_were_handed_out_or_come_much_later(plan: Plan) -> None:
    window_miss = WindowMiss(plan)
    for first in (0, 2000):
        assert not any(
            window_miss.note_read(node, ahead=800) for node in plan.nodes(first, first + 100).tolist()
        )
    assert window_miss.note_read(int(plan.nodes(5, 6)[0]), ahead=len(plan)) is None


def test_it_begins_to_count_anew_when_the_reader_was_heard_of(plan: Plan) -> None:
    window_miss = WindowMiss(plan)
    nodes = plan.nodes(900, 900 + 2 * READS_MIN - 2).tolist()
    for node in nodes[: READS_MIN - 1]:
        assert window_miss.note_read(node, ahead=800) is None
    window_miss.reset()
    for node in nodes[READS_MIN - 1 :]:
        assert window_miss.note_read(node, ahead=800) is None
