"""Plans: the order after skips, its groups, and what a reader of it reads, from any position on."""

import os
from hashlib import sha256
from itertools import chain, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import SEED_MAX, PlanSpec
from dieselfs.snapshot.reader import Snapshot
from tests.support import reference_order
from tests.support.dataset import TreeEntry, pack_entries

SIZES = [0, 3, 17, 40, 3, 120, 9, 500, 1, 0, 22]  # in chunks of 200 bytes: some files span two or three
FILES = [TreeEntry(b"d%d/f%03d" % (n % 7, n), 0o100644, n, b"x" * SIZES[n % 11]) for n in range(150)]
SNAPSHOT = pack_entries(FILES, chunk_bytes=200).snapshot
LAYOUT = Layout.of(SNAPSHOT)

SEEDS = st.integers(0, SEED_MAX)
GROUPS = st.sampled_from([0, 1, 2, 5, 50, 1000])
SKIPS = st.lists(
    st.builds(
        lambda first, length: range(first, min(first + length, 150)), st.integers(0, 149), st.integers(0, 40)
    ),
    max_size=4,
)


def whole_order(seed: int, epoch: int, group_chunks: int) -> list[int]:
    first_chunks = {
        node: extents[0].chunk if (extents := SNAPSHOT.extents(node)) else None
        for node in range(len(SNAPSHOT))
        if SNAPSHOT.stat(node).is_file
    }
    ids = [SNAPSHOT.chunk_id(chunk) for chunk in range(SNAPSHOT.chunk_count)]
    return reference_order.order(ids, first_chunks, seed, epoch, group_chunks)


@given(SEEDS, st.integers(0, 3), GROUPS, SKIPS)
def test_a_plan_is_the_order_of_its_page_without_what_is_skipped(
    seed: int, epoch: int, group_chunks: int, skips: list[range]
) -> None:
    expected = reference_order.pinned(whole_order(seed, epoch, group_chunks), skips)
    plan = Plan(SNAPSHOT, PlanSpec(seed, epoch, group_chunks, Skips(skips)), LAYOUT)
    assert len(plan) == len(expected)
    assert plan.nodes().tolist() == expected
    other = Plan(SNAPSHOT, PlanSpec(seed, 99, group_chunks)).with_epoch(epoch, skips)
    assert other.nodes().tolist() == expected


@given(SEEDS, GROUPS, SKIPS, st.integers(-160, 160), st.integers(-160, 160), st.lists(st.integers(0, 149)))
def test_any_positions_can_be_asked_for(
    seed: int, group_chunks: int, skips: list[range], first: int, end: int, positions: list[int]
) -> None:
    plan = Plan(SNAPSHOT, PlanSpec(seed, 1, group_chunks, Skips(skips)), LAYOUT)
    whole = plan.nodes().tolist()
    assert plan.nodes(first, end).tolist() == whole[first:end]
    inside = [position for position in positions if position < len(whole)]
    assert plan.nodes_at(inside).tolist() == [whole[position] for position in inside]


@given(SEEDS, GROUPS, SKIPS, st.integers(1, 12))
def test_what_a_rank_reads_of_a_group(seed: int, group_chunks: int, skips: list[range], world: int) -> None:
    plan = Plan(SNAPSHOT, PlanSpec(seed, 0, group_chunks, Skips(skips)), LAYOUT)
    share = plan.share(rank=world // 2, world=world)
    for group, (first, end) in enumerate(pairwise(plan.group_bounds().tolist())):
        positions = share.positions(share.count_before(first), share.count_before(end))
        assert plan.nodes_of(group, positions).tolist() == plan.nodes_at(positions).tolist()


@given(SEEDS, GROUPS, SKIPS)
def test_groups_cover_the_plan_and_name_the_chunks_that_they_need(
    seed: int, group_chunks: int, skips: list[range]
) -> None:
    plan = Plan(SNAPSHOT, PlanSpec(seed, 1, group_chunks, Skips(skips)), LAYOUT)
    groups = [plan.group(number) for number in range(plan.group_count)]
    assert [group.first for group in groups] == plan.group_bounds()[:-1].tolist()
    assert [group.end for group in groups] == plan.group_bounds()[1:].tolist()
    assert groups[0].first == 0 and groups[-1].end == len(plan)
    for group in groups:
        extents = chain(*(SNAPSHOT.extents(int(node)) for node in plan.nodes(group.first, group.end)))
        needed = sorted({extent.chunk for extent in extents})
        assert group.chunks.tolist() == needed
        assert group.payload_bytes == sum(map(SNAPSHOT.chunk_payload_length, needed))
        for position in range(group.first, group.end):
            assert plan.group_of(position) == group.number
    assert plan.payload_bytes_of_groups().tolist() == [group.payload_bytes for group in groups]


@settings(max_examples=50)
@given(
    SEEDS,
    GROUPS,
    SKIPS,
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 50), st.floats(0, 1)), max_size=4
    ),
)
def test_resumed_with_other_ranks_workers_and_batches_every_file_is_read_once(
    seed: int, group_chunks: int, skips: list[range], parts: list[tuple[int, int, int, float]]
) -> None:
    plan = Plan(SNAPSHOT, PlanSpec(seed, 1, group_chunks, Skips(skips)), LAYOUT)
    text, read = str(plan.cursor(0)), []
    for world, workers, batch, length in [*parts, (3, 2, 7, 1.0)]:
        cursor = Cursor.parse(text)
        plan = Plan.at(SNAPSHOT, cursor, LAYOUT)
        end = cursor.position + round(length * (len(plan) - cursor.position))
        files: dict[int, int] = {}
        for rank in range(world):
            for worker in range(workers):
                share = plan.share(rank, world, batch, cursor.position, worker, workers)
                read_so_far = share.count_before(end)
                files |= zip(
                    share.positions(0, read_so_far).tolist(), share.nodes(0, read_so_far), strict=True
                )
                assert len(share) == len(share.nodes()) == len(share.paths)
        assert sorted(files) == list(range(cursor.position, end))
        read += [files[position] for position in sorted(files)]
        text = str(plan.cursor(end))
    assert read == Plan(SNAPSHOT, PlanSpec(seed, 1, group_chunks, Skips(skips)), LAYOUT).nodes().tolist()


