"""The chunk: preamble, header, payload (`docs/reference/chunk-format.md`). Bytes in, values out; no I/O.

Chunks are the durable data of dieselfs: the headers contain every entry that a dataset ever had. Decoding assumes
hostile bytes: each length is checked before it is used, and no byte is used without a digest or a check. Each fault
raises `Damaged` with the name of the object and the offset in it.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.chunk.frames import FRAME_FIELDS, Frames
from dieselfs.chunk.ids import chunk_name
from dieselfs.chunk.source import SOURCE_FIELDS, AttachedSource
from dieselfs.columns import I64, U8, U32, U64, ends_fault, ends_of, first_bad_path, split_blob
from dieselfs.digests import DIGEST_BYTES, EXTENT_DIGESTS, NO_DIGEST, Buffer, digest_of, extent_digest_of
from dieselfs.errors import Damaged
from dieselfs.fields import (
    CHECKSUM_BYTES,
    FieldsFault,
    check_dataset_fields,
    pack_fields,
    pack_preamble,
    unpack_fields,
    unpack_flagged_preamble,
)
from dieselfs.limits import (
    CHUNK_ENTRIES_MAX,
    CHUNK_HEADER_BYTES_MAX,
    CHUNK_PATH_BYTES_MAX,
    CHUNK_PAYLOAD_BYTES_MAX,
    FILE_BYTES_MAX,
    MIB,
    PATH_BYTES_MAX,
)
from dieselfs.names import path_fault, printable
from dieselfs.records import Op as Op

MAGIC = b"\x89DSLC\r\n\x1a"
FORMAT_VERSION = 2
ATTACHED = 1
"""The flag of an attached chunk: the object ends behind the header, and the payload is a range of the source."""
COMPRESSED = 2
"""The flag of a compressed chunk: the object has the payload as frames. No chunk has both flags."""
MODE_MAX = 0o7777
VERSION_MAX = (1 << 63) - 1

# The checksum of these bytes follows them.
_PREAMBLE = struct.Struct(f"<8sHHIII16s{DIGEST_BYTES}s{DIGEST_BYTES}s")
PREAMBLE_BYTES = _PREAMBLE.size + CHECKSUM_BYTES
assert PREAMBLE_BYTES == 112


@dataclass(frozen=True, slots=True)
class Preamble:
    """The first PREAMBLE_BYTES of a chunk: its ID, and the lengths of its parts in bytes. Payload length and digest are
    of the plain payload; `compressed_length`: of the stored one, 0 if the chunk is not compressed.
    """

    chunk_id: bytes
    header_length: int
    payload_length: int
    payload_digest: bytes
    header_digest: bytes
    is_attached: bool = False
    compressed_length: int = 0

    @property
    def payload_start(self) -> int:
        return PREAMBLE_BYTES + self.header_length

    @property
    def object_length(self) -> int:
        """Length of preamble, header and plain payload, in bytes."""
        return self.payload_start + self.payload_length

    @property
    def stored_length(self) -> int:
        """Length of the object in the store, in bytes: without the payload, if the chunk is attached."""
        if self.is_attached or self.compressed_length:
            return self.payload_start + self.compressed_length
        return self.object_length

    def encode(self) -> bytes:
        return pack_preamble(
            _PREAMBLE,
            MAGIC,
            FORMAT_VERSION,
            self.header_length,
            self.payload_length,
            self.compressed_length,
            self.chunk_id,
            self.payload_digest,
            self.header_digest,
            flags=(ATTACHED if self.is_attached else 0) | (COMPRESSED if self.compressed_length else 0),
        )


COLUMN_TYPES: dict[str, np.dtype[np.generic]] = {
    "ops": U8,
    "modes": U32,
    "mtimes_ns": I64,
    "sizes": U64,
    "places": U64,
    "offsets": U32,
    "lengths": U32,
    "digests": EXTENT_DIGESTS,
    "versions": U64,
}
"""The columns of a header that have one number per entry."""

_PATH_ENDS = U32
_FIELD_KINDS: dict[str, type] = {
    "dataset": str,
    "dataset_id": bytes,
    "count": int,
    "paths": bytes,
    "targets": bytes,
    "path_ends": bytes,
    **dict.fromkeys(COLUMN_TYPES, bytes),
}

ENTRY_BYTES = _PATH_ENDS.itemsize + sum(dtype.itemsize for dtype in COLUMN_TYPES.values())
"""What an entry takes of a header, beside its path and the target of a link."""
assert CHUNK_ENTRIES_MAX * ENTRY_BYTES + CHUNK_PATH_BYTES_MAX + 4096 <= CHUNK_HEADER_BYTES_MAX


@dataclass(frozen=True, eq=False)
class ChunkHeader:
    """The entries of a chunk as columns: element `i` of each belongs to entry `i`.

    - `paths`: full path in the dataset; empty for the root folder
    - `ops`: see `Op`
    - `modes`: permission bits; `mtimes_ns`: nanoseconds since 1970
    - `sizes`: size of the whole file in bytes
    - `places`: where in the file this extent begins; 0 unless the file spans chunks
    - `offsets`, `lengths`: the extent in the payload; for a symbolic link, its target in `targets`
    - `digests`: of those bytes (`extent_digest_of`)
    - `versions`: of the entries of one path, the one with the largest version wins; all extents of a file have the same

    `source`: of an attached chunk; `frames`: of a compressed one.
    """

    dataset: str
    dataset_id: bytes
    paths: list[bytes]
    targets: bytes
    ops: npt.NDArray[np.uint8]
    modes: npt.NDArray[np.uint32]
    mtimes_ns: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.uint64]
    places: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    digests: npt.NDArray[np.void]
    versions: npt.NDArray[np.uint64]
    source: AttachedSource | None = None
    frames: Frames | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def target(self, entry: int) -> bytes:
        """The target of the symbolic link `entry`."""
        start = int(self.offsets[entry])
        return self.targets[start : start + int(self.lengths[entry])]

    def encode(self) -> bytes:
        """The msgpack map; the order of its fields is fixed."""
        return pack_fields(
            {
                "dataset": self.dataset,
                "dataset_id": self.dataset_id,
                "count": len(self.paths),
                "paths": b"".join(self.paths),
                "targets": self.targets,
                "path_ends": ends_of(self.paths).astype(_PATH_ENDS).tobytes(),
                **{name: getattr(self, name).astype(dtype).tobytes() for name, dtype in COLUMN_TYPES.items()},
                **(self.source.fields() if self.source else {}),
                **(self.frames.fields() if self.frames else {}),
            }
        )


def decode_preamble(data: Buffer, source: str, expected_id: bytes | None = None) -> Preamble:
    """Decode the first PREAMBLE_BYTES of a chunk.

    `source` names the object in errors. Raises Damaged, also for a valid chunk with another ID than
    `expected_id`.
    """
    known = ATTACHED | COMPRESSED
    flags, values = unpack_flagged_preamble(_PREAMBLE, MAGIC, FORMAT_VERSION, known, data, source, "chunk")
    header_length, payload_length, compressed_length, chunk_id, payload_digest, header_digest = values
    if header_length > CHUNK_HEADER_BYTES_MAX:
        raise Damaged(f"{source}: offset 12: header of {header_length} bytes, limit {CHUNK_HEADER_BYTES_MAX}")
    if payload_length > CHUNK_PAYLOAD_BYTES_MAX:
        raise Damaged(
            f"{source}: offset 16: payload of {payload_length} bytes, limit {CHUNK_PAYLOAD_BYTES_MAX}"
        )
    if expected_id is not None and chunk_id != expected_id:
        raise Damaged(
            f"{source}: offset 24: this is chunk {chunk_name(chunk_id)}, not chunk {chunk_name(expected_id)}"
        )
    if flags == known:
        raise Damaged(f"{source}: offset 10: it is attached and compressed, which no chunk is")
    least, most = (1, payload_length) if flags & COMPRESSED else (0, 0)
    if not least <= compressed_length <= most:
        raise Damaged(
            f"{source}: offset 20: compressed payload of {compressed_length} bytes, of {payload_length} plain ones"
        )
    is_attached = bool(flags & ATTACHED)
    return Preamble(
        chunk_id, header_length, payload_length, payload_digest, header_digest, is_attached, compressed_length
    )


def _kinds(preamble: Preamble) -> dict[str, type]:
    """The fields of the header of a chunk."""
    if preamble.is_attached:
        return _FIELD_KINDS | SOURCE_FIELDS
    return _FIELD_KINDS | FRAME_FIELDS if preamble.compressed_length else _FIELD_KINDS


def decode_header(
    preamble: Preamble, data: Buffer, source: str, expected_dataset_id: bytes | None = None
) -> ChunkHeader:
    """Decode and check the header, the `preamble.header_length` bytes behind the preamble. Raises Damaged."""
    where = f"{source}: offset {PREAMBLE_BYTES}"
    if len(data) != preamble.header_length:
        raise Damaged(f"{where}: {len(data)} bytes of a header of {preamble.header_length}")
    if digest_of(data) != preamble.header_digest:
        raise Damaged(f"{where}: digest of the header does not match")
    try:
        header = _decode_columns(unpack_fields(data, _kinds(preamble)), preamble)
    except FieldsFault as fault:
        raise Damaged(f"{where}: header: {fault}") from None
    if expected_dataset_id is not None and header.dataset_id != expected_dataset_id:
        raise Damaged(
            f"{where}: this chunk belongs to dataset {header.dataset!r} ({header.dataset_id.hex()}), "
            f"not to {expected_dataset_id.hex()}"
        )
    return header


def check_payload(preamble: Preamble, payload: Buffer, source: str) -> None:
    """Raise Damaged unless `payload` has the length and digest in the preamble."""
    if len(payload) != preamble.payload_length:
        raise Damaged(
            f"{source}: offset {preamble.payload_start}: {len(payload)} bytes of a payload of "
            f"{preamble.payload_length}"
        )
    if digest_of(payload) != preamble.payload_digest:
        raise Damaged(f"{source}: offset {preamble.payload_start}: digest of the payload does not match")


PROCEED_BYTES = 64 * MIB
"""Of extents that are read between two chances to end."""


def check_extents(
    preamble: Preamble,
    header: ChunkHeader,
    payload: Buffer,
    source: str,
    proceed: Callable[[], object] = lambda: None,
) -> None:
    """Raise Damaged unless every file extent and link target has the digest that its entry states.

    An extent that several files share is read once. Extents may overlap in more ways than there are bytes, so `proceed`
    is called after PROCEED_BYTES at most, or one extent; what it raises ends this.
    """
    view, digests, read_bytes = memoryview(payload), dict[tuple[int, int], bytes](), 0
    rows = zip(
        header.ops.tolist(),
        header.offsets.tolist(),
        header.lengths.tolist(),
        header.digests.tolist(),
        strict=True,
    )
    for entry, (op, offset, length, digest) in enumerate(rows):
        if op == Op.FILE and (offset, length) not in digests:
            if read_bytes + length > PROCEED_BYTES:
                proceed()
                read_bytes = 0
            digests[offset, length] = extent_digest_of(view[offset : offset + length])
            read_bytes += length
        if op == Op.FILE and digests[offset, length] != digest:
            raise Damaged(
                f"{source}: offset {preamble.payload_start + offset}: digest of "
                f"{printable(header.paths[entry])!r} does not match"
            )
        if op == Op.SYMLINK and extent_digest_of(header.target(entry)) != digest:
            raise Damaged(
                f"{source}: offset {PREAMBLE_BYTES}: digest of the target of "
                f"{printable(header.paths[entry])!r} does not match"
            )


def decode_chunk(
    data: Buffer,
    source: str,
    expected_id: bytes | None = None,
    expected_dataset_id: bytes | None = None,
    are_extents_checked: bool = True,
) -> tuple[Preamble, ChunkHeader, memoryview]:
    """Decode and verify a whole chunk: preamble, header, payload and every extent. Raises Damaged.

    The payload is a view into `data`, not a copy. The digest of the payload covers each of its bytes; the digests of
    extents, which take twice as long, tell in addition whether the writer has computed them from these bytes.
    """
    preamble = decode_preamble(data, source, expected_id)
    if len(data) != preamble.object_length:
        raise Damaged(
            f"{source}: offset {min(len(data), preamble.object_length)}: {len(data)} bytes, "
            f"the preamble announces {preamble.object_length}"
        )
    view = memoryview(data)
    header = decode_header(
        preamble, view[PREAMBLE_BYTES : preamble.payload_start], source, expected_dataset_id
    )
    payload = view[preamble.payload_start :]
    check_payload(preamble, payload, source)
    if are_extents_checked:
        check_extents(preamble, header, payload, source)
    return preamble, header, payload


def decode_stored(
    data: Buffer, source: str, expected_id: bytes | None = None, expected_dataset_id: bytes | None = None
) -> tuple[Preamble, ChunkHeader]:
    """Decode an object of a store, and verify all its bytes by the digests of header and payload: a chunk, of an
    attached one all but its payload. A compressed payload is decompressed frame by frame. Raises Damaged.
    """
    preamble = decode_preamble(data, source, expected_id)
    if not (preamble.is_attached or preamble.compressed_length):
        return decode_chunk(data, source, expected_id, expected_dataset_id, are_extents_checked=False)[:2]
    if len(data) != preamble.stored_length:
        raise Damaged(
            f"{source}: offset {min(len(data), preamble.stored_length)}: {len(data)} bytes, "
            f"a chunk with this preamble has {preamble.stored_length}"
        )
    view, start = memoryview(data), preamble.payload_start
    header = decode_header(preamble, view[PREAMBLE_BYTES:start], source, expected_dataset_id)
    if header.frames is not None:
        where = f"{source}: offset {start}"
        if header.frames.digest_of_plain(view[start:], where) != preamble.payload_digest:
            raise Damaged(f"{where}: digest of the payload does not match")
    return preamble, header


def decode_frames(preamble: Preamble, data: Buffer, source: str) -> Frames:
    """The frames of a compressed chunk from its header, of which only the digest is checked beside. Raises Damaged."""
    where = f"{source}: offset {PREAMBLE_BYTES}: header"
    if len(data) != preamble.header_length or digest_of(data) != preamble.header_digest:
        raise Damaged(f"{where}: its digest does not match")
    try:
        return _frames_of(unpack_fields(data, _kinds(preamble)), preamble)
    except FieldsFault as fault:
        raise Damaged(f"{where}: {fault}") from None


def _frames_of(fields: dict[str, Any], preamble: Preamble) -> Frames:
    return Frames.of_fields(fields, preamble.payload_length, preamble.compressed_length)


def decode_source(preamble: Preamble, data: Buffer, source: str) -> AttachedSource:
    """The source of an attached chunk from its header, of which nothing else is checked. Raises Damaged."""
    try:
        return AttachedSource.of_fields(
            unpack_fields(data, _FIELD_KINDS | SOURCE_FIELDS), preamble.payload_length
        )
    except FieldsFault as fault:
        raise Damaged(f"{source}: offset {PREAMBLE_BYTES}: header: {fault}") from None


def _decode_columns(fields: dict[str, Any], preamble: Preamble) -> ChunkHeader:
    check_dataset_fields(fields)
    count = fields["count"]
    if not 0 <= count <= CHUNK_ENTRIES_MAX:
        raise FieldsFault(f"{count} entries, limit {CHUNK_ENTRIES_MAX}")
    path_ends = _decode_column(fields, "path_ends", _PATH_ENDS)
    header = ChunkHeader(
        dataset=fields["dataset"],
        dataset_id=fields["dataset_id"],
        paths=_decode_paths(fields["paths"], path_ends, CHUNK_PATH_BYTES_MAX - len(fields["targets"])),
        targets=fields["targets"],
        **{name: _decode_column(fields, name, dtype) for name, dtype in COLUMN_TYPES.items()},
        source=AttachedSource.of_fields(fields, preamble.payload_length) if preamble.is_attached else None,
        frames=_frames_of(fields, preamble) if preamble.compressed_length else None,
    )
    _check_entries(header, preamble.payload_length)
    return header


def _decode_column(fields: dict[str, Any], name: str, dtype: np.dtype[np.generic]) -> npt.NDArray[Any]:
    packed, count = fields[name], fields["count"]
    if len(packed) != count * dtype.itemsize:
        raise FieldsFault(
            f"column {name!r} has {len(packed)} bytes, {count} entries need {count * dtype.itemsize}"
        )
    return np.frombuffer(packed, dtype)


def _decode_paths(blob: bytes, ends: npt.NDArray[Any], bytes_max: int) -> list[bytes]:
    if len(blob) > bytes_max:
        raise FieldsFault(f"more than {CHUNK_PATH_BYTES_MAX} bytes of paths and link targets")
    fault = ends_fault(ends, len(blob))
    if fault is not None:
        raise FieldsFault(f"column 'path_ends': {fault}")
    bad = first_bad_path(blob, ends)
    paths = split_blob(blob, ends)
    if bad is not None:
        raise FieldsFault(f"entry {bad}: {path_fault(paths[bad])}")
    return paths


def _check_entries(header: ChunkHeader, payload_length: int) -> None:
    """Raise FieldsFault for the first entry with invalid numbers. Whole columns, in 64 bits."""
    offsets = header.offsets.astype(np.int64)
    lengths = header.lengths.astype(np.int64)
    is_file = header.ops == Op.FILE
    is_link = header.ops == Op.SYMLINK
    has_bytes = is_file | is_link
    is_root = np.fromiter(map(len, header.paths), np.int64, len(header)) == 0

    def refuse(is_wrong: npt.NDArray[np.bool_], what: str) -> None:
        wrong = np.flatnonzero(is_wrong)
        if len(wrong):
            entry = int(wrong[0])
            raise FieldsFault(f"entry {entry} ({printable(header.paths[entry])[:200]!r}): {what}")

    refuse(header.ops > max(Op), "unknown operation")
    refuse(is_root & (header.ops != Op.DIRECTORY), "the root of a dataset can only be a folder")
    refuse(header.modes > MODE_MAX, "mode has more than permission bits")
    refuse((header.versions == 0) | (header.versions > VERSION_MAX), "version out of range")
    refuse(header.sizes > FILE_BYTES_MAX, "size out of range")
    refuse(is_file & (offsets + lengths > payload_length), "extent lies outside the payload")
    refuse(is_link & (offsets + lengths > len(header.targets)), "link target lies outside its column")
    refuse(is_link & ((lengths == 0) | (lengths > PATH_BYTES_MAX)), "link target is empty or too long")
    refuse(
        ~has_bytes & ((offsets != 0) | (lengths != 0) | (header.digests != np.void(NO_DIGEST))),
        "has bytes, but is neither file nor link",
    )
    refuse(~is_file & ((header.sizes != 0) | (header.places != 0)), "has a size, but is no file")
    sizes = header.sizes.astype(np.int64)
    places = np.minimum(header.places, FILE_BYTES_MAX + 1).astype(np.int64)
    refuse(is_file & (places + lengths > sizes), "extent lies outside its file")
    refuse(is_file & (lengths == 0) & (sizes != 0), "empty extent of a file that is not empty")
    if b"\0" in header.targets:
        raise FieldsFault("a link target holds a NUL byte")
