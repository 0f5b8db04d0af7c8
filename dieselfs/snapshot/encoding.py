"""Writes snapshot files (`docs/reference/snapshot-format.md`), into memory or into files that the caller has opened.
This module allocates and maps these files.

A section is written in blocks, so a snapshot may be larger than memory. All lengths but that of the last section are
known before, so each section has its place from the start.
"""

import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from dieselfs.columns import U8
from dieselfs.digests import FollowingDigest, digest_of, file_digest_of
from dieselfs.errors import InvalidInput
from dieselfs.fields import pack_fields, pack_preamble
from dieselfs.limits import GIB, SNAPSHOT_BYTES_MAX
from dieselfs.records import DatasetRecord
from dieselfs.snapshot.format import (
    ENCRYPTED,
    FORMAT_VERSION,
    MAGIC,
    NUMBERS,
    PREAMBLE,
    PREAMBLE_BYTES,
    SECTION,
    SECTION_ALIGNMENT,
    SECTION_TYPES,
    SIGNATURE_BYTES,
    SIGNER_BYTES,
    Section,
    SnapshotHeader,
    check_counts,
)
from dieselfs.snapshot.hash_index import hash_bits_for

Seal = Callable[[bytes], tuple[bytes, bytes]]
"""Signer and signature of a snapshot with this digest."""

_EXTENTS_AT_ONCE = 1 << 20
_LAST = "hash_slots"
assert next(reversed(SECTION_TYPES)) == _LAST


def unsigned(_digest: bytes) -> tuple[bytes, bytes]:
    return bytes(SIGNER_BYTES), bytes(SIGNATURE_BYTES)


class SnapshotWriter:
    """Writes one snapshot into `file`: empty, seekable, readable. Every method raises OSError of the file."""

    def __init__(
        self,
        file: BinaryIO,
        about: DatasetRecord | SnapshotHeader,
        numbers: Mapping[str, int],
        lengths: Mapping[str, int],
    ) -> None:
        """`numbers`: those of the header, without generation and time, which `about` has; `lengths`: bytes of all
        sections but the last one. Raises InvalidInput beyond COUNT_MAX and SNAPSHOT_BYTES_MAX.
        """
        check_counts(numbers)
        self._file = file
        self._about = about
        self._numbers = {"generation": about.generation, "updated_ns": about.updated_ns, **numbers}
        self._sections: dict[str, Section] = {}
        # The length of the header does not depend on the offsets of the sections.
        position = PREAMBLE_BYTES + len(self._header(bytes(len(SECTION_TYPES) * SECTION.size)))
        for name in SECTION_TYPES:
            position += -position % SECTION_ALIGNMENT
            self._sections[name] = Section(position, lengths.get(name, 0))
            position += lengths.get(name, 0)
        length_min = position + (SECTION_TYPES[_LAST].itemsize << numbers["hash_bits"])
        if length_min >= SNAPSHOT_BYTES_MAX:
            raise InvalidInput(
                f"a snapshot has at most {SNAPSHOT_BYTES_MAX // GIB} GiB, and {numbers['nodes']:,} entries need more: "
                "divide the dataset"
            )
        if not isinstance(file, BytesIO):
            # A full disk is an error here, and writing takes two thirds of the time.
            os.posix_fallocate(file.fileno(), 0, length_min)
        self._written = dict.fromkeys(SECTION_TYPES, 0)
        self._following: FollowingDigest | None = None
        self._found = b""

    def put(self, name: str, values: npt.NDArray[Any], first: int | None = None) -> None:
        """Write the next values of a section, in its type, or those from number `first` on. All are written once."""
        dtype = SECTION_TYPES[name]
        content = np.ascontiguousarray(values, dtype).reshape(-1).view(U8)
        start = self._written[name] if first is None else first * dtype.itemsize
        self._file.seek(self._sections[name].offset + start)
        self._file.write(content.data)
        self._written[name] += len(content)
        if self._following is not None:
            self._file.flush()
            self._following.written_to(self._sections[name].offset + start + len(content) - PREAMBLE_BYTES)

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """In the block, what is missing is written in the order of the file, and the last section is there already. The
        digest of a file is computed meanwhile.
        """
        if isinstance(self._file, BytesIO):
            yield
            return
        file_length, _ = self._write_header()
        with closing(FollowingDigest(memoryview(self._mapped(file_length))[PREAMBLE_BYTES:])) as following:
            self._following = following
            yield
            self._file.flush()
            self._found = following.finish()

    def read(self, name: str, first: int, count: int) -> npt.NDArray[Any]:
        """Values of a section that were written, from number `first` on."""
        dtype = SECTION_TYPES[name]
        self._file.seek(self._sections[name].offset + first * dtype.itemsize)
        return np.frombuffer(self._file.read(count * dtype.itemsize), dtype)

    def replace(self, name: str, first: int, values: npt.NDArray[Any]) -> None:
        """Write values that were written before again, from number `first` on."""
        dtype = SECTION_TYPES[name]
        self._file.seek(self._sections[name].offset + first * dtype.itemsize)
        self._file.write(np.ascontiguousarray(values, dtype).reshape(-1).view(U8).data)

    def finish(self, seal: Seal = unsigned) -> bytes:
        """Write header and preamble; returns the digest. Reads the whole file for it, unless `in_order` did.

        Raises ValueError if a section has another length than announced.
        """
        file_length, header = self._write_header()
        if self._written != {name: section.length for name, section in self._sections.items()}:
            raise ValueError("the columns do not have the lengths that the counts ask for")
        found = self._found or self._digest(file_length)
        is_encrypted = isinstance(self._about, SnapshotHeader) and self._about.is_encrypted
        preamble = _preamble(header, file_length, found, *seal(found), flags=ENCRYPTED if is_encrypted else 0)
        self._file.seek(0)
        self._file.write(preamble)
        self._file.flush()
        return found

    def _write_header(self) -> tuple[int, bytes]:
        """The last section is written. Returns the length of the file, and the header."""
        last = self._sections[_LAST] = Section(self._sections[_LAST].offset, self._written[_LAST])
        header = self._header(
            b"".join(SECTION.pack(each.offset, each.length) for each in self._sections.values())
        )
        self._file.seek(PREAMBLE_BYTES)
        self._file.write(header)
        return last.offset + last.length, header

    def _mapped(self, file_length: int) -> mmap.mmap:
        self._file.flush()
        return mmap.mmap(self._file.fileno(), file_length, access=mmap.ACCESS_READ)

    def _digest(self, file_length: int) -> bytes:
        """Of all that follows the preamble. A file is mapped: it would take twice the time to read it."""
        if isinstance(self._file, BytesIO):
            return digest_of(self._file.getbuffer()[PREAMBLE_BYTES:])
        with self._mapped(file_length) as mapped:
            return file_digest_of(memoryview(mapped)[PREAMBLE_BYTES:])

    def _header(self, sections: bytes) -> bytes:
        about = self._about
        name = about.name if isinstance(about, DatasetRecord) else about.dataset
        numbers = {each: self._numbers[each] for each in NUMBERS}
        return pack_fields({"dataset": name, "dataset_id": about.dataset_id, **numbers, "sections": sections})


