"""The snapshot file: preamble, header, sections (`docs/snapshot-format.md`). Bytes in, values out; no I/O."""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import msgpack
import numpy as np
from xxhash import xxh3_64_intdigest

from dieselfs.columns import I64, U8, U32, U64
from dieselfs.errors import Damaged
from dieselfs.limits import MIB, SNAPSHOT_BYTES_MAX

Buffer = bytes | bytearray | memoryview

MAGIC = b"\x89DSLS\r\n\x1a"
FORMAT_VERSION = 1
SECTION_ALIGNMENT = 64
HEADER_BYTES_MAX = 1 * MIB
DIGEST_BYTES = 32

_PREAMBLE = struct.Struct("<8sHHIQQ32s")  # the checksum of these bytes follows them
_CHECKSUM = struct.Struct("<Q")
PREAMBLE_BYTES = _PREAMBLE.size + _CHECKSUM.size
assert PREAMBLE_BYTES == 72

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
    "extent_checksums": U64,
    # One element per symbolic link, ordered by node; the targets, joined.
    "link_nodes": U32,
    "link_ends": U64,
    "links": U8,
    # One element per chunk, ordered by ID; IDs and payload checksums have 16 bytes each.
    "chunk_ids": U8,
    "chunk_checksums": U8,
    "chunk_payload_lengths": U32,
    # Index from the hash of a full path to its node.
    "hash_starts": U32,
    "hash_nodes": U32,
}


@dataclass(frozen=True, slots=True)
class Section:
    """Where a section lies in the file, in bytes, and its xxh3 (64 bits)."""

    offset: int
    length: int
    checksum: int


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """What the header says. `digest` (SHA-256 over all bytes behind the preamble) names the exact content."""

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
    file_length: int


