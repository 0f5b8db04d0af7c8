"""Whatever arrives when: each file once, ranks disjoint and equal, and the log repeats the order bit by bit."""

from math import lgamma, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.opportunistic import (
    Arrival,
    OpportunisticOrder,
    Parts,
    ServedLog,
    log_of,
    served,
)
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec

DIGEST = "ab" * 12


def layout_of(counts: list[int]) -> Layout:
    chunks = np.repeat(np.arange(len(counts)), counts)
    ids = np.arange(2 * len(counts), dtype=np.uint64).reshape(-1, 2)
    return Layout(ids, np.arange(len(chunks), dtype=np.uint32), chunks)


LAYOUT = layout_of([5, 0, 7, 1, 9, 4])


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    world=st.integers(1, 5),
    epoch=st.integers(0, 2),
)
def test_ranks_have_disjoint_files_as_many_as_others(counts: list[int], world: int, epoch: int) -> None:
    layout = layout_of(counts)
    ranks = [Parts(layout, 3, epoch, rank, world) for rank in range(world)]
    files = [node for parts in ranks for nodes in parts.nodes.values() for node in nodes.tolist()]
    assert sorted(files) == list(range(sum(counts)))
    assert max(map(len, ranks)) - min(map(len, ranks)) <= 1
    assert sum(len(parts.order) for parts in ranks) <= sum(count > 0 for count in counts) + world - 1


@settings(deadline=None)
@given(data=st.data(), seed=st.integers(0, 3), batch=st.integers(1, 9))
def test_a_log_repeats_any_order(data: st.DataObject, seed: int, batch: int) -> None:
    parts = Parts(LAYOUT, seed, 1)
    order = OpportunisticOrder(parts, seed, 1)
    nodes: list[int] = []
    for part in data.draw(st.permutations(parts.order)):
        order.arrive(part)
        nodes += order.draw(data.draw(st.integers(0, batch)))
    nodes += order.draw(len(parts))
    assert sorted(nodes) == list(range(26)) and not order.waiting and order.available == 0

    logged = log_of(DIGEST, PlanSpec(seed, 1), ReaderSpec(), order.arrivals)
    logged = ServedLog.parse(str(logged))
    assert served(parts, logged).nodes.tolist() == nodes


def test_how_random_it_is() -> None:
    """All there at the beginning: a full shuffle. One after the other: only the files of a chunk are mixed."""
    parts = Parts(LAYOUT, 1, 1)
    whole, single = OpportunisticOrder(parts, 1, 1), OpportunisticOrder(parts, 1, 1)
    for part in parts.order:
        whole.arrive(part)
        single.arrive(part)
        single.draw(100)
    whole.draw(100)
    assert whole.entropy_ratio() == pytest.approx(1)
    inside = sum(lgamma(count + 1) for count in (5, 7, 1, 9, 4)) / log(2)
    assert single.choice_bits == pytest.approx(inside)
    assert OpportunisticOrder(parts, 1, 1).entropy_ratio() == 1.0


def test_an_order_does_not_change() -> None:
    """Logs of finished runs repeat them: these numbers are of the first release."""
    parts = Parts(layout_of([3, 3]), 1, 0)
    logged = log_of(
        DIGEST, PlanSpec(1, 0), ReaderSpec(), [Arrival(0, parts.order[0]), Arrival(2, parts.order[1])]
    )
    assert served(parts, logged).nodes.tolist() == [2, 0, 5, 3, 1, 4]


def test_logs_that_are_damaged() -> None:
    parts = Parts(LAYOUT, 1, 1)
    text = str(log_of(DIGEST, PlanSpec(1, 1), ReaderSpec(), [Arrival(0, parts.order[0])]))
    for damaged, says in (
        ("", "not a log of an opportunistic order"),
        (text.replace("seed=1", "seed=2"), "truncated or changed"),
        (text + "9 1\n", "truncated or changed"),
        (text + "many\n", "line 3 of the log of an order is 'many'"),
        (text.rstrip("\n"), "truncated or changed"),
    ):
        with pytest.raises(InvalidInput, match=says):
            ServedLog.parse(damaged)
    for arrivals, says in (
        ([Arrival(0, parts.order[0]), Arrival(0, parts.order[0])], "has arrived before"),
        ([Arrival(0, 77)], "none of this rank"),
        ([Arrival(0, parts.order[0]), Arrival(25, parts.order[1])], "has no files for position"),
        (
            [Arrival(at, part) for at, part in zip((0, 1, 0), parts.order, strict=False)],
            "has no files for position",
        ),
    ):
        with pytest.raises(InvalidInput, match=says):
            served(parts, log_of(DIGEST, PlanSpec(1, 1), ReaderSpec(), arrivals))
    with pytest.raises(InvalidInput, match="rank is 2"):
        Parts(LAYOUT, 1, 1, 2, 2)