def test_paths_are_made_when_asked_for() -> None:
    plan = Plan(SNAPSHOT, PlanSpec(7))
    share = plan.share(1, 3, batch=10, start=20)
    expected = [os.fsdecode(SNAPSHOT.path(int(node))) for node in plan.nodes_at(share.positions())]
    assert list(share.paths) == expected
    assert share.paths[-1] == expected[-1] and list(share.paths[2:5]) == expected[2:5]


def test_a_cursor_fits_its_snapshot_only() -> None:
    plan = Plan(SNAPSHOT, PlanSpec(3, 4, 5, Skips([range(10)])))
    cursor = plan.cursor(len(plan))
    again = Plan.at(SNAPSHOT, cursor)
    assert again.spec == PlanSpec(3, 4, 5, Skips([range(10)]))
    other = pack_entries(FILES[1:], chunk_bytes=200).snapshot
    with pytest.raises(InvalidInput, match=r"of snapshot \w{24}, not of \w{24} \(dataset packed, generation"):
        Plan.at(other, cursor)
    with pytest.raises(InvalidInput, match="no position 141"):
        plan.cursor(141)
    with pytest.raises(InvalidInput, match="no position 150"):
        Plan.at(SNAPSHOT, Cursor(cursor.snapshot, PlanSpec(3, 4, 5, Skips([range(10)])), 150))


@pytest.mark.parametrize("group_chunks", [0, 1, 4])
def test_the_plan_of_a_folder_is_as_if_there_were_nothing_else(group_chunks: int) -> None:
    folder = SNAPSHOT.require(b"d3")
    extents = {node: SNAPSHOT.extents(node) for node in SNAPSHOT.children(folder)}
    chunks = sorted({extent.chunk for of_file in extents.values() for extent in of_file})
    ids = [SNAPSHOT.chunk_id(chunk) for chunk in chunks]
    first_chunks = {
        node: chunks.index(of_file[0].chunk) if of_file else None for node, of_file in extents.items()
    }
    plan = Plan(SNAPSHOT, PlanSpec(5, 6, group_chunks, folder=b"d3"))
    assert plan.spec.folder == b"d3"
    assert plan.nodes().tolist() == reference_order.order(ids, first_chunks, 5, 6, group_chunks)
    assert plan.with_epoch(7).spec.folder == b"d3"
    needed = {chunk for group in range(plan.group_count) for chunk in plan.group(group).chunks.tolist()}
    assert needed == set(chunks)


def test_a_cursor_fits_its_folder_only() -> None:
    layout = Layout.of(SNAPSHOT, b"d3")
    cursor = Plan(SNAPSHOT, PlanSpec(3, folder=layout.folder), layout).cursor(7)
    assert cursor.snapshot == sha256(SNAPSHOT.digest + b"d3").hexdigest()[:24]
    assert Plan.at(SNAPSHOT, cursor, layout).spec.folder == b"d3"
    with pytest.raises(InvalidInput, match="open the generation"):
        Plan.at(SNAPSHOT, cursor)
    with pytest.raises(InvalidInput, match=r"\(dataset packed, folder d4, generation"):
        Plan.at(SNAPSHOT, cursor, Layout.of(SNAPSHOT, b"d4"))


def test_a_folder_must_be_one() -> None:
    with pytest.raises(InvalidInput, match="not a folder"):
        Layout.of(SNAPSHOT, b"d0/f000")
    with pytest.raises(NotFound):
        Layout.of(SNAPSHOT, b"nowhere")


def test_what_is_not_there_is_refused() -> None:
    plan = Plan(SNAPSHOT, PlanSpec())
    with pytest.raises(InvalidInput, match="out of range"):
        plan.nodes_at([3, 150])
    with pytest.raises(InvalidInput, match="out of range"):
        plan.nodes_at([-1])
    with pytest.raises(InvalidInput, match="in no group"):
        plan.group_of(150)
    with pytest.raises(InvalidInput, match="cannot skip position 150"):
        Plan(SNAPSHOT, PlanSpec(skips=Skips([range(100, 151)])))


def test_the_plan_of_an_empty_dataset() -> None:
    empty: Snapshot = pack_entries([TreeEntry(b"folder", 0o40755, 0)]).snapshot
    plan = Plan(empty, PlanSpec())
    assert len(plan) == 0 and plan.nodes().tolist() == [] == list(plan.share().paths)
    assert plan.payload_bytes_of_groups().tolist() == [0]
    assert Plan.at(empty, plan.cursor(0)).share(start=0).positions().tolist() == []
