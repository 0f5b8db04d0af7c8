"""Every parser takes its valid inputs, and refuses what the fuzzer made of them with an error that it declares."""

import random

import pytest

from dieselfs.errors import DieselfsError
from fuzz.__main__ import CORPUS, fault_of, inputs_of
from fuzz.libraries import LIBRARY_TARGETS
from fuzz.mutation import mutated
from fuzz.target import Target
from fuzz.targets import TARGETS

NAMES = [target.name for target in TARGETS]
MUTATIONS, MUTATIONS_OF_LIBRARIES = 200, 8
"""A process is forked for each input of a library."""
ALL = [
    pytest.param(target, id=target.name, marks=[pytest.mark.processes] if target in LIBRARY_TARGETS else [])
    for target in TARGETS
]


def test_names_are_unique_and_all_of_the_corpus_is_tried() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= set(NAMES)


@pytest.mark.parametrize("target", ALL)
def test_what_was_found_once_stays_mended(target: Target) -> None:
    for data in inputs_of(target):
        assert fault_of(target, data) is None


@pytest.mark.parametrize("target", ALL)
def test_two_hundred_mutations(target: Target) -> None:
    chance = random.Random(5)
    inputs = inputs_of(target)
    for _ in range(MUTATIONS_OF_LIBRARIES if target in LIBRARY_TARGETS else MUTATIONS):
        data = mutated(chance, inputs)
        assert fault_of(target, data) is None, data


def test_an_undeclared_error_is_a_finding() -> None:
    def broken(data: bytes) -> None:
        raise KeyError(data) if data else DieselfsError("refused")

    target = Target("broken", broken, [b"x"])
    assert fault_of(target, b"") is None
    assert "KeyError" in (fault_of(target, b"x") or "")
