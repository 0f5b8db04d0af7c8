"""The bytes of deltas: what was encoded comes back, and anything else is one clear error."""

import numpy as np
import pytest

from dieselfs.errors import Damaged
from dieselfs.snapshot.delta_format import COLUMN_TYPES, PREAMBLE_BYTES, Delta, decode_delta, encode_delta

COLUMNS = {
    name: np.frombuffer(bytes(range(dtype.itemsize)) * (number % 3), dtype)
    for number, (name, dtype) in enumerate(COLUMN_TYPES.items())
}
DELTA = Delta(b"b" * 32, b"d" * 32, b"s" * 32, b"g" * 64, 8, 10**18, COLUMNS)


def test_a_delta_comes_back() -> None:
    decoded = decode_delta(encode_delta(DELTA), "delta")
    assert (decoded.base_digest, decoded.digest, decoded.generation) == (b"b" * 32, b"d" * 32, 8)
    assert (decoded.signer, decoded.signature, decoded.updated_ns) == (b"s" * 32, b"g" * 64, 10**18)
    for name, column in COLUMNS.items():
        assert decoded.columns[name].tobytes() == column.tobytes()


@pytest.mark.parametrize("place", [0, 8, 12, 16, PREAMBLE_BYTES - 1, PREAMBLE_BYTES, PREAMBLE_BYTES + 40])
def test_a_wrong_byte_of_the_head_is_named(place: int) -> None:
    data = bytearray(encode_delta(DELTA))
    data[place] ^= 1
    with pytest.raises(Damaged, match=r"^delta: offset "):
        decode_delta(data, "delta")


@pytest.mark.parametrize("length", [0, PREAMBLE_BYTES - 1, PREAMBLE_BYTES, PREAMBLE_BYTES + 9, -1])
def test_a_delta_that_is_cut_is_an_error(length: int) -> None:
    with pytest.raises(Damaged, match=r"^delta: offset "):
        decode_delta(encode_delta(DELTA)[:length], "delta")


def test_bytes_behind_the_columns_are_an_error() -> None:
    with pytest.raises(Damaged, match="the columns end at byte"):
        decode_delta(encode_delta(DELTA) + b"\0", "delta")
