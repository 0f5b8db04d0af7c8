"""Splices: elements are removed and added, the others keep their order."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.snapshot.splice import Splice, runs_of

words = st.lists(st.binary(max_size=4), max_size=12)


@given(words, words, st.randoms(use_true_random=False))
def test_a_splice_does_what_a_list_does(old: list[bytes], added: list[bytes], draw: Random) -> None:
    removed = sorted(draw.sample(range(len(old)), draw.randint(0, len(old))))
    total = len(old) - len(removed) + len(added)
    places = sorted(draw.sample(range(total), len(added)))
    expected = [each for number, each in enumerate(old) if number not in removed]
    for place, each in zip(places, added, strict=True):
        expected.insert(place, each)

    splice = Splice(len(old), np.array(removed, np.int64), np.array(places, np.int64))
    lengths = splice.column(*(np.array([len(each) for each in some], np.int64) for some in (old, added)))
    assert lengths.tolist() == [len(each) for each in expected]
    new_of_old = splice.new_of_old(np.arange(len(old)))
    for number, place in enumerate(new_of_old.tolist()):
        assert place == -1 if number in removed else expected[place] == old[number]
    kept = [number for number in range(len(old)) if number not in removed]
    old_of_new = splice.old_of_new(np.arange(total)).tolist()
    assert [number for number in old_of_new if number >= 0] == kept
    assert [place for place, number in enumerate(old_of_new) if number < 0] == places


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 30)), st.integers(0, 4))
def test_the_shifts_of_elements_in_any_order(removed: set[int], added: set[int], block_bits: int) -> None:
    splice = Splice(80, np.array(sorted(removed), np.int64), np.array(sorted(added), np.int64))
    places = splice.new_of_old(np.arange(80))
    kept = np.flatnonzero(places >= 0)[::-1]
    with pytest.MonkeyPatch.context() as small:
        small.setattr("dieselfs.snapshot.splice._BLOCK_BITS", block_bits)
        assert splice.shifts(np.append(kept, -1)).tolist() == [*(places[kept] - kept).tolist(), 0]
        for each in removed:
            with pytest.raises(IndexError):
                splice.shifts(np.array([79, each]))


@pytest.mark.parametrize(
    ("removed", "added"), [([3], []), ([1, 1], []), ([1, 0], []), ([], [4]), ([], [1, 0]), ([0], [3])]
)
def test_numbers_out_of_order_or_range_are_refused(removed: list[int], added: list[int]) -> None:
    with pytest.raises(IndexError):
        Splice(3, np.array(removed, np.int64), np.array(added, np.int64))


def test_runs_are_joined() -> None:
    assert runs_of(np.array([7, 3, 0]), np.array([2, 0, 3])).tolist() == [7, 8, 0, 1, 2]
