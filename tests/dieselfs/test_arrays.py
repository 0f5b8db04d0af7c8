"""Each value once, without the import that NumPy's own function costs each process."""

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.arrays import distinct


@given(st.lists(st.integers(-5, 5), max_size=20))
def test_each_value_once_ascending(values: list[int]) -> None:
    found = distinct(np.array(values, np.int32))
    assert found.tolist() == sorted({*values}) and found.dtype == np.int32


def test_masked_arrays_are_not_imported() -> None:
    code = "import sys, numpy, dieselfs.arrays as a; a.distinct(numpy.arange(3)); sys.exit('numpy.ma' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