def encode_columns(about: DatasetRecord | SnapshotHeader, columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The bytes of a snapshot file, with the counts of these columns, one per section; the rest is that of `about`."""
    nodes = len(columns["modes"])
    is_file = columns["modes"] & np.uint32(0o170000) == stat.S_IFREG
    numbers = {
        "nodes": nodes,
        "files": int(is_file.sum()),
        "total_bytes": int(columns["sizes"][is_file].sum()),
        "extents": len(columns["extent_chunks"]),
        "links": len(columns["link_nodes"]),
        "chunks": len(columns["chunk_payload_lengths"]),
        "hash_bits": hash_bits_for(nodes),
    }
    return encode_snapshot(about, numbers, columns)


def encode_snapshot(
    about: DatasetRecord | SnapshotHeader,
    numbers: Mapping[str, int],
    columns: Mapping[str, npt.NDArray[Any]],
) -> bytes:
    """As `encode_columns`, with other counts than those of the columns."""
    lengths = {
        name: columns[name].size * dtype.itemsize for name, dtype in SECTION_TYPES.items() if name != _LAST
    }
    file = BytesIO()
    writer = SnapshotWriter(file, about, numbers, lengths)
    for name in SECTION_TYPES:
        writer.put(name, columns[name])
    writer.finish()
    return file.getvalue()


def without_unused_chunks(columns: Mapping[str, npt.NDArray[Any]]) -> Mapping[str, npt.NDArray[Any]]:
    """The columns without the chunks in which no extent lies: which of these still exist depends on the last purge, so
    they cannot be part of a generation. The same object if there is none.
    """
    is_used = np.zeros(len(columns["chunk_payload_lengths"]), np.bool_)
    for start in range(0, len(columns["extent_chunks"]), _EXTENTS_AT_ONCE):
        is_used[columns["extent_chunks"][start : start + _EXTENTS_AT_ONCE]] = True
    if is_used.all():
        return columns
    return {
        **columns,
        "extent_chunks": (np.cumsum(is_used) - 1)[columns["extent_chunks"]],
        "chunk_ids": columns["chunk_ids"].reshape(-1, 16)[is_used].reshape(-1),
        **{name: columns[name][is_used] for name in ("chunk_digests", "chunk_payload_lengths")},
    }


def with_signature(data: bytes, header: SnapshotHeader, signer: bytes, signature: bytes) -> bytes:
    """The snapshot file `data`, which has this `header`, with another signature."""
    (length,) = struct.unpack_from("<I", data, 12)
    packed = data[PREAMBLE_BYTES : PREAMBLE_BYTES + length]
    return (
        _preamble(packed, header.file_length, header.digest, signer, signature)
        + memoryview(data)[PREAMBLE_BYTES:]
    )


def _preamble(
    header: bytes, file_length: int, digest: bytes, signer: bytes, signature: bytes, flags: int = 0
) -> bytes:
    header_sum = xxh3_64_intdigest(header)
    values = (len(header), file_length, header_sum, digest, signer, signature)
    return pack_preamble(PREAMBLE, MAGIC, FORMAT_VERSION, *values, flags=flags)
