"""Deals: any number of ranks and workers, changed anywhere, takes every position once."""

from itertools import chain, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.partition import Partition
from dieselfs.shuffle.spec import ReaderSpec
from tests.support import reference_order

TOTALS = st.integers(0, 120)
WORLDS = st.integers(1, 9)
BATCHES = st.integers(1, 40)


def deals(total: int, world: int, batch: int, start: int = 0, drop_last: bool = False) -> list[Partition]:
    return [
        Partition(total, ReaderSpec(rank=rank, world=world, batch=batch, start=start, drop_last=drop_last))
        for rank in range(world)
    ]


def in_steps(ranks: list[Partition]) -> list[int]:
    """What all ranks read, step after step, in each step rank after rank."""
    return [
        position
        for step in zip(*(map(deal.positions_of, deal.steps) for deal in ranks), strict=True)
        for position in chain(*step)
    ]


@given(TOTALS, WORLDS, BATCHES, st.floats(0, 1), st.booleans())
def test_each_rank_reads_what_the_page_says(
    total: int, world: int, batch: int, cut: float, drop_last: bool
) -> None:
    start = round(cut * total)
    for rank, deal in enumerate(deals(total, world, batch, start, drop_last)):
        expected = reference_order.read_by(total, rank, world, batch, start, drop_last)
        assert [list(one) for one in map(deal.positions_of, deal.steps)] == expected
        assert deal.positions().tolist() == [*chain(*expected)]
        assert len(deal) == len(deal.positions())


@given(TOTALS, st.lists(st.tuples(WORLDS, BATCHES, st.floats(0, 1)), min_size=1, max_size=5))
def test_ranks_and_batches_may_change_at_any_position(
    total: int, parts: list[tuple[int, int, float]]
) -> None:
    read, start = [], 0
    for world, batch, length in parts:  # each goes on where the one before was stopped
        end = start + round(length * (total - start))
        ranks = deals(total, world, batch, start)
        assert sorted(in_steps(ranks)) == list(range(start, total))
        read += [position for position in in_steps(ranks) if position < end]
        start = end
    read += in_steps(deals(total, 3, 7, start))
    assert read == list(range(total))


@given(TOTALS, WORLDS, BATCHES, st.integers(0, 20))
def test_going_on_at_the_end_of_a_step_is_as_if_nobody_had_stopped(
    total: int, world: int, batch: int, step: int
) -> None:
    start = min(step * batch, total)
    for whole, rest in zip(deals(total, world, batch), deals(total, world, batch, start), strict=True):
        read = whole.count_before(start)
        assert whole.positions(read).tolist() == rest.positions().tolist()
        assert list(map(whole.positions_of, whole.steps))[len(whole.steps) - len(rest.steps) :] == list(
            map(rest.positions_of, rest.steps)
        )


@given(TOTALS, WORLDS, BATCHES, st.integers(1, 5), st.floats(0, 1), st.booleans(), st.data())
def test_workers_take_the_steps_of_their_rank_in_turn(
    total: int, world: int, batch: int, workers: int, cut: float, drop_last: bool, data: st.DataObject
) -> None:
    rank, start = data.draw(st.integers(0, world - 1)), round(cut * total)
    alone = Partition(
        total, ReaderSpec(rank=rank, world=world, batch=batch, start=start, drop_last=drop_last)
    )
    batches = list(map(alone.positions_of, alone.steps))
    for worker in range(workers):
        deal = Partition(
            total,
            ReaderSpec(
                rank=rank,
                world=world,
                batch=batch,
                start=start,
                worker=worker,
                workers=workers,
                drop_last=drop_last,
            ),
        )
        assert list(map(deal.positions_of, deal.steps)) == batches[worker::workers]
        assert deal.steps == alone.steps[worker::workers]
        positions = [*chain(*map(deal.positions_of, deal.steps))]
        assert deal.positions().tolist() == positions and len(deal) == len(positions)
        first, end = data.draw(st.integers(-3, total + 3)), data.draw(st.integers(-3, total + 3))
        assert deal.positions(first, end).tolist() == positions[first:end]
        for place in range(total + 2):
            assert deal.count_before(place) == sum(position < place for position in positions)


def test_every_range_of_positions_is_a_slice_of_all() -> None:
    """Also one that ends before it begins, as the rest of a group that a reader has behind it."""
    deal = Partition(40, ReaderSpec(rank=1, world=2, batch=8, start=3))
    positions = deal.positions().tolist()
    assert positions
    for first, end in product(range(-20, 22), repeat=2):
        assert deal.positions(first, end).tolist() == positions[first:end]


@given(TOTALS, WORLDS, BATCHES)
def test_the_ranks_of_a_step_differ_by_one_file_at_most(total: int, world: int, batch: int) -> None:
    for step in zip(
        *(map(deal.positions_of, deal.steps) for deal in deals(total, world, batch)), strict=True
    ):
        sizes = [len(mine) for mine in step]
        assert max(sizes) - min(sizes) <= 1 and all(sizes) == (sum(sizes) >= world)


@given(TOTALS, WORLDS, BATCHES, st.floats(0, 1))
def test_only_a_short_last_step_can_be_dropped(total: int, world: int, batch: int, cut: float) -> None:
    start = round(cut * total)
    read = in_steps(deals(total, world, batch, start, drop_last=True))
    assert read == list(range(start, total - total % batch))


def test_a_million_million_positions_cost_nothing() -> None:
    deal = Partition(10**12, ReaderSpec(rank=5, world=7, batch=1000, start=123_456_789, worker=1, workers=3))
    for index, position in enumerate(deal.positions(10**10, 10**10 + 300).tolist(), start=10**10):
        assert deal.count_before(position) == index and deal.count_before(position + 1) == index + 1
    assert deal.count_before(10**12) == len(deal)


def test_one_file_for_each_rank_unless_the_batch_is_said() -> None:
    assert [Partition(10, ReaderSpec(rank=rank, world=4)).positions().tolist() for rank in range(4)] == [
        [0, 4],
        [1, 5, 8],
        [2, 6],
        [3, 7, 9],
    ]


@pytest.mark.parametrize(
    "numbers",
    [
        {"rank": 1},
        {"rank": -1},
        {"world": 0},
        {"world": 1 << 40},
        {"worker": 2, "workers": 2},
        {"workers": 0},
        {"batch": 0},
        {"batch": 1 << 40},
        {"start": -1},
        {"start": 11},
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        Partition(10, ReaderSpec(**numbers))  # type: ignore[arg-type]  # a mistake in the keys would raise something else
