"""Where the pages of a Parquet column have its numbers as they are. No I/O of its own: `Input` reads the file.

A page is a header, in the compact form of Thrift, and its data: levels, which say where lists begin and where nothing
is, and the values.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.errors import Damaged
from dieselfs_tools.archives.importing.inputs import Input

HEADER_BYTES_MAX = 4 << 10
"""Of a page of numbers; it has the smallest and the largest of them."""

DEPTH_MAX = 8
"""Of structs in structs, of which a header has three; and of lists in lists."""

_ITEM_BYTES = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "FIXED_LEN_BYTE_ARRAY": 2}
_DATA, _DATA_2 = 0, 3
_PLAIN, _RLE = 0, 3
_LEVELS = struct.Struct("<I")


class NotPlain(Exception):
    """Why the file has not the numbers of a column as they are."""


class Page(NamedTuple):
    """`rows` numbers, or lists of them, which begin in the file at `offset`."""

    rows: int
    offset: int


def pages(
    source: Input, column: Any, form: Any, item_bytes: int, row_shape: Sequence[int] = ()
) -> Iterator[Page]:
    """Those of a column of one row group, in order. `column`, `form`: what pyarrow says of it, and of its schema;
    `row_shape`: of lists of fixed sizes. Raises NotPlain, Damaged.
    """
    if form.max_repetition_level != len(row_shape) or len(row_shape) > DEPTH_MAX:
        raise NotPlain("it is nested")
    if column.compression != "UNCOMPRESSED":
        raise NotPlain("it is compressed")
    if _ITEM_BYTES.get(column.physical_type) != item_bytes:
        raise NotPlain("its type has no form in place")
    if column.dictionary_page_offset is not None:
        raise NotPlain("its numbers are in a dictionary")
    position, left = column.data_page_offset, column.num_values
    end = position + column.total_compressed_size
    if not 0 <= position <= end <= source.size_bytes():
        raise Damaged(f"its bytes {position} to {end} are outside of the file")
    if left > 0 and math.prod(row_shape) * item_bytes > end - position:  # before memory is taken for a row
        raise NotPlain("it has rows without a value")
    starts = _repetitions(row_shape if left > 0 else ())
    while left > 0:
        header = _Header(source.read_at(position, min(HEADER_BYTES_MAX, end - position)))
        try:
            found = header.fields()
            begin = position + header.position
            position = begin + found[3]
            items, repetitions, level_bytes = _items(source, found, begin, form)
            if min(items, repetitions[1], level_bytes - repetitions[1]) < 0:
                raise ValueError(f"{items} values, {level_bytes} bytes of levels")
        except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
            raise Damaged(f"a page has no proper header: {error!r}") from None
        if not begin <= position <= end or not 0 < items <= left:
            raise Damaged("a page is outside of its column")
        if level_bytes + items * item_bytes != found[3]:
            raise NotPlain("it has rows without a value")
        if items % len(starts):
            raise NotPlain("a row is in two pages")
        if row_shape:
            try:
                levels = _levels(source.read_at(*repetitions), len(row_shape).bit_length(), items)
            except (IndexError, ValueError) as error:
                raise Damaged(f"a page has no proper levels: {error!r}") from None
            if (levels.reshape(-1, len(starts)) != starts).any():
                raise Damaged("its lists are not of the size that the file says")
        left -= items
        yield Page(items // len(starts), begin + level_bytes)


def _repetitions(row_shape: Sequence[int]) -> npt.NDArray[np.uint8]:
    """The repetition level of each number of a row: how many of the lists around it began before it."""
    levels = np.full(math.prod(row_shape), len(row_shape), np.uint8)
    for depth in reversed(range(len(row_shape))):
        levels[:: math.prod(row_shape[depth:])] = depth
    return levels


def _levels(content: bytes, bits: int, count: int) -> npt.NDArray[np.uint8]:
    """`count` levels, which are runs of one level, and groups of eight. Raises IndexError, ValueError."""
    header, levels, found = _Header(content), np.empty(count, np.uint8), 0
    while found < count:
        run = header.varint()
        if run & 1:
            length = min(run >> 1, len(content)) * bits
            packed = np.frombuffer(content, np.uint8, length, header.position)
            header.position += length
            each = np.packbits(np.unpackbits(packed, bitorder="little").reshape(-1, bits), 1, "little")[:, 0]
        else:
            each = np.full(min(run >> 1, count - found), content[header.position], np.uint8)
            header.position += 1
        each = each[: count - found]
        levels[found : found + len(each)] = each
        found += len(each)
    return levels


def _items(source: Input, page: dict[int, Any], begin: int, form: Any) -> tuple[int, tuple[int, int], int]:
    """How many numbers a page has, where its repetition levels begin and their bytes, and how many bytes all levels
    before the numbers have. Raises NotPlain, and as `fields`.
    """
    is_second = page[1] == _DATA_2
    if page[1] not in (_DATA, _DATA_2):
        raise NotPlain("it has pages that are not of data")
    data = page[8 if is_second else 5]
    if data[4 if is_second else 2] != _PLAIN:
        raise NotPlain("its numbers are encoded")
    if is_second:
        return data[1], (begin, data[6]), data[5] + data[6]
    position, repetitions = begin, (begin, 0)
    for field, highest in ((4, form.max_repetition_level), (3, form.max_definition_level)):
        if highest:
            if data[field] != _RLE:
                raise NotPlain("its levels are encoded")
            first = position + _LEVELS.size
            (length,) = _LEVELS.unpack(source.read_at(position, _LEVELS.size))
            repetitions = (first, length) if field == 4 else repetitions
            position = first + length
    return data[1], repetitions, position - begin


class _Header:
    """Reads a struct of Thrift. `position`: behind what was read."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.position = 0

    def fields(self, depth: int = 0) -> dict[int, Any]:
        """The fields by their numbers. Raises IndexError at an early end, ValueError for what a header has not."""
        if depth > DEPTH_MAX:
            raise ValueError("structs in structs")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            kind, step = head & 15, head >> 4
            number = number + step if step else self._integer()
            match kind:
                case 1 | 2:
                    found[number] = kind == 1
                case 3:
                    found[number] = self._byte()
                case 4 | 5 | 6:
                    found[number] = self._integer()
                case 8:
                    length = self.varint()  # which moves the position, too
                    self.position += length
                case 12:
                    found[number] = self.fields(depth + 1)
                case _:
                    raise ValueError(f"a field of type {kind}")
        return found

    def _byte(self) -> int:
        self.position += 1
        return self._content[self.position - 1]

    def varint(self) -> int:
        value = shift = 0
        while shift < 64:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("a number of more than 64 bits")

    def _integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)
