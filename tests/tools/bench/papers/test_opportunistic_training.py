"""The randomisation level of DeepIO is what its printed equations give, which is not what the paper prints."""

from math import log2

import pytest

from bench.papers.opportunistic_training import randomisation_level


def test_memory_for_all_images_gives_a_full_shuffle() -> None:
    assert randomisation_level(7, 1.0) == pytest.approx(1)


def test_two_rounds_of_four_images_are_as_computed_by_hand() -> None:
    crossed = 1 / 4 * log2(4) + 1 / 2 * log2(3) + 1 / 2 * log2(2)
    full = 1 / 4 * log2(4) + 1 / 3 * log2(3) + 1 / 2 * log2(2)
    assert randomisation_level(4, 0.5) == pytest.approx(crossed / full)


@pytest.mark.parametrize(("share", "printed"), [(0.25, 0.9696), (0.5, 0.9854)])
@pytest.mark.parametrize("images", [1_437, 8_000])
def test_no_printed_value_comes_out(images: int, share: float, printed: float) -> None:
    assert randomisation_level(images, share) > 1.5 > printed
