import numpy as np
import pytest

from dieselfs.cluster.warmth import Warmth, together


@pytest.mark.parametrize(
    ("pinned", "kept_max", "lacking", "share"),
    [
        (0, 100, [10, 10], 0.0),
        (20, 100, [10, 10], 0.5),
        (20, 100, [], 1.0),
        (20, 40, [10] * 100, 0.5),
        (35, 40, [10] * 100, 1.0),  # none of them fits any more
        (35, 40, [10, 5], 35 / 40),
        (0, 0, [10], 1.0),
        (0, 5, [10], 1.0),
    ],
)
def test_it_is_warm_when_nothing_more_can_come(
    pinned: int, kept_max: int, lacking: list[int], share: float
) -> None:
    assert Warmth.of(pinned, kept_max, np.array(lacking, np.int64), 0).share == share


def test_those_that_are_not_known_are_taken_to_be_cold() -> None:
    known = [Warmth(100, 100), Warmth(50, 200, 1)]
    assert together(known, 0, 900) == Warmth(150, 300, 1)
    assert together(known, 2, 900) == Warmth(150, 600, 1)
    assert together([], 3, 900) == Warmth(0, 900)


def test_those_that_are_not_known_want_no_more_than_the_dataset_has() -> None:
    known = [Warmth(100, 100), Warmth(50, 200)]
    assert together(known, 2, 400) == Warmth(150, 400)
    assert together(known, 2, 200) == Warmth(150, 300), "two take a chunk for theirs, for a moment"
