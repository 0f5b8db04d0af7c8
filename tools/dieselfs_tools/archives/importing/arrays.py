"""Arrays of sources as files: a row each, or the whole array. No I/O of its own.

For an import they are .npy files. For `dlcmd attach` they are ranges of the source, whose names say type and shape
(`dieselfs/raw_array.py`).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from operator import add
from typing import Any, NamedTuple

import numpy as np

from dieselfs.errors import Damaged
from dieselfs.raw_array import raw_name
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.record import (
    RECORD_BYTES_MAX,
    Range,
    Record,
    npy,
    npy_rows,
    number,
    suffix_of,
)

BLOCK_BYTES = 4 << 20
"""Rows that are read at once."""

HEAD_BYTES = 16
"""Enough to know images and sound."""

ROW_PIECES_MAX = 32
"""A row that is in chunks in more pieces is not attached: each is an extent of 60 bytes in each snapshot, and a read of
its own.
"""

ROW_BYTES_MIN = 16
"""Smaller rows are seldom meant to be files, so an option must say so."""

_IMPORT = "; store it with dlcmd import"

NAMED_KINDS = "?biufc"
"""The kinds of numpy types whose name says all but the byte order."""


class Block(NamedTuple):
    """A part of an array that is a range of `source`, from `offset` on, in bytes: `first` is the place of its first
    number in each dimension, and `shape` its shape.
    """

    first: tuple[int, ...]
    shape: tuple[int, ...]
    offset: int
    source: Input


class Array(NamedTuple):
    """An array of a source. `dtype`: as `numpy` and `torch` name it; empty if a name cannot say it."""

    name: str
    dtype: str
    item_bytes: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, dtype: Any, shape: Sequence[int]) -> "Array":
        """Of a numpy type. Big-endian numbers, text and records have no name."""
        is_named = dtype.kind in NAMED_KINDS and dtype == dtype.newbyteorder("<")
        return cls(name, dtype.name if is_named else "", dtype.itemsize, tuple(shape))

    @property
    def row_bytes(self) -> int:
        return self.item_bytes * math.prod(self.shape[1:])

    @property
    def total_bytes(self) -> int:
        return self.item_bytes * math.prod(self.shape)

    def is_whole(self, is_by_row: bool | None) -> bool:
        """Whether it is one file: bytes of one dimension are, if no option says otherwise."""
        if not self.shape or (is_by_row and not self.row_bytes):
            return True
        if is_by_row is None:
            return self.dtype == "uint8" and len(self.shape) == 1
        return not is_by_row

    def fault(self, is_by_row: bool | None) -> str:
        """Why no files are made of it, or nothing."""
        if is_by_row is None and not self.is_whole(None) and self.shape[0] and self.row_bytes < ROW_BYTES_MIN:
            return (
                f"it has {self.shape[0]} rows of {self.row_bytes} bytes: --whole makes one file of it, "
                "--rows a file of each row"
            )
        return ""


def imported(source: Input, array: Array, read: Callable[[int, int], Any]) -> Iterator[Record]:
    """The .npy files of an array. `read`: the rows from one number to another, of shape (rows, *shape[1:]); of a scalar
    the value, for 0 and 0.
    """
    is_by_row, mtime_ns = source.form.is_by_row, source.mtime_ns
    if fault := array.fault(is_by_row):
        yield Record(array.name.encode(), mtime_ns, fault=fault)
        return
    rows = array.shape[0] if array.shape else 0
    if array.is_whole(is_by_row):
        if array.total_bytes > RECORD_BYTES_MAX:
            fault = (
                f"{array.total_bytes} bytes for one file, limit {RECORD_BYTES_MAX}; --rows makes more files"
            )
            yield Record(array.name.encode(), mtime_ns, fault=fault)
        else:
            yield whole_file(array.name, np.asanyarray(read(0, rows)), mtime_ns)
        return
    step = max(1, BLOCK_BYTES // max(array.row_bytes, 1))
    for start in range(0, rows, step):
        block = read(start, min(start + step, rows))
        content = npy_rows(block)
        for row in range(len(block)):
            yield Record.of(f"{array.name}/{number(start + row)}.npy".encode(), content(row), mtime_ns)


def whole_file(name: str, array: Any, mtime_ns: int) -> Record:
    """An array as one file; bytes of one dimension that are an image or sound are these bytes."""
    if array.dtype == np.uint8 and array.ndim == 1:
        content = array.tobytes()
        if suffix := suffix_of(content):
            return Record.of((name + suffix).encode(), content, mtime_ns)
    return Record.of(f"{name}.npy".encode(), npy(array), mtime_ns)


def in_place(source: Input, array: Array, blocks: Iterable[Block]) -> Iterator[Record]:
    """The files of an array as ranges of the source, or of files in its folder: rows, or blocks with parts of rows if
    these have nothing else. `blocks` are all of it, and are kept while others of the same rows follow. Raises Damaged
    for a place outside of a file.
    """
    is_by_row, mtime_ns, name = source.form.is_by_row, source.mtime_ns, array.name

    def refused(why: str) -> Record:
        return Record(name.encode(), mtime_ns, fault=why)

    if not array.dtype:
        yield refused(f"its type has no form in place{_IMPORT}")
        return
    if fault := array.fault(is_by_row):
        yield refused(fault)
        return
    is_whole = array.is_whole(is_by_row)
    if is_whole and not array.total_bytes:  # chunked, it has no blocks
        yield Record.of(raw_name(name, array.dtype, array.shape).encode(), b"", mtime_ns)
        return
    row, parts = array.shape[1:], defaultdict[int, list[Block]](list)  # by their first row
    for block in blocks:
        begin, length, chunk = block.offset, array.item_bytes * math.prod(block.shape), block.shape[1:]
        if begin < 0 or begin + length > block.source.size_bytes():
            raise Damaged(f"{name}: its bytes from {begin} to {begin + length} are outside of the file")
        if is_whole and block.shape != array.shape:  # also one that is padded
            yield refused(f"it is in several parts{_IMPORT}")
            return
        if is_whole:
            path = raw_name(name, array.dtype, array.shape)
            is_bytes = array.dtype == "uint8" and len(array.shape) == 1
            head = block.source.read_at(begin, min(length, HEAD_BYTES)) if is_bytes else b""
            if suffix := suffix_of(head):
                path = name + suffix
            yield Record(path.encode(), mtime_ns, length, place=block.source.place(begin))
            return
        if chunk == row:
            for place in range(block.shape[0]):
                path = raw_name(f"{name}/{number(block.first[0] + place)}", array.dtype, row)
                at = block.source.place(begin + place * array.row_bytes)
                yield Record(path.encode(), mtime_ns, array.row_bytes, place=at)
        elif is_by_row or any(size % part for size, part in zip(row, chunk, strict=True)):
            if (pieces := _pieces_of_row(row, chunk)) > ROW_PIECES_MAX:
                yield refused(f"its chunks have each row in {pieces} pieces, limit {ROW_PIECES_MAX}{_IMPORT}")
                return
            found = parts[block.first[0]]
            found.append(block)
            if len(found) == math.prod(-(-size // part) for size, part in zip(row, chunk, strict=True)):
                yield from _divided_rows(array, parts.pop(block.first[0]), mtime_ns)
        else:
            path = raw_name(f"{name}/{'.'.join(map(number, block.first))}", array.dtype, block.shape)
            yield Record(path.encode(), mtime_ns, length, place=block.source.place(begin))


def _cut(row: Sequence[int], chunk: Sequence[int]) -> int:
    """The last dimension in which chunks are not those of the row: behind it, the bytes of both are the same."""
    return max(place for place, (size, part) in enumerate(zip(row, chunk, strict=True)) if size != part)


def _pieces_of_row(row: Sequence[int], chunk: Sequence[int]) -> int:
    """In how many ranges of chunks a row is. `row`, `chunk`: shapes without the first dimension."""
    cut = _cut(row, chunk)
    return math.prod(row[:cut]) * -(-row[cut] // chunk[cut])


def _divided_rows(array: Array, parts: Sequence[Block], mtime_ns: int) -> Iterator[Record]:
    """Rows of which each of `parts` has a part. What it has of padding is left out."""
    row_shape, found = array.shape[1:], list[tuple[int, Block, int, int]]()
    for part in parts:
        chunk, first = part.shape[1:], part.first[1:]
        cut = _cut(row_shape, chunk)
        unit = array.item_bytes * math.prod(row_shape[cut + 1 :])
        used = [min(many, size - begin) for many, size, begin in zip(chunk, row_shape, first, strict=True)]
        for at in product(*map(range, used[:cut])):
            there = np.ravel_multi_index((*map(add, first, at), first[cut]), row_shape[: cut + 1])
            here = np.ravel_multi_index((*at, 0), chunk[: cut + 1])
            found.append((int(there) * unit, part, part.offset + int(here) * unit, used[cut] * unit))
    found.sort(key=lambda one: one[0])
    for row in range(parts[0].shape[0]):
        pieces = [
            Range(part.source.name, offset + row * array.item_bytes * math.prod(part.shape[1:]), length)
            for _, part, offset, length in found
        ]
        path = raw_name(f"{array.name}/{number(parts[0].first[0] + row)}", array.dtype, row_shape)
        yield Record(path.encode(), mtime_ns, array.row_bytes, pieces=pieces)
