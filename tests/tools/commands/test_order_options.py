"""The options that say which order is meant: what they mean, and which do not go together."""

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.spec import PlanSpec
from dieselfs_tools.commands.orders import OrderOptions, SkippedSteps

CURSOR = Cursor("ba591b1014c3337faa03c7f2", PlanSpec(1, 2, 100), 50)


def options(
    seed: int | None = None,
    cursor: Cursor | None = None,
    rank: int | None = None,
    world: int | None = None,
    batch: int | None = None,
) -> OrderOptions:
    return OrderOptions(seed, None, None, cursor, (), rank, world, batch, None)


def test_steps_to_skip_are_read_with_both_ends() -> None:
    assert SkippedSteps.parse("2:12300-12400") == SkippedSteps(2, 12300, 12400)
    assert SkippedSteps.parse("0:7") == SkippedSteps(0, 7, 7)
    assert SkippedSteps(0, 2, 3).positions(batch=10, total=100) == range(20, 40)
    assert SkippedSteps(0, 9, 20).positions(batch=10, total=95) == range(90, 95)  # to the end, and not beyond
    with pytest.raises(InvalidInput, match="there is no step 10 to skip: the epoch has 10 of 10 files"):
        SkippedSteps(0, 10, 20).positions(batch=10, total=95)


@pytest.mark.parametrize("text", ["", "2", "2:", ":1", "2:3-", "2:3-4-5", "2:5-4", "-1:3", "a:b", "2:3,4"])
def test_what_are_no_steps_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        SkippedSteps.parse(text)


@pytest.mark.parametrize(
    "contradiction",
    [options(rank=7), options(world=8), options(seed=1, cursor=CURSOR), options(batch=0)],
)
def test_options_that_do_not_go_together_are_refused(contradiction: OrderOptions) -> None:
    with pytest.raises(InvalidInput):
        contradiction.check()


def test_others_do() -> None:
    options(seed=1, rank=7, world=8, batch=3).check()
    options(cursor=CURSOR, rank=0, world=1).check()
