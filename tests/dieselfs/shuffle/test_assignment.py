"""Local assignments: each step stays the same set of files; which rank reads which follows the owners of chunks."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.cluster.placement import Placement
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.assignment import NOWHERE, ChunkHomes, local_order, node_numbers
from dieselfs.shuffle.partition import Partition
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from tests.support import reference_order
from tests.support.dataset import TreeEntry, pack_entries

NODES = ("a1", "a2", "b")
SNAPSHOT = pack_entries(
    [TreeEntry(b"train/%03d" % n, 0o100644, n, b"x" * (n % 5 * 7)) for n in range(300)], chunk_bytes=100
).snapshot
PLAN = Plan(SNAPSHOT, PlanSpec(3, 1, 12))


def shares(batch: int, start: int = 0, world: int = 6, plan: Plan = PLAN, **options: Any) -> list[Share]:
    return [plan.share(rank, world, batch, start, nodes=NODES, **options) for rank in range(world)]


@given(
    st.lists(st.lists(st.integers(NOWHERE, 3), min_size=1, max_size=30), min_size=1, max_size=5),
    st.lists(st.integers(0, 3), min_size=1, max_size=9),
)
def test_steps_are_cut_as_the_document_says(steps: list[list[int]], ranks: list[int]) -> None:
    rank_nodes = node_numbers([f"n{node}" for node in ranks], len(ranks))
    known = int(rank_nodes.max())
    steps = [[home if home <= known else NOWHERE for home in step] for step in steps]
    sizes = np.array([len(step) for step in steps])
    order = local_order(np.array([home for step in steps for home in step]), sizes, rank_nodes).tolist()
    world = len(ranks)
    for step, first in zip(steps, (np.cumsum(sizes) - sizes).tolist(), strict=True):
        mine = [
            [
                place - first
                for place in order[first + r * len(step) // world : first + (r + 1) * len(step) // world]
            ]
            for r in range(world)
        ]
        homes = [None if home == NOWHERE else home for home in step]
        assert mine == reference_order.local_step(homes, rank_nodes.tolist())


def test_ranks_are_spread_over_the_nodes_in_their_order() -> None:
    assert node_numbers(["x", "y"], 4).tolist() == [0, 0, 1, 1]
    assert node_numbers(["x", "y", "z"], 4).tolist() == [0, 0, 1, 2]
    assert node_numbers(["x", "y", "x", "y"], 4).tolist() == [0, 1, 0, 1]
    assert node_numbers(["b", "a"], 2).tolist() == [0, 1]


def test_homes_are_the_owners_in_a_job_of_nodes_with_equal_memory() -> None:
    placement = Placement.of_names(NODES)
    owners = placement.owners(SNAPSHOT.column("chunk_ids").reshape(-1, CHUNK_ID_BYTES))
    homes = ChunkHomes(SNAPSHOT, NODES).of(np.arange(SNAPSHOT.chunk_count))
    assert [NODES[home] for home in homes] == [placement.members[owner].node for owner in owners]
    assert sorted(set(homes.tolist())) == [0, 1, 2]
    swapped = ChunkHomes(SNAPSHOT, NODES[::-1]).of(np.arange(SNAPSHOT.chunk_count))
    assert [NODES[::-1][home] for home in swapped] == [NODES[home] for home in homes]


@given(st.integers(1, 70), st.integers(0, 300), st.integers(0, 300), st.integers(3, 7), st.booleans())
def test_every_position_is_read_once_whatever_changes_on_the_way(
    batch: int, stop: int, start: int, world: int, drop_last: bool
) -> None:
    stop = min(start + stop, len(PLAN))
    ranks = shares(batch, start, world, drop_last=drop_last)
    plain = [PLAN.share(rank, world, batch, start, drop_last=drop_last) for rank in range(world)]
    for step in ranks[0].steps:
        mine, theirs = ([share.positions_of(step) for share in of] for of in (ranks, plain))
        assert sorted(chain(*mine)) == sorted(chain(*theirs))
        assert [*map(len, mine)] == [*map(len, theirs)] and all(sorted(one) == one for one in mine)
    for share in ranks:
        positions = share.positions().tolist()
        assert positions == [*chain(*map(share.positions_of, share.steps))]
        assert share.between(start, stop).tolist() == [p for p in positions if p < stop]
        first, end = len(positions) // 3, len(positions) - 1
        assert share.positions(first, end).tolist() == positions[first:end]


def test_workers_take_the_steps_of_their_rank_in_turn() -> None:
    alone = shares(20, 5)[4]
    steps = [alone.positions_of(step) for step in alone.steps]
    for worker in range(3):
        mine = shares(20, 5, worker=worker, workers=3)[4]
        assert mine.positions().tolist() == [*chain(*steps[worker::3])]


def test_most_files_are_read_where_their_chunks_are() -> None:
    homes = PLAN.homes_of(NODES)(np.arange(len(PLAN)))
    read_by_node = np.full(len(PLAN), NOWHERE)
    for share in shares(60):
        read_by_node[share.positions()] = share.rank * len(NODES) // share.world
    has_home = homes != NOWHERE
    assert np.mean(read_by_node[has_home] == homes[has_home]) > 0.8
    # No step could have more: a node reads another's file only after it has read as many of its own as it can.
    for first in range(0, len(PLAN), 60):
        step = slice(first, first + 60)
        room = np.bincount(read_by_node[step], minlength=3)
        own = np.bincount(homes[step][has_home[step]], minlength=3)
        is_own = read_by_node[step] == homes[step]
        assert np.bincount(homes[step][is_own], minlength=3).tolist() == np.minimum(room, own).tolist()


def test_one_rank_reads_the_order_itself() -> None:
    share = PLAN.share(0, 1, 32, nodes=("a1",))
    assert share.positions().tolist() == list(range(len(PLAN)))


def test_files_without_bytes_fill_up() -> None:
    empty = pack_entries([TreeEntry(b"%d" % n, 0o100644, n, b"") for n in range(7)], chunk_bytes=100).snapshot
    plan = Plan(empty, PlanSpec())
    assert [share.positions().tolist() for share in shares(7, world=3, plan=plan)] == [
        [0, 1],
        [2, 3],
        [4, 5, 6],
    ]


def test_a_million_positions_are_not_computed_before_they_are_needed() -> None:
    asked = []

    def homes_of(positions: np.ndarray) -> np.ndarray:
        asked.append(len(positions))
        return positions % 2

    reader = ReaderSpec(1, 2, 1000, nodes=("x", "y"))
    partition = Partition(10**9, reader, homes_of)
    assert len(partition) == 5 * 10**8 and partition.count_before(10**6) == 500_000 and not asked
    assert partition.positions(0, 3).tolist() == [1, 3, 5]
    assert partition.between(10**9 - 4, 10**9).tolist() == [10**9 - 3, 10**9 - 1]
    assert max(asked) < 100_000 and len(asked) == 2


def test_bad_nodes_are_named() -> None:
    with pytest.raises(InvalidInput, match="3 nodes for 2 ranks: give at most one for each rank"):
        ReaderSpec(0, 2, nodes=NODES)
    with pytest.raises(InvalidInput, match="node name 'a b' is not allowed"):
        ReaderSpec(0, 2, nodes=("a b",))
