"""Columns of strings, and the path rules applied to a whole column at once."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dieselfs import columns
from dieselfs.columns import ends_fault, ends_of, first_bad_path, split_blob
from dieselfs.limits import NAME_BYTES_MAX, PATH_BYTES_MAX, PATH_DEPTH_MAX
from dieselfs.names import path_fault
from tests.dieselfs.test_names import BAD_PATHS, GOOD_PATHS

any_paths = st.one_of(
    st.lists(st.sampled_from([b"/", b".", b"..", b"\0", b"a", b"bc", b"\xff"]), max_size=8).map(b"".join),
    st.integers(NAME_BYTES_MAX - 1, NAME_BYTES_MAX + 1).map(lambda length: b"n" * length),
    st.integers(NAME_BYTES_MAX - 1, NAME_BYTES_MAX + 1).map(lambda length: b"d/" + b"n" * length + b"/e"),
    st.integers(PATH_DEPTH_MAX - 1, PATH_DEPTH_MAX + 1).map(lambda depth: b"/".join([b"p"] * depth)),
    st.integers(PATH_BYTES_MAX - 1, PATH_BYTES_MAX + 1).map(
        lambda length: (b"q" * 99 + b"/") * 40 + b"r" * (length - 4000)
    ),
    st.binary(max_size=6),
)


def first_bad(paths: list[bytes]) -> int | None:
    return first_bad_path(b"".join(paths), ends_of(paths))


def first_bad_by_names(paths: list[bytes]) -> int | None:
    return next((index for index, path in enumerate(paths) if path_fault(path) is not None), None)


@settings(max_examples=500)
@given(st.lists(any_paths, max_size=8))
@example([])
@example([b""])
@example([b"", b"", b"a", b"", b"/"])
@example([b"a", b"/"])
def test_the_rules_are_those_of_names(paths: list[bytes]) -> None:
    assert first_bad(paths) == first_bad_by_names(paths)


@pytest.mark.parametrize("path", [*GOOD_PATHS, *BAD_PATHS])
def test_each_path_between_good_neighbours(path: bytes) -> None:
    expected = None if path in GOOD_PATHS else 1
    assert first_bad([b"a/b", path, b"c"]) == expected


def test_block_by_block_is_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BLOCK_BYTES", 5000)
    paths = [b"", *[b"folder/name%d" % number for number in range(3000)], b"", b"x/" * 1500 + b"x"]
    assert first_bad(paths) == len(paths) - 1
    for bad in (0, 1, 1234, 3000, 3001):
        assert first_bad([*paths[:bad], b"a//b", *paths[bad:]]) == bad
        assert first_bad([*paths[:bad], b"p" * 6000, *paths[bad:]]) == bad
    assert first_bad(paths[:-1]) is None


@given(st.lists(st.binary(max_size=10)))
def test_strings_round_trip(strings: list[bytes]) -> None:
    blob, ends = b"".join(strings), ends_of(strings)
    assert ends_fault(ends, len(blob)) is None
    assert split_blob(blob, ends) == strings
    assert split_blob(memoryview(blob), ends.astype("<u4")) == strings


@pytest.mark.parametrize(
    ("ends", "length", "fault"),
    [
        ([], 1, "bytes without an entry"),
        ([2, 1], 1, "ends are not ascending"),
        ([1, 3, 2, 4], 4, "ends are not ascending"),
        ([1, 2], 3, "the last end is 2, the column has 3 bytes"),
        ([1, 4], 3, "the last end is 4, the column has 3 bytes"),
        ([(1 << 64) - 1], 3, "ends are not ascending"),
        ([3, 1 << 63, 3], 3, "ends are not ascending"),
    ],
)
def test_ends_that_cannot_be(ends: list[int], length: int, fault: str) -> None:
    assert ends_fault(np.array(ends, np.uint64), length) == fault