_NUMBERS = (
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


def expected_lengths(header: SnapshotHeader) -> dict[str, int]:
    """Bytes that each section must have; those whose length only they themselves know are absent."""
    per_node = ("path_ends", "name_lengths", "parents", "modes", "sizes", "mtimes_ns", "firsts", "counts")
    elements = dict.fromkeys(per_node, header.nodes)
    elements |= dict.fromkeys(
        ("extent_chunks", "extent_offsets", "extent_lengths", "extent_places", "extent_checksums"), header.extents
    )
    elements |= {"link_nodes": header.links, "link_ends": header.links}
    elements |= {"chunk_ids": 16 * header.chunks, "chunk_checksums": 16 * header.chunks}
    elements |= {"chunk_payload_lengths": header.chunks}
    elements |= {"hash_starts": (1 << header.hash_bits) + 1, "hash_nodes": header.nodes}
    return {name: count * SECTION_TYPES[name].itemsize for name, count in elements.items()}


def decode_snapshot_header(data: Buffer, file_length: int, source: str) -> SnapshotHeader:
    """Decode preamble and header from the beginning of a snapshot file of `file_length` bytes.

    `data` may be the whole file or any beginning that holds the header. Takes the same time whatever the size of
    the snapshot. Raises Damaged. The sections themselves are not read: see `check_digest`.
    """
    if len(data) < PREAMBLE_BYTES:
        raise Damaged(f"{source}: offset 0: only {len(data)} bytes, a snapshot begins with {PREAMBLE_BYTES}")
    fields = bytes(data[: _PREAMBLE.size])
    magic, version, flags, header_length, stated_length, header_sum, digest = _PREAMBLE.unpack(fields)
    (checksum,) = _CHECKSUM.unpack_from(data, _PREAMBLE.size)
    if magic != MAGIC:
        raise Damaged(f"{source}: offset 0: not a dieselfs snapshot (begins with {magic.hex()})")
    if xxh3_64_intdigest(fields) != checksum:
        raise Damaged(f"{source}: offset {_PREAMBLE.size}: checksum of the preamble does not match")
    if version != FORMAT_VERSION or flags != 0:
        raise Damaged(f"{source}: offset 8: snapshot format {version} (flags {flags:#x}) is not known")
    if stated_length != file_length or file_length > SNAPSHOT_BYTES_MAX:
        raise Damaged(f"{source}: offset 16: {file_length} bytes, the preamble announces {stated_length}")
    if header_length > min(HEADER_BYTES_MAX, len(data) - PREAMBLE_BYTES):
        raise Damaged(f"{source}: offset 12: header of {header_length} bytes")
    packed = bytes(data[PREAMBLE_BYTES : PREAMBLE_BYTES + header_length])
    if xxh3_64_intdigest(packed) != header_sum:
        raise Damaged(f"{source}: offset {PREAMBLE_BYTES}: checksum of the header does not match")
    try:
        header = _decode_fields(packed, digest, file_length)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise Damaged(f"{source}: offset {PREAMBLE_BYTES}: header: {error}") from None
    _check_sections(header, source)
    return header


def _decode_fields(packed: bytes, digest: bytes, file_length: int) -> SnapshotHeader:
    fields = msgpack.unpackb(packed, max_map_len=64, max_array_len=8, max_ext_len=0, max_str_len=256)
    numbers = {name: fields[name] for name in _NUMBERS}
    if not all(type(value) is int and 0 <= value < 1 << 63 for value in numbers.values()):
        raise ValueError("a number is out of range")
    if max(numbers["nodes"], numbers["extents"], numbers["chunks"]) >= 1 << 32 or numbers["hash_bits"] > 32:
        raise ValueError("more nodes, extents, or chunks than the format holds")
    if type(fields["dataset"]) is not str or type(fields["dataset_id"]) is not bytes or len(fields["dataset_id"]) != 16:
        raise ValueError("no dataset")
    sections = {}
    for name in SECTION_TYPES:
        offset, length, checksum = fields["sections"][name]
        if not (type(offset) is type(length) is type(checksum) is int and offset >= 0 and length >= 0):
            raise ValueError(f"section {name!r} is not three numbers")
        sections[name] = Section(offset, length, checksum)
    return SnapshotHeader(
        fields["dataset"], fields["dataset_id"], **numbers, sections=sections, digest=digest, file_length=file_length
    )


def _check_sections(header: SnapshotHeader, source: str) -> None:
    if header.nodes < 1:
        raise Damaged(f"{source}: a snapshot has at least the root")
    lengths = expected_lengths(header)
    for name, section in header.sections.items():
        if section.offset % SECTION_ALIGNMENT or section.offset + section.length > header.file_length:
            raise Damaged(f"{source}: offset {section.offset}: section {name!r} lies outside the file")
        if section.length != lengths.get(name, section.length):
            raise Damaged(
                f"{source}: offset {section.offset}: section {name!r} has {section.length} bytes, not {lengths[name]}"
            )


def check_digest(data: Buffer, header: SnapshotHeader, source: str) -> None:
    """Raise Damaged unless the whole file hashes to the digest that it states."""
    if hashlib.sha256(memoryview(data)[PREAMBLE_BYTES:]).digest() != header.digest:
        raise Damaged(f"{source}: offset {PREAMBLE_BYTES}: digest of the snapshot does not match")


def encode_snapshot(
    dataset: str, dataset_id: bytes, numbers: Mapping[str, int], columns: Mapping[str, np.typing.NDArray[np.generic]]
) -> bytes:
    """The bytes of a snapshot file. `numbers` are the counts of `SnapshotHeader`, `columns` one array per section."""
    contents = {name: np.ascontiguousarray(columns[name], dtype).tobytes() for name, dtype in SECTION_TYPES.items()}
    # The header's length depends on the sections' offsets, which depend on the header's length; offsets are
    # packed as 5 to 9 bytes, so a header measured with the largest ones leaves room for any.
    room = len(_pack_header(dataset, dataset_id, numbers, {n: Section(1 << 62, 1 << 62, 1 << 63) for n in contents}))
    sections: dict[str, Section] = {}
    position = PREAMBLE_BYTES + room
    for name, content in contents.items():
        position += -position % SECTION_ALIGNMENT
        sections[name] = Section(position, len(content), xxh3_64_intdigest(content))
        position += len(content)
    header = _pack_header(dataset, dataset_id, numbers, sections)
    parts = [header]
    written = PREAMBLE_BYTES + len(header)
    for name, content in contents.items():
        parts += [bytes(sections[name].offset - written), content]
        written = sections[name].offset + len(content)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    fields = _PREAMBLE.pack(
        MAGIC, FORMAT_VERSION, 0, len(header), written, xxh3_64_intdigest(header), digest.digest()
    )
    return b"".join([fields, _CHECKSUM.pack(xxh3_64_intdigest(fields)), *parts])


def _pack_header(
    dataset: str, dataset_id: bytes, numbers: Mapping[str, int], sections: Mapping[str, Section]
) -> bytes:
    packed: bytes = msgpack.packb(
        {
            "dataset": dataset,
            "dataset_id": dataset_id,
            **{name: numbers[name] for name in _NUMBERS},
            "sections": {name: (s.offset, s.length, s.checksum) for name, s in sections.items()},
        }
    )
    return packed
