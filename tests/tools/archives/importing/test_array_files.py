"""Arrays of .npy and safetensors files: equal to what NumPy and safetensors read, and headers that lie."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dieselfs.errors import Damaged, InvalidInput
from dieselfs.raw_array import raw_form, raw_name
from tests.support.importing import contents, read_all

IMAGES = np.random.default_rng(1).integers(0, 255, (20, 4, 6), np.uint8)
TENSORS = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "bias": np.array(2.5),
    "none": np.zeros((0, 3)),
}


def loaded(content: bytes) -> Any:
    return np.load(io.BytesIO(content))


def test_names_of_arrays_can_be_read() -> None:
    for dtype, shape in (("uint8", (32, 32, 3)), ("bfloat16", ()), ("float8_e4m3fn", (0,))):
        assert raw_form(raw_name("a.3/b", dtype, shape)) == (dtype, shape)
    for name in ("a.jpg", "a.2x.float32", "float32", "a.scalar.", f"a.{'9' * 20}.int8"):
        with pytest.raises(InvalidInput, match=r"its name does not end as an array, in \.SHAPE\.TYPE"):
            raw_form(name)


def test_rows_of_an_npy_file(tmp_path: Path) -> None:
    path = tmp_path / "train.npy"
    np.save(path, IMAGES)
    found = contents(path)
    assert len(found) == len(IMAGES)
    for row, image in enumerate(IMAGES):
        assert np.array_equal(loaded(found[f"train/{row:08}.npy"]), image)
    assert np.array_equal(loaded(contents(path, is_by_row=False)["train.npy"]), IMAGES)

    found = contents(path, is_in_place=True)
    for row, image in enumerate(IMAGES):
        assert found[f"train/{row:08}.4x6.uint8"] == image.tobytes()
    assert contents(path, is_by_row=False, is_in_place=True) == {"train.20x4x6.uint8": IMAGES.tobytes()}


@pytest.mark.parametrize(
    ("array", "fault"),
    [
        (
            np.arange(4, dtype=">i4").reshape(1, 4),
            "its type has no form in place; store it with dlcmd import",
        ),
        (np.arange(4), "it has 4 rows of 8 bytes: --whole makes one file of it, --rows a file of each row"),
    ],
)
def test_arrays_that_are_not_attached(tmp_path: Path, array: Any, fault: str) -> None:
    np.save(tmp_path / "a.npy", array)
    (record,) = read_all(tmp_path / "a.npy", is_in_place=True)
    assert record.fault == fault


def test_npy_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for array, match in ((np.array([{}]), "objects of Python"), (np.ones((2, 3)).T, "Fortran order")):
        np.save(path, array)
        with pytest.raises(InvalidInput, match=match):
            read_all(path)
    np.save(path, IMAGES)
    whole = path.read_bytes()
    for content in (whole[:7], whole[:50], whole[:-1], whole.replace(b"(20, 4, 6)", b"(99, 9, 9)")):
        path.write_bytes(content)
        for is_in_place in (False, True):
            with pytest.raises(Damaged):
                read_all(path, is_in_place=is_in_place)


def test_tensors_of_safetensors(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy", reason="the extra 'test' is not installed")
    path = tmp_path / "x.safetensors"
    numpy.save_file(TENSORS, path)
    found = contents(path)
    assert found.keys() == {f"{name}.npy" for name in TENSORS}
    for name, tensor in TENSORS.items():
        assert np.array_equal(loaded(found[f"{name}.npy"]), tensor)


@pytest.mark.parametrize(
    "facts",
    [
        {"shape": [2], "data_offsets": [0, 9]},
        {"shape": [2], "data_offsets": [90, 98]},
        {"shape": [-2], "data_offsets": [0, -8]},
        {"shape": [2.0], "data_offsets": [0, 8]},
        {"shape": [1 << 62, 4], "data_offsets": [0, 1 << 66]},
        {"shape": [2], "data_offsets": [4, 12]},
        {"shape": "2", "data_offsets": [0, 8]},
        [],
    ],
)
def test_tensors_outside_of_the_file(tmp_path: Path, facts: Any) -> None:
    first = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    second = {"dtype": "F32", **facts} if facts else facts
    header = json.dumps({"a": first, "b": second}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    for is_in_place in (False, True):
        with pytest.raises(Damaged):
            read_all(path, "safetensors", is_in_place=is_in_place)
    path.write_bytes(struct.pack("<Q", 1 << 40) + header)
    with pytest.raises(Damaged, match="limit"):
        read_all(path, "safetensors")
