"""The head of a chunk or a snapshot, read as hostile bytes: preamble and fields. No I/O.

A preamble has magic, version, flags, values, and the xxh3 (64 bits) of these bytes. A header is one map from names
to texts, byte strings and integers, without nesting, so reading any bytes makes few objects. It must have exactly the
expected fields, each once, and nothing may follow it.
"""

import struct
from collections.abc import Mapping
from typing import Any

import msgpack
from xxhash import xxh3_64_intdigest

from dieselfs.errors import Damaged, InvalidInput
from dieselfs.names import check_dataset_name

TEXT_BYTES_MAX = 255
"""Limit of a field name, and of the value of a text field."""


DATASET_ID_BYTES = 16
CHECKSUM_BYTES = 8


def pack_preamble(
    layout: struct.Struct, magic: bytes, version: int, *values: object, flags: int = 0
) -> bytes:
    fields = layout.pack(magic, version, flags, *values)
    return fields + xxh3_64_intdigest(fields).to_bytes(CHECKSUM_BYTES, "little")


def unpack_preamble(
    layout: struct.Struct,
    magic: bytes,
    version: int,
    data: bytes | bytearray | memoryview,
    source: str,
    kind: str,
) -> list[Any]:
    """The values of the preamble at the head of `data`. Raises Damaged, which names `source`; `kind`: what it is."""
    return unpack_flagged_preamble(layout, magic, version, 0, data, source, kind)[1]


def unpack_flagged_preamble(
    layout: struct.Struct,
    magic: bytes,
    version: int,
    known_flags: int,
    data: bytes | bytearray | memoryview,
    source: str,
    kind: str,
) -> tuple[int, list[Any]]:
    """The flags and the values. Raises Damaged as `unpack_preamble`, and for flags that are not in `known_flags`."""
    size = layout.size
    if len(data) < size + CHECKSUM_BYTES:
        raise Damaged(
            f"{source}: offset 0: only {len(data)} bytes, a {kind} begins with {size + CHECKSUM_BYTES}"
        )
    fields = bytes(data[:size])
    found_magic, found_version, flags, *values = layout.unpack(fields)
    if found_magic != magic:
        raise Damaged(f"{source}: offset 0: not a dieselfs {kind} (begins with {found_magic.hex()})")
    if xxh3_64_intdigest(fields) != int.from_bytes(data[size : size + CHECKSUM_BYTES], "little"):
        raise Damaged(f"{source}: offset {size}: checksum of the preamble does not match")
    if found_version != version or flags & ~known_flags:
        raise Damaged(
            f"{source}: offset 8: {kind} format {found_version} (flags {flags:#x}) is not known to this version of "
            f"dieselfs, which reads format {version}"
        )
    return flags, values


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


def check_dataset_fields(fields: Mapping[str, Any]) -> None:
    """Raise FieldsFault unless `dataset` and `dataset_id` are valid."""
    try:
        check_dataset_name(fields["dataset"])
    except InvalidInput as error:
        raise FieldsFault(str(error)) from None
    if len(fields["dataset_id"]) != DATASET_ID_BYTES:
        raise FieldsFault(f"dataset ID of {len(fields['dataset_id'])} bytes")
