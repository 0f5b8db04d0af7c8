"""The snapshot file: preamble, header, sections (`docs/reference/snapshot-format.md`). Bytes in, values out; no I/O."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from dieselfs.columns import I64, U8, U32, U64
from dieselfs.digests import DIGEST_BYTES as DIGEST_BYTES
from dieselfs.digests import DIGESTS, EXTENT_DIGESTS, Buffer, file_digest_of
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.fields import (
    CHECKSUM_BYTES,
    FieldsFault,
    check_dataset_fields,
    unpack_fields,
    unpack_flagged_preamble,
)
from dieselfs.limits import KIB, SNAPSHOT_BYTES_MAX

MAGIC = b"\x89DSLS\r\n\x1a"
FORMAT_VERSION = 2
SECTION_ALIGNMENT = 64
HEADER_BYTES_MAX = 64 * KIB
NUMBER_MAX = (1 << 63) - 1
COUNT_MAX = (1 << 32) - 1
"""Nodes, extents, links, or chunks of one snapshot."""

SIGNER_BYTES = 32
SIGNATURE_BYTES = 64

ENCRYPTED = 1
"""Flag: the names are those of a client that has the key; extents are encrypted (docs/reference/encryption.md)."""

# The checksum of these bytes follows them.
PREAMBLE = struct.Struct(f"<8sHHIQQ{DIGEST_BYTES}s{SIGNER_BYTES}s{SIGNATURE_BYTES}s")
PREAMBLE_BYTES = PREAMBLE.size + CHECKSUM_BYTES
assert PREAMBLE_BYTES == 168

SECTION_TYPES: dict[str, np.dtype[np.generic]] = {
    # One element per node; node 0 is the root, inode = node + 1.
    "path_ends": U64,
    "name_lengths": U8,
    "parents": U32,
    "modes": U32,
    "sizes": U64,
    "mtimes_ns": I64,
    "firsts": U32,
    "counts": U32,
    # Full paths of all nodes, joined.
    "paths": U8,
    # One element per extent.
    "extent_chunks": U32,
    "extent_offsets": U32,
    "extent_lengths": U32,
    "extent_places": U64,
    "extent_digests": EXTENT_DIGESTS,
    # One element per symbolic link, ordered by node; the targets, joined.
    "link_nodes": U32,
    "link_ends": U64,
    "links": U8,
    # One element per chunk, ordered by ID; IDs have 16 bytes each.
    "chunk_ids": U8,
    "chunk_digests": DIGESTS,
    "chunk_payload_lengths": U32,
    # Index from the hash of a full path to its node.
    "hash_slots": U64,
}
"""The sections, in the order of the file."""

EXTENT_COLUMNS = tuple(name for name in SECTION_TYPES if name.startswith("extent_"))

SECTION = struct.Struct("<QQ")

NUMBERS = (
    "generation",
    "updated_ns",
    "nodes",
    "files",
    "total_bytes",
    "extents",
    "links",
    "chunks",
    "hash_bits",
)
_COUNTS = ("nodes", "files", "extents", "links", "chunks")
_FIELD_KINDS: dict[str, type] = {
    "dataset": str,
    "dataset_id": bytes,
    **dict.fromkeys(NUMBERS, int),
    "sections": bytes,
}


@dataclass(frozen=True, slots=True)
class Section:
    """The range of a section in the file, in bytes."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """The values of the header. `digest` (BLAKE3 over all bytes behind the preamble) names the exact
    content. `signer` and `signature` are zeros in a snapshot that no server has signed (`dieselfs.snapshot.signature`).
    `is_encrypted`: made by a client, of the snapshot of an encrypted dataset (`dieselfs.snapshot.plain`).
    """

    dataset: str
    dataset_id: bytes
    generation: int
    updated_ns: int
    nodes: int
    files: int
    total_bytes: int
    extents: int
    links: int
    chunks: int
    hash_bits: int
    sections: Mapping[str, Section]
    digest: bytes
    signer: bytes
    signature: bytes
    file_length: int
    is_encrypted: bool = False


def decode_snapshot_header(data: Buffer, file_length: int, source: str) -> SnapshotHeader:
    """Decode preamble and header from the beginning of a snapshot file of `file_length` bytes.

    `data` may be the whole file or any beginning with the complete header. The time does not depend on the size of the
    snapshot. Raises Damaged. The sections are not read: see `check_digest` and `dieselfs.snapshot.check`.
    """
    flags, (header_length, stated_length, header_sum, *seal) = unpack_flagged_preamble(
        PREAMBLE, MAGIC, FORMAT_VERSION, ENCRYPTED, data, source, "snapshot"
    )
    if stated_length != file_length or file_length > SNAPSHOT_BYTES_MAX:
        raise Damaged(f"{source}: offset 16: {file_length} bytes, the preamble announces {stated_length}")
    if header_length > min(HEADER_BYTES_MAX, len(data) - PREAMBLE_BYTES):
        raise Damaged(f"{source}: offset 12: header of {header_length} bytes, limit {HEADER_BYTES_MAX}")
    packed = bytes(data[PREAMBLE_BYTES : PREAMBLE_BYTES + header_length])
    if xxh3_64_intdigest(packed) != header_sum:
        raise Damaged(f"{source}: offset {PREAMBLE_BYTES}: checksum of the header does not match")
    try:
        return _decode_fields(unpack_fields(packed, _FIELD_KINDS), seal, file_length, bool(flags))
    except FieldsFault as fault:
        raise Damaged(f"{source}: offset {PREAMBLE_BYTES}: header: {fault}") from None


def _decode_fields(
    fields: dict[str, Any], seal: Sequence[bytes], file_length: int, is_encrypted: bool
) -> SnapshotHeader:
    check_dataset_fields(fields)
    for name in NUMBERS:
        if not 0 <= fields[name] <= (COUNT_MAX if name in _COUNTS else NUMBER_MAX):
            raise FieldsFault(f"field {name!r} is out of range: {fields[name]}")
    if fields["nodes"] < 1:
        raise FieldsFault("a snapshot has at least the root")
    if not 1 <= fields["hash_bits"] <= 33:
        raise FieldsFault(f"hash index of {fields['hash_bits']} bits")
    packed = fields["sections"]
    if len(packed) != len(SECTION_TYPES) * SECTION.size:
        raise FieldsFault(f"field 'sections' has {len(packed)} bytes")
    sections = {
        name: Section(*values)
        for name, values in zip(SECTION_TYPES, SECTION.iter_unpack(packed), strict=True)
    }
    digest, signer, signature = seal
    header = SnapshotHeader(
        **{**fields, "sections": sections},
        digest=digest,
        signer=signer,
        signature=signature,
        file_length=file_length,
        is_encrypted=is_encrypted,
    )
    _check_sections(header)
    return header


def _check_sections(header: SnapshotHeader) -> None:
    """Raise FieldsFault unless every section is inside the file and has the length that the counts require."""
    exact = exact_lengths({name: getattr(header, name) for name in _COUNTS})
    for name, section in header.sections.items():
        if section.offset % SECTION_ALIGNMENT or section.offset + section.length > header.file_length:
            raise FieldsFault(
                f"section {name!r}, {section.length} bytes at {section.offset}, is not in the file"
            )
        if section.length != exact.get(name, section.length):
            raise FieldsFault(f"section {name!r} has {section.length} bytes, not {exact[name]}")
    slots = header.sections["hash_slots"].length
    if slots % U64.itemsize or slots // U64.itemsize <= 1 << header.hash_bits:
        raise FieldsFault(f"section 'hash_slots' has {slots} bytes, too few for {header.hash_bits} bits")


def check_counts(counts: Mapping[str, int]) -> None:
    """Raise InvalidInput for more nodes, extents, links or chunks than a snapshot can number."""
    for name in _COUNTS:
        if counts.get(name, 0) > COUNT_MAX:
            raise InvalidInput(f"a snapshot holds at most {COUNT_MAX:,} {name}, not {counts[name]:,}")


def exact_lengths(counts: Mapping[str, int]) -> dict[str, int]:
    """Bytes that each section must have with these counts; sections of variable length are absent."""
    elements = {
        **dict.fromkeys(("path_ends", "name_lengths", "parents", "modes"), counts["nodes"]),
        **dict.fromkeys(("sizes", "mtimes_ns", "firsts", "counts"), counts["nodes"]),
        **dict.fromkeys(EXTENT_COLUMNS, counts["extents"]),
        **dict.fromkeys(("link_nodes", "link_ends"), counts["links"]),
        "chunk_ids": 16 * counts["chunks"],
        **dict.fromkeys(("chunk_digests", "chunk_payload_lengths"), counts["chunks"]),
    }
    return {name: count * SECTION_TYPES[name].itemsize for name, count in elements.items()}


def check_digest(data: Buffer, header: SnapshotHeader, source: str) -> None:
    """Raise Damaged unless the file matches the digest that it states."""
    if file_digest_of(memoryview(data)[PREAMBLE_BYTES:]) != header.digest:
        raise Damaged(f"{source}: offset {PREAMBLE_BYTES}: digest of the snapshot does not match")
