"""Specs: every mistake gives one line with the field, the value and the range."""

import re
from typing import Any

import numpy as np
import pytest

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.spec import GROUP_CHUNKS_MAX, SEED_MAX, PlanSpec, ReaderSpec


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"seed": "x"}, f"seed is 'x': give a whole number from 0 to {SEED_MAX}"),
        ({"seed": -1}, "seed is -1: "),
        ({"seed": SEED_MAX + 1}, f"seed is {SEED_MAX + 1}: "),
        ({"epoch": 1.5}, "epoch is 1.5: "),
        ({"epoch": None}, "epoch is None: "),
        (
            {"group_chunks": GROUP_CHUNKS_MAX + 1},
            f"group_chunks is {GROUP_CHUNKS_MAX + 1}: give a whole number",
        ),
    ],
)
def test_numbers_of_a_plan(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(reason)):
        PlanSpec(**fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rank": 8, "world": 8}, "rank is 8: give a whole number from 0 to 7"),
        ({"rank": -1}, "rank is -1: give a whole number from 0 to 0"),
        ({"world": 0}, "world is 0: give a whole number from 1 to"),
        ({"worker": 2, "workers": 2}, "worker is 2: give a whole number from 0 to 1"),
        ({"batch": 0}, "batch is 0: give a whole number from 1 to"),
        ({"start": -1}, "start is -1: "),
    ],
)
def test_numbers_of_a_reader(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(reason)):
        ReaderSpec(**fields)


def test_the_numbers_of_numpy_are_taken_as_pythons() -> None:
    spec = PlanSpec(np.uint64(SEED_MAX), np.int32(2))  # type: ignore[arg-type]  # as arrays give them
    assert spec == PlanSpec(SEED_MAX, 2) and type(spec.seed) is int


def test_specs_are_keys() -> None:
    assert len({PlanSpec(1), PlanSpec(seed=1), PlanSpec(1, folder=b"f")}) == 2
