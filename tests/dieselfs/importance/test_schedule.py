"""Repetition follows the validation accuracy and the loss, smoothing the loss."""

import math

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.importance.schedule import SMOOTHING_MAX, STEEP_DECLINE, Schedule, may_repeat


def test_cached_samples_are_repeated_while_accuracy_improves() -> None:
    schedule = Schedule(3.0)
    found = [schedule.repeats_now()]
    for accuracy in (50.0, 60.0, 65.0, 66.0, 64.0, 64.5, 60.0):
        schedule.note_accuracy(accuracy)
        found.append(schedule.repeats_now())
    # The last three differences: 60 to 64 (+), 65 to 64.5 (-), 66 to 60 (-).
    assert found == [3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("losses", "is_repeated"),
    [
        ([2.0], True),
        ([2.0, 1.5], True),
        ([2.0, 1.3], False),
        ([2.0, 1.3, 1.2], True),
        ([2.0, 1.5, 1.0, 0.5, 0.1], True),  # the curve is not steep where the loss is small
        ([1.0, 2.0, 1.3], False),
        ([1.0, 2.0], True),
    ],
)
def test_cached_samples_are_not_repeated_after_a_steep_decline_of_the_loss(
    losses: list[float], is_repeated: bool
) -> None:
    for accuracies in ([], [50.0, 60.0]):
        schedule = Schedule(3.0)
        for accuracy in accuracies:
            schedule.note_accuracy(accuracy)
        for loss in losses:
            schedule.end_epoch(loss)
        assert schedule.repeats_now() == (3.0 if is_repeated else 1.0)


def test_either_curve_ends_repetition() -> None:
    improving, stagnant, flat, steep = [50.0, 60.0], [60.0, 50.0, 60.0], -0.1, -STEEP_DECLINE
    assert may_repeat(improving, flat) and may_repeat([], flat)
    assert not may_repeat(improving, steep) and not may_repeat(stagnant, flat)
    assert not may_repeat(stagnant, steep) and not may_repeat([], steep)


def test_smoothing_follows_the_loss() -> None:
    schedule = Schedule(3.0)
    schedule.end_epoch(2.0)
    assert schedule.smoothing == pytest.approx(0.02) and schedule.smoothing_units == round(0.02 * 65536)
    schedule.end_epoch(1.0)
    assert schedule.smoothing == pytest.approx(0.02 * math.exp(-0.5))


def test_no_course_of_the_loss_makes_smoothing_useless() -> None:
    schedule = Schedule(3.0)
    for loss in (1.0, 0.0, 5.0, -3.0, 1e308, 1e-300, 1e308, -1e308):
        schedule.end_epoch(loss)
        assert 0 <= schedule.smoothing <= SMOOTHING_MAX


def test_an_accuracy_that_is_none() -> None:
    with pytest.raises(InvalidInput, match="the accuracy is nan"):
        Schedule(3.0).note_accuracy(math.nan)
