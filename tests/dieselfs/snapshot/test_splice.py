"""Splices: elements are removed and added, the others keep their order."""

from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.snapshot.splice import Splice, runs_of

words = st.lists(st.binary(max_size=4), max_size=12)


def column(strings: list[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    return np.frombuffer(b"".join(strings), np.uint8), np.cumsum(
        [len(each) for each in strings], dtype=np.int64
    )


@given(words, words, st.randoms(use_true_random=False))
def test_a_splice_does_what_a_list_does(old: list[bytes], added: list[bytes], draw: Random) -> None:
    removed = sorted(draw.sample(range(len(old)), draw.randint(0, len(old))))
    total = len(old) - len(removed) + len(added)
    places = sorted(draw.sample(range(total), len(added)))
    expected = [each for number, each in enumerate(old) if number not in removed]
    for place, each in zip(places, added, strict=True):
        expected.insert(place, each)

    splice = Splice(len(old), np.array(removed, np.int64), np.array(places, np.int64))
    blob, ends = splice.strings(column(old), column(added))
    assert (blob.tobytes(), ends.tolist()) == (b"".join(expected), column(expected)[1].tolist())
    lengths = splice.column(*(np.array([len(each) for each in some], np.int64) for some in (old, added)))
    assert lengths.tolist() == [len(each) for each in expected]
    for number, place in enumerate(splice.new_of_old.tolist()):
        assert place == -1 if number in removed else expected[place] == old[number]


@pytest.mark.parametrize(
    ("removed", "added"), [([3], []), ([1, 1], []), ([1, 0], []), ([], [4]), ([], [1, 0]), ([0], [3])]
)
def test_numbers_out_of_order_or_range_are_refused(removed: list[int], added: list[int]) -> None:
    with pytest.raises(IndexError):
        Splice(3, np.array(removed, np.int64), np.array(added, np.int64))


@pytest.mark.parametrize("ends", [[3, 2], [9], [2], [1, 4]])
def test_strings_out_of_range_are_refused(ends: list[int]) -> None:
    splice = Splice(0, np.zeros(0, np.int64), np.arange(len(ends)))
    empty = np.zeros(0, np.uint8), np.zeros(0, np.int64)
    with pytest.raises(IndexError):
        splice.strings(empty, (np.zeros(3, np.uint8), np.array(ends, np.int64)))


def test_runs_are_joined() -> None:
    assert runs_of(np.array([7, 3, 0]), np.array([2, 0, 3])).tolist() == [7, 8, 0, 1, 2]
