"""A training that is interrupted anywhere continues as it would have; ranks agree; damaged states are refused."""

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.importance.course import Course
from dieselfs.importance.scores import Losses

SAMPLES, BATCH = 40, 8


def losses_of(samples: Any, epoch: int) -> Losses:
    """As of a network that learns, without chance; no decline is steep."""
    values: Losses = (samples * 7 % 11 + 1.0) / (1 + epoch / 10)
    return values


def train(course: Course, first: int, end: int) -> list[int]:
    """Steps `first` up to `end` of an epoch; the samples that were released."""
    released = []
    for start in range(first * BATCH, end * BATCH, BATCH):
        released += course.read(start, start + BATCH)
        positions = np.arange(start, start + BATCH)
        samples = course.order.samples[positions]
        course.record(positions, samples, losses_of(samples, course.epoch))
        course.take([course.pending()])
    return released


def orders(course: Course, epochs: int) -> list[list[int]]:
    found = []
    for epoch in range(epochs):
        course.set_epoch(epoch)
        found.append(course.order.samples.tolist())
        train(course, 0, SAMPLES // BATCH)
        course.schedule.note_accuracy(epoch)
    return found


def test_a_training() -> None:
    course = Course(SAMPLES, seed=1, capacity=8)
    first, *later = orders(course, 5)
    assert sorted(first) == list(range(SAMPLES))
    assert len({tuple(order) for order in later}) == 4
    easy = [sample for sample in range(SAMPLES) if sample * 7 % 11 < 5]
    drawn = np.bincount(np.concatenate(later), minlength=SAMPLES)
    assert drawn[easy].mean() < np.delete(drawn, easy).mean()
    assert len(course.cache) == 8 and course.reads == SAMPLES and 0 < course.hits < SAMPLES


@settings(max_examples=30, deadline=None)
@given(epoch=st.integers(0, 2), step=st.integers(0, SAMPLES // BATCH), repeats=st.sampled_from([1.0, 3.0]))
def test_it_resumes_at_every_step(epoch: int, step: int, repeats: float) -> None:
    whole = Course(SAMPLES, 3, 8, repeats=repeats)
    orders(whole, epoch)
    whole.set_epoch(epoch)
    train(whole, 0, step)
    resumed = Course(SAMPLES, 99, 8)
    resumed.load(copy.deepcopy(whole.state()))
    assert resumed.order.samples.tolist() == whole.order.samples.tolist()
    for course in (whole, resumed):
        train(course, step, SAMPLES // BATCH)
        course.set_epoch(epoch + 1)
        course.schedule.note_accuracy(epoch)  # as validation follows the last batch
    for name, value in whole.state().items():
        assert np.array_equal(resumed.state()[name], value), name
    assert resumed.order.samples.tolist() == whole.order.samples.tolist()
    samples = np.arange(SAMPLES)
    assert resumed.order.loss_weights(samples).tolist() == whole.order.loss_weights(samples).tolist()


def test_ranks_that_exchange_their_records_have_one_order() -> None:
    """Of a sample that both trained on, the loss at the later position counts, whichever rank has it."""
    ranks = [Course(SAMPLES, 5, 8), Course(SAMPLES, 5, 8)]
    for epoch in range(3):
        for number, course in enumerate(ranks):
            course.set_epoch(epoch)
            for start in range(0, SAMPLES, BATCH):
                course.read(start, start + BATCH)
                own = np.arange(start + number * BATCH // 2, start + (number + 1) * BATCH // 2)
                samples = course.order.samples[own]
                course.record(own, samples, losses_of(samples, epoch))
        pending = [course.pending() for course in ranks]
        for number, course in enumerate(ranks):
            assert len(course.pending().samples)
            course.take(pending if number else pending[::-1])
        for name, value in ranks[0].state().items():
            assert np.array_equal(ranks[1].state()[name], value), name
        assert ranks[0].order.samples.tolist() == ranks[1].order.samples.tolist()


def test_what_the_cache_releases_it_does_not_have() -> None:
    course = Course(SAMPLES, 1, 6)
    held: set[int] = set()
    for epoch in range(4):
        course.set_epoch(epoch)
        for step in range(SAMPLES // BATCH):
            held |= set(course.order.samples[step * BATCH : (step + 1) * BATCH].tolist())
            held -= set(train(course, step, step + 1))
            assert held == set(course.cache.samples().tolist())


def test_records_that_other_ranks_do_not_have() -> None:
    course = Course(SAMPLES)
    course.record(np.arange(3), np.arange(3), np.ones(3))
    for refused in (course.state, lambda: course.set_epoch(1)):
        with pytest.raises(InvalidInput, match="other ranks do not have"):
            refused()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scores": np.zeros(41, np.uint32)}, "the state is of 41 samples, the dataset has 40"),
        ({"epoch_scores": np.zeros(3, np.uint32)}, "its arrays have different lengths"),
        ({"cached": [3, 40]}, "names a sample that does not exist"),
        ({"epoch_cached": [-1]}, "names a sample that does not exist"),
        ({"version": 2}, "the state has version 2"),
        ({"seed": None}, "it has no 'seed'"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change: dict[str, Any], says: str) -> None:
    course = Course(SAMPLES, 4, 8)
    state = {
        name: value
        for name, value in {**course.state(), **change}.items()
        if value is not None or name == "loss"
    }
    before = course.state()
    with pytest.raises(InvalidInput, match=says):
        course.load(state)
    assert all(np.array_equal(course.state()[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"samples": 0}, "no samples"),
        ({"seed": -1}, "seed is -1"),
        ({"capacity": -1}, "the cache has -1"),
        ({"repeats": 0.5}, "repeats is 0.5"),
    ],
)
def test_numbers_out_of_range(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Course(**{"samples": SAMPLES, **arguments})
    with pytest.raises(InvalidInput, match="epoch is -1"):
        Course(SAMPLES).set_epoch(-1)


def test_an_accuracy_counts_for_the_epoch_that_has_not_begun() -> None:
    course = Course(SAMPLES, 1, 20)
    orders(course, 2)
    course.set_epoch(2)
    before = copy.deepcopy(course)
    course.schedule.note_accuracy(-100)
    assert course.order.samples.tolist() != before.order.samples.tolist()
    begun = course.order.samples.tolist()
    course.schedule.note_accuracy(100)
    assert course.order.samples.tolist() == begun
