"""Each value once, without the import that NumPy's own function costs each process; and sorts in blocks."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs import arrays
from dieselfs.arrays import among, counts_of, distinct, grouped
from dieselfs.columns import starts_of


@given(st.lists(st.integers(-5, 5), max_size=20))
def test_each_value_once_ascending(values: list[int]) -> None:
    found = distinct(np.array(values, np.int32))
    assert found.tolist() == sorted({*values}) and found.dtype == np.int32


@given(st.lists(st.integers(-5, 5), max_size=20), st.lists(st.integers(-5, 5), max_size=20))
def test_which_values_are_among_others(values: list[int], others: list[int]) -> None:
    found = among(np.array(values, np.int32), others)
    assert found.tolist() == [each in others for each in values] and found.dtype == np.bool_


@pytest.mark.parametrize("call", ["distinct(wide)", "among(wide, wide)"])
def test_masked_arrays_are_not_imported(call: str) -> None:
    code = (
        "import sys, numpy, dieselfs.arrays as a; wide = numpy.arange(20) << 40; "
        f"a.{call}; sys.exit('numpy.ma' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_groups_are_those_of_a_stable_sort(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(arrays, "AT_ONCE", at_once)
    chosen = np.random.default_rng(3)
    for count in (0, 1, 50):
        groups = chosen.integers(0, 70_000, 5)[chosen.integers(0, 5, count)].astype(np.uint32)
        values = chosen.integers(0, 1 << 60, count, np.uint64)
        counts = counts_of(groups, 70_000)
        assert counts.tolist() == np.bincount(groups, minlength=70_000).tolist()
        assert (
            grouped(values, groups, starts_of(counts)).tolist()
            == values[np.argsort(groups, kind="stable")].tolist()
        )


def test_grouping_takes_memory_for_the_result_and_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "AT_ONCE", 1 << 14)
    values = np.arange(1 << 20, dtype=np.uint32)
    groups = values % np.uint32(1000)
    tracemalloc.start()
    try:
        found = grouped(values, groups, starts_of(counts_of(groups, 1000)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * len(found)  # 4 bytes each; a sort of all takes 20 and more
