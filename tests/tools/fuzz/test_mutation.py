"""Mutations repeat with their seed, and are never the same for long."""

import random

from fuzz.mutation import mutated

INPUTS = [b"one input", b"another", bytes(range(200))]


def test_a_seed_gives_the_same_mutations() -> None:
    first, again = (
        [mutated(chance, INPUTS) for _ in range(300)] for chance in (random.Random(7), random.Random(7))
    )
    assert first == again
    assert len(set(first)) > 250


def test_an_empty_input_stays_an_input() -> None:
    assert mutated(random.Random(1), [b""]) == b""
