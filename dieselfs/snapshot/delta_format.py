"""The snapshot delta: preamble, header, columns (`docs/reference/snapshot-format.md`). Bytes in, values out; no I/O."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from dieselfs.columns import I64, U8, U32, U64
from dieselfs.digests import DIGEST_BYTES, DIGESTS, EXTENT_DIGESTS, Buffer
from dieselfs.errors import Damaged
from dieselfs.fields import (
    CHECKSUM_BYTES,
    FieldsFault,
    pack_fields,
    pack_preamble,
    unpack_fields,
    unpack_preamble,
)
from dieselfs.snapshot.format import HEADER_BYTES_MAX, NUMBER_MAX, SIGNATURE_BYTES, SIGNER_BYTES

MAGIC = b"\x89DSLD\r\n\x1a"
FORMAT_VERSION = 1

_PREAMBLE = struct.Struct("<8sHHIQ")
"""Magic, version, flags, length of the header, xxh3 of the header; the checksum of these bytes follows them."""
PREAMBLE_BYTES = _PREAMBLE.size + CHECKSUM_BYTES

COLUMN_TYPES: dict[str, np.dtype[np.generic]] = {
    # Nodes of the base that are not in the new generation.
    "removed": U32,
    # One element per node of the new generation that is added or changed.
    "nodes": U32,
    "path_lengths": U32,  # 0: the node is in the base, and keeps its path
    "parents": U32,
    "modes": U32,
    "sizes": U64,
    "mtimes_ns": I64,
    "extent_counts": U32,
    "paths": U8,
    # One element per extent of these nodes; chunks by their numbers in the new generation.
    "extent_chunks": U32,
    "extent_offsets": U32,
    "extent_lengths": U32,
    "extent_places": U64,
    "extent_digests": EXTENT_DIGESTS,
    # Targets of the links among these nodes, joined.
    "links": U8,
    # Chunks of the base that are not in the new generation, by their numbers in the base.
    "removed_chunks": U32,
    # One element per added chunk; IDs have 16 bytes each.
    "chunks": U32,
    "chunk_ids": U8,
    "chunk_digests": DIGESTS,
    "chunk_payload_lengths": U32,
}
"""The columns, in the order of the file."""

_LENGTH = struct.Struct("<Q")
_FIELD_KINDS: dict[str, type] = {
    "base_digest": bytes,
    "digest": bytes,
    "signer": bytes,
    "signature": bytes,
    "generation": int,
    "updated_ns": int,
    "columns": bytes,
}
_LENGTHS = {
    "base_digest": DIGEST_BYTES,
    "digest": DIGEST_BYTES,
    "signer": SIGNER_BYTES,
    "signature": SIGNATURE_BYTES,
    "columns": len(COLUMN_TYPES) * _LENGTH.size,
}


@dataclass(frozen=True, eq=False)
class Delta:
    """What turns the snapshot with `base_digest` into that with `digest`; `columns` has one array per column."""

    base_digest: bytes
    digest: bytes
    signer: bytes
    signature: bytes
    generation: int
    updated_ns: int
    columns: Mapping[str, npt.NDArray[Any]]


def encode_delta(delta: Delta) -> bytes:
    contents = [
        np.ascontiguousarray(delta.columns[name], dtype).tobytes() for name, dtype in COLUMN_TYPES.items()
    ]
    lengths = b"".join(_LENGTH.pack(len(content)) for content in contents)
    header = pack_fields({name: getattr(delta, name) for name in _FIELD_KINDS} | {"columns": lengths})
    preamble = pack_preamble(_PREAMBLE, MAGIC, FORMAT_VERSION, len(header), xxh3_64_intdigest(header))
    return b"".join([preamble, header, *contents])


def decode_delta(data: Buffer, source: str) -> Delta:
    """Decode a delta; the columns are in place. Raises Damaged. What the columns say is not checked."""
    header_length, header_sum = unpack_preamble(
        _PREAMBLE, MAGIC, FORMAT_VERSION, data, source, "snapshot delta"
    )
    start = PREAMBLE_BYTES + header_length
    if header_length > HEADER_BYTES_MAX or start > len(data):
        raise Damaged(f"{source}: offset 12: header of {header_length} bytes, limit {HEADER_BYTES_MAX}")
    packed = bytes(data[PREAMBLE_BYTES:start])
    if xxh3_64_intdigest(packed) != header_sum:
        raise Damaged(f"{source}: offset {PREAMBLE_BYTES}: checksum of the header does not match")
    try:
        return _decode_fields(unpack_fields(packed, _FIELD_KINDS), memoryview(data)[start:])
    except FieldsFault as fault:
        raise Damaged(f"{source}: offset {PREAMBLE_BYTES}: header: {fault}") from None


def _decode_fields(fields: dict[str, Any], body: memoryview) -> Delta:
    for name, length in _LENGTHS.items():
        if len(fields[name]) != length:
            raise FieldsFault(f"field {name!r} has {len(fields[name])} bytes, not {length}")
    for name in ("generation", "updated_ns"):
        if not 0 <= fields[name] <= NUMBER_MAX:
            raise FieldsFault(f"field {name!r} is out of range: {fields[name]}")
    columns, position = {}, 0
    for (name, dtype), (length,) in zip(
        COLUMN_TYPES.items(), _LENGTH.iter_unpack(fields["columns"]), strict=True
    ):
        if length % dtype.itemsize or length > len(body) - position:
            raise FieldsFault(f"column {name!r} has {length} bytes")
        columns[name] = np.frombuffer(body[position : position + length], dtype)
        position += length
    if position != len(body):
        raise FieldsFault(f"the columns end at byte {position} of {len(body)}")
    return Delta(**{**fields, "columns": columns})
