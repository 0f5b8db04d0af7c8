"""Where the pages of a Parquet column have its numbers as they are. No I/O of its own: `Input` reads the file.

A page is a header, in the compact form of Thrift, and its data: levels, which say where nothing is, and the values.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from dieselfs.errors import Damaged
from dieselfs_tools.archives.importing.inputs import Input

HEADER_BYTES_MAX = 4 << 10
"""Of a page of numbers; it has the smallest and the largest of them."""

DEPTH_MAX = 8
"""Of structs in structs; a header has three."""

_ITEM_BYTES = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "FIXED_LEN_BYTE_ARRAY": 2}
_DATA, _DATA_2 = 0, 3
_PLAIN, _RLE = 0, 3
_LEVELS = struct.Struct("<I")


class NotPlain(Exception):
    """Why the file has not the numbers of a column as they are."""


class Page(NamedTuple):
    """`rows` numbers, which begin in the file at `offset`."""

    rows: int
    offset: int


def pages(source: Input, column: Any, levels: int, item_bytes: int) -> Iterator[Page]:
    """Those of a column of one row group, in order. `column`: what pyarrow says of it; `levels`: 1 if values may be
    missing, otherwise 0. Raises NotPlain, Damaged.
    """
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
    while left > 0:
        header = _Header(source.read_at(position, min(HEADER_BYTES_MAX, end - position)))
        try:
            found = header.fields()
            begin = position + header.position
            position = begin + found[3]
            rows, level_bytes = _rows(source, found, begin, levels)
            if min(rows, level_bytes) < 0:
                raise ValueError(f"{rows} rows, {level_bytes} bytes of levels")
        except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
            raise Damaged(f"a page has no proper header: {error!r}") from None
        if not begin <= position <= end or not 0 < rows <= left:
            raise Damaged("a page is outside of its column")
        if level_bytes + rows * item_bytes != found[3]:
            raise NotPlain("it has rows without a value")
        left -= rows
        yield Page(rows, begin + level_bytes)


def _rows(source: Input, page: dict[int, Any], begin: int, levels: int) -> tuple[int, int]:
    """How many rows a page has, and how many bytes of levels before their values. Raises NotPlain, and as `fields`."""
    is_second = page[1] == _DATA_2
    if page[1] not in (_DATA, _DATA_2):
        raise NotPlain("it has pages that are not of data")
    data = page[8 if is_second else 5]
    if data[4 if is_second else 2] != _PLAIN:
        raise NotPlain("its numbers are encoded")
    if is_second:
        return data[1], data[5] + data[6]
    if not levels:
        return data[1], 0
    if data[3] != _RLE:
        raise NotPlain("its levels are encoded")
    return data[1], _LEVELS.size + _LEVELS.unpack(source.read_at(begin, _LEVELS.size))[0]


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
                    length = self._varint()  # which moves the position, too
                    self.position += length
                case 12:
                    found[number] = self.fields(depth + 1)
                case _:
                    raise ValueError(f"a field of type {kind}")
        return found

    def _byte(self) -> int:
        self.position += 1
        return self._content[self.position - 1]

    def _varint(self) -> int:
        value = shift = 0
        while shift < 64:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("a number of more than 64 bits")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
