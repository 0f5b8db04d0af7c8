"""Fields: the msgpack map at the head of a chunk or a snapshot, read as hostile bytes. No I/O.

A header is one map from names to texts, byte strings and integers, without nesting, so reading any bytes makes few
objects. It must have exactly the expected fields, each once, and nothing may follow it.
"""

from collections.abc import Mapping
from typing import Any

import msgpack

TEXT_BYTES_MAX = 255
"""Limit of a field name, and of the value of a text field."""


class FieldsFault(Exception):
    """An invalid field of a header; the decoder of the object adds its name and the offset."""


def pack_fields(fields: Mapping[str, str | bytes | int]) -> bytes:
    """The map, with its fields in the given order."""
    packed: bytes = msgpack.packb(dict(fields))
    return packed


def unpack_fields(data: bytes | bytearray | memoryview, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The fields in `data`: exactly those of `kinds`, with exactly these types. Raises FieldsFault."""
    fields: dict[str, Any] = {}
    for name, value in _unpack_pairs(data, len(kinds)):
        if type(name) is not str:
            raise FieldsFault("the name of a field is not text")
        if name not in kinds:
            raise FieldsFault(f"field {name!r} does not belong here")
        if name in fields:
            raise FieldsFault(f"field {name!r} stands in it twice")
        if type(value) is not kinds[name]:
            raise FieldsFault(f"field {name!r} is not of type {kinds[name].__name__}")
        fields[name] = value
    return fields


def _unpack_pairs(data: bytes | bytearray | memoryview, count: int) -> list[tuple[object, object]]:
    unpacker = msgpack.Unpacker(
        max_buffer_size=max(len(data), 1),
        max_str_len=TEXT_BYTES_MAX,
        max_bin_len=len(data),
        max_array_len=0,
        max_map_len=0,
        max_ext_len=0,
    )
    try:
        unpacker.feed(data)
        if (stated := unpacker.read_map_header()) != count:
            raise FieldsFault(f"{stated} fields, not {count}")
        pairs = [(unpacker.unpack(), unpacker.unpack()) for _ in range(count)]
    except (ValueError, msgpack.UnpackException) as error:
        raise FieldsFault(f"not the msgpack map that it should be ({type(error).__name__})") from None
    if unpacker.tell() != len(data):
        raise FieldsFault(f"the map ends at byte {unpacker.tell()} of {len(data)}")
    return pairs
