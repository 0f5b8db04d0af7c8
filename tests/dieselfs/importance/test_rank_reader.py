"""Ranks together read each position once, agree on the order, and resume with another number of them."""

import copy
from threading import BrokenBarrierError
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.importance.course import Course
from dieselfs.importance.rank_reader import RankReader
from dieselfs.samples.ranks import Gather, alone
from tests.support.gathering import run_ranks

SAMPLES = 30


def reader(
    batch: int = 8, rank: int = 0, world: int = 1, gather: Gather = alone, **options: Any
) -> RankReader:
    return RankReader(Course(SAMPLES, 1, 6), batch, rank, world, gather=gather, **options)


def train(one: RankReader, steps: int = SAMPLES) -> list[list[int]]:
    """The next steps of an epoch; what this rank read in each."""
    found = []
    for _, (_, samples) in zip(range(steps), one.steps(), strict=False):
        one.consume()
        one.record([(sample * 7 % 11 + 1.0) / (1 + one.epoch / 10) for sample in samples])
        found.append(samples)
    return found


@settings(max_examples=25, deadline=None)
@given(world=st.integers(1, 4), spare=st.integers(0, 9), start=st.integers(0, 3), drop_last=st.booleans())
def test_ranks_read_each_position_once(world: int, spare: int, start: int, drop_last: bool) -> None:
    batch = world + spare

    def read(rank: int, gather: Gather) -> tuple[list[list[int]], int]:
        one = reader(batch, rank, world, gather if world > 1 else alone, drop_last=drop_last)
        for epoch in range(2):
            one.set_epoch(epoch)
            begun = train(one, start)
            rest = train(one)
        assert len(begun) + len(rest) == len(one)
        return begun + rest, one.position

    found = run_ranks(world, read)
    assert len({len(steps) for steps, _ in found}) == 1, "ranks have different numbers of batches"
    assert len({position for _, position in found}) == 1
    course = reader().course  # the same course, read by nobody
    course.set_epoch(0)
    read_samples = sorted(sample for steps, _ in found for step in steps for sample in step)
    end = found[0][1]
    assert len(read_samples) == end and (end == SAMPLES or drop_last)


def test_the_second_epoch_is_the_same_for_all_ranks_and_depends_on_all_losses() -> None:
    def read(rank: int, gather: Gather) -> tuple[list[int], list[int]]:
        one = reader(8, rank, 2, gather)
        train(one)
        one.note_accuracy(1)
        one.set_epoch(1)
        return one.course.order.samples.tolist(), one.course.cache.scores.tolist()

    (order, scores), (other_order, other_scores) = run_ranks(2, read)
    assert order == other_order and scores == other_scores
    assert min(scores) > 0, "a sample of the other rank has no score"


@settings(max_examples=15, deadline=None)
@given(first=st.integers(1, 3), then=st.integers(1, 3), steps=st.integers(0, 4))
def test_another_number_of_ranks_reads_the_rest_of_the_epoch(first: int, then: int, steps: int) -> None:
    def begin(rank: int, gather: Gather) -> tuple[list[list[int]], dict[str, Any]]:
        one = reader(6, rank, first, gather if first > 1 else alone)
        train(one)
        one.set_epoch(1)
        begun = train(one, steps)
        one.exchange()
        return begun, copy.deepcopy(one.state())

    begun = run_ranks(first, begin)

    def resume(rank: int, gather: Gather) -> tuple[list[list[int]], list[int]]:
        one = reader(9, rank, then, gather if then > 1 else alone)
        one.load(begun[0][1])
        return train(one), one.course.order.samples.tolist()

    resumed = run_ranks(then, resume)
    read = [sample for steps_of, _ in [*begun, *resumed] for step in steps_of for sample in step]
    assert sorted(read) == sorted(resumed[0][1])


def test_losses_go_to_the_samples_that_were_served() -> None:
    """Whatever the order: the hardest sample of each batch has the highest score of it."""
    one = reader(10)
    for _, samples in one.steps():
        one.consume()
        one.record([float(sample) for sample in samples])
        scores = one.course.cache.scores[samples]
        assert np.argsort(scores).tolist() == np.argsort(samples).tolist()


def test_losses_with_their_samples() -> None:
    one = reader(10)
    _, samples = next(one.steps())
    one.consume()
    one.record([3.0, 2.0], samples[:2][::-1])
    assert one.course.cache.scores[samples[1]] > one.course.cache.scores[samples[0]] > 0
    with pytest.raises(InvalidInput, match="there are 30 samples"):
        one.record([1.0], [30])


@pytest.mark.parametrize("ahead", [1, 3])
def test_what_readers_ahead_hold_is_released_when_the_cache_does_not_keep_it(ahead: int) -> None:
    """Workers read `ahead` steps before training; some steps are abandoned."""
    one = reader(5)
    held: set[int] = set()
    for epoch in range(4):
        one.set_epoch(epoch)
        while one.position < SAMPLES:
            steps = one.steps()
            taken = [samples for _, samples in (next(steps, (0, [])) for _ in range(ahead)) if samples]
            held |= {sample for samples in taken for sample in samples}
            for number in range(min(2, len(taken))):
                held -= {*one.consume()}
                one.record(np.arange(5.0))
                still_ahead = {sample for samples in taken[number + 1 :] for sample in samples}
                assert held == {*one.course.cache.samples().tolist()} | still_ahead


def test_weights_of_losses() -> None:
    one = reader(10)
    train(one)
    one.set_epoch(1)
    _, samples = next(one.steps())
    one.consume()
    assert one.loss_weights().tolist() == one.course.order.loss_weights(np.array(samples)).tolist()
    one.record(np.ones(10))
    with pytest.raises(InvalidInput, match="no batch to weigh"):
        one.loss_weights()
    assert one.loss_weights(samples[:1]).shape == (1,)


def test_statistics() -> None:
    one = reader(10)
    train(one)
    assert one.statistics() == {"reads": 30, "hits": 0, "different": 30}


def test_misuse() -> None:
    one = reader(10)
    with pytest.raises(InvalidInput, match="no batch that these losses are of"):
        one.record([1.0])
    with pytest.raises(InvalidInput, match="more batches were consumed"):
        one.consume()
    next(one.steps())
    one.consume()
    with pytest.raises(InvalidInput, match=r"shape \(3,\), the batch has 10"):
        one.record(np.ones(3))
    one.record(np.ones(10))
    with pytest.raises(InvalidInput, match="no batch that these losses are of"):
        one.record(np.ones(10))
    with pytest.raises(InvalidInput, match="too few for 4 ranks"):
        reader(3, 0, 4, gather=lambda one: [one])
    with pytest.raises(InvalidInput, match="pass gather="):
        reader(8, 0, 2)
    with pytest.raises(InvalidInput, match="its position is 31"):
        one.load({**one.state(), "position": 31})
    with pytest.raises(InvalidInput, match="its position is None"):
        one.load({})


def test_a_wrong_number_of_ranks() -> None:
    with pytest.raises(InvalidInput, match="1 ranks exchange losses, not 2"):
        next(reader(8, 0, 2, gather=lambda one: [one]).steps())


def test_ranks_with_different_orders() -> None:
    def read(rank: int, gather: Gather) -> str:
        one = RankReader(Course(SAMPLES, rank), 8, rank, 2, gather=gather)
        try:
            next(one.steps())
        except (InvalidInput, BrokenBarrierError) as error:
            return str(error)
        return ""

    assert all("rank 1 has another order than rank 0" in error for error in run_ranks(2, read))
