"""Values as files: arrays, and the suffix of a content."""

import io

import numpy as np
import pytest

from dieselfs_tools.archives.importing.record import npy, npy_rows, suffix_of
from tests.support.documents import REPOSITORY


@pytest.mark.parametrize(
    "dtype", [np.uint8, np.int64, np.float32, ">f8", "U3", [("a", "i4"), ("b", "f2", 2)]]
)
@pytest.mark.parametrize("shape", [(4,), (4, 0), (4, 2, 3)])
def test_rows_are_files_of_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    rows = np.zeros(shape, dtype)
    rows.view(np.uint8).reshape(-1)[::3] = ord("7") if rows.dtype.kind != "U" else 0
    content = npy_rows(rows)
    for row in range(len(rows)):
        assert content(row) == npy(rows[row : row + 1].reshape(shape[1:]))
        loaded = np.load(io.BytesIO(content(row)))
        assert loaded.dtype == rows.dtype and loaded.shape == shape[1:]
        assert loaded.tobytes() == rows[row : row + 1].tobytes()


def test_rows_in_any_order_of_memory() -> None:
    rows = np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)
    assert (np.load(io.BytesIO(npy_rows(rows)(3))) == rows[3]).all()


def test_objects_are_no_file() -> None:
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        npy(np.array([{}], object))


def test_suffixes() -> None:
    assert suffix_of((REPOSITORY / "tests/samples/images/0.jpg").read_bytes()) == ".jpg"
    assert suffix_of(b"RIFF\0\0\0\0WEBPVP8 ") == ".webp"
    assert suffix_of(npy(np.zeros(1))) == ".npy"
    assert suffix_of(b"") == suffix_of(b"text") == ""
