"""The flat map at the head of a chunk or a snapshot.

(What chunks do with hostile maps: `chunk/test_format.py`.)
"""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.fields import TEXT_BYTES_MAX, FieldsFault, pack_fields, unpack_fields

KINDS: dict[str, type] = {"name": str, "size": int, "data": bytes}
FIELDS: dict[str, str | int | bytes] = {"name": "n", "size": 3, "data": b"abc"}


@given(st.text(max_size=60), st.integers(-(1 << 63), (1 << 64) - 1), st.binary())
def test_round_trip(name: str, size: int, data: bytes) -> None:
    fields: dict[str, str | int | bytes] = {"name": name, "size": size, "data": data}
    assert unpack_fields(pack_fields(fields), KINDS) == fields
    assert unpack_fields(memoryview(pack_fields(fields)), KINDS) == fields


def test_fields_keep_their_order_and_may_come_in_any() -> None:
    backwards = dict(reversed(FIELDS.items()))
    assert pack_fields(FIELDS) != pack_fields(backwards)
    assert unpack_fields(pack_fields(backwards), KINDS) == FIELDS


@pytest.mark.parametrize(
    ("packed", "fault"),
    [
        (b"", "OutOfData"),
        (pack_fields(FIELDS)[:-1], "OutOfData"),
        (pack_fields(FIELDS) + b"\0", "the map ends at byte"),
        (b"\x80", "0 fields, not 3"),
        (msgpack.packb({**FIELDS, "more": 1}), "4 fields, not 3"),
        (msgpack.packb({"name": "n", "size": 3, "date": b""}), "'date' does not belong here"),
        (msgpack.packb({"name": "n", "size": 3, 7: b""}), "name of a field is not text"),
        (msgpack.packb({**FIELDS, "size": 3.0}), "'size' is not of type int"),
        (msgpack.packb({**FIELDS, "size": True}), "'size' is not of type int"),
        (msgpack.packb({**FIELDS, "data": "abc"}), "'data' is not of type bytes"),
        (msgpack.packb({**FIELDS, "data": [1]}), "ValueError"),
        (msgpack.packb({**FIELDS, "data": {1: 1}}), "ValueError"),
        (msgpack.packb({**FIELDS, "name": "n" * (TEXT_BYTES_MAX + 1)}), "ValueError"),
        (b"\x83" + b"\xa4size\1" * 3, "'size' stands in it twice"),
    ],
)
def test_maps_that_are_refused(packed: bytes, fault: str) -> None:
    with pytest.raises(FieldsFault, match=fault):
        unpack_fields(packed, KINDS)
