"""Records of TFRecord files, as TensorFlow wrote them, cut off and damaged."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import Damaged
from dieselfs_tools.archives.importing.tfrecord_file import frames, is_tfrecord, masked_crc
from tests.support.documents import REPOSITORY
from tests.support.importing import contents, read_all

google_crc32c = pytest.importorskip("google_crc32c", reason="the extra 'import' is not installed")

SAMPLES = REPOSITORY / "tests/samples"


def framed(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    checksums = [struct.pack("<I", masked_crc(google_crc32c.value(part))) for part in (length, content)]
    return length + checksums[0] + content + checksums[1]


@pytest.mark.parametrize("name", ["tensorflow.tfrecord", "tensorflow-gzip.tfrecord"])
def test_examples_of_tensorflow(name: str) -> None:
    found = contents(SAMPLES / name)
    for n in range(4):
        assert found.pop(f"0000000{n}.image.encoded.jpg") == (SAMPLES / f"images/{n}.jpg").read_bytes()
        label = np.load(io.BytesIO(found.pop(f"0000000{n}.image.class.label.npy")))
        assert (label.dtype, label.tolist()) == (np.int64, [n - 1])
        boxes = np.load(io.BytesIO(found.pop(f"0000000{n}.boxes.npy")))
        assert boxes.dtype == np.float32 and (boxes == np.array([0.5, n, 1 / 3], np.float32)).all()
        assert found.pop(f"0000000{n}.names.0") == b"a"
        assert found.pop(f"0000000{n}.names.1") == "ä".encode()
    assert not found


def test_records_that_are_no_examples() -> None:
    found = contents(SAMPLES / "tensorflow-raw.tfrecord")
    assert found == {"00000000": b"not an example", "00000001": b""}


def test_it_is_recognized_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes((SAMPLES / "tensorflow.tfrecord").read_bytes())
    assert len(read_all(tmp_path / "x")) == 20
    assert not is_tfrecord(b"x" * 12) and not is_tfrecord(b"")


@given(st.lists(st.binary(max_size=50), max_size=5), st.data())
def test_a_flipped_bit_or_an_early_end_is_never_missed(records: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(map(framed, records))
    assert list(frames(io.BytesIO(whole))) == records
    if whole:
        place = data.draw(st.integers(0, 8 * len(whole) - 1))
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(Damaged):
            list(frames(io.BytesIO(damaged)))
        length = data.draw(st.integers(0, len(whole) - 1))
        ends = [len(b"".join(map(framed, records[:count]))) for count in range(len(records))]
        if length not in ends:
            with pytest.raises(Damaged, match="cut off"):
                list(frames(io.BytesIO(whole[:length])))
