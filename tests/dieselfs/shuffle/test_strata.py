"""The order in which a repack stores files: vectors, a plain version of the rule, and proportions everywhere."""

from fractions import Fraction

import numpy as np
import pytest

from dieselfs.shuffle.strata import is_even, spread

MASK = (1 << 64) - 1
VECTORS = {24: [3, 6, 2, 0, 9, 7, 1, 4, 8, 5], 2**63 - 1: [4, 6, 5, 3, 8, 0, 9, 1, 7, 2]}


def mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def key(seed: int, part: int) -> int:
    return mix(mix(mix(seed) ^ part) ^ 10)


def plain_spread(strata: list[int], seed: int) -> list[int]:
    places = []
    for stratum in set(strata):
        files = [file for file, of in enumerate(strata) if of == stratum]
        files.sort(key=lambda file: mix(key(seed, 0) ^ mix(file)))
        phase = mix(key(seed, 1) ^ mix(stratum)) >> 32
        places += [((k << 32 | phase) // len(files), stratum, k, file) for k, file in enumerate(files)]
    return [file for *_, file in sorted(places)]


def test_the_vectors() -> None:
    strata = np.array([0] * 6 + [1] * 3 + [2], np.uint16)
    assert spread(strata, 24).tolist() == VECTORS[24]
    assert spread(strata, 2**63 - 1).tolist() == VECTORS[2**63 - 1]
    assert spread(strata[:0], 24).tolist() == []


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_the_rule_as_it_is_written(seed: int) -> None:
    strata = [file * file % 7 for file in range(500)]
    assert spread(np.array(strata, np.uint16), seed).tolist() == plain_spread(strata, seed)


def test_each_stretch_has_each_stratum_in_proportion() -> None:
    counts = np.array([1, 10, 997, 3000, 12_345])
    strata = np.repeat(np.arange(5, dtype=np.uint16), counts)
    stored = strata[spread(strata, 3)]
    for length in (1, 37, 1000, len(stored) // 2):
        for start in range(0, len(stored) - length, 211):
            found = np.bincount(stored[start : start + length], minlength=5)
            low = max(Fraction(int(n) - 1, int(total)) for n, total in zip(found, counts, strict=True))
            high = min(Fraction(int(n) + 1, int(total)) for n, total in zip(found, counts, strict=True))
            assert low < high  # one part of the whole, which every stratum is within a file of
            assert is_even(found, counts)


def test_a_chunk_of_few_classes_is_not_even() -> None:
    totals = np.array([1000, 1000, 0])
    assert is_even(np.array([500, 500, 0]), totals) and is_even(np.array([1, 0, 0]), totals)
    assert is_even(np.array([10, 8, 0]), totals) and not is_even(np.array([10, 7, 0]), totals)
    assert not is_even(np.array([40, 0, 0]), totals)
