"""Rows of a Parquet file: its images and other bytes as files, the other columns as JSON. This module opens files.

The layout is that of Hugging Face `datasets`: an image is a struct of `bytes` and `path`, and names of classes are in
the metadata of the schema.
"""

import base64
import datetime
import decimal
import json
import os
import posixpath
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dieselfs.errors import Damaged, InvalidInput
from dieselfs.names import printable
from dieselfs_tools.archives.formats import required
from dieselfs_tools.archives.importing.arrays import Array, Block, in_place
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.parquet_pages import NotPlain, Page, pages
from dieselfs_tools.archives.importing.record import (
    RECORD_BYTES_MAX,
    Place,
    Record,
    is_bomb,
    number,
    suffix_of,
)

BATCH_ROWS = 64
BATCH_BYTES = 64 << 20
"""Rows that are read at once."""

_LENGTH = struct.Struct("<I")
_REPEATED_RATIO = 64
"""A column that is compressed so well may have a large value once, in its dictionary, and name it in each row."""


def read(source: Input) -> Iterator[Record]:
    """Row 7 has the files `00000007.jpg` and `00000007.json`; with several columns of bytes, `00000007.COLUMN.jpg`.

    In place and without rows, numbers are files of their own: `COLUMN/00000064.20.float32` are 20 from row 64 on, and
    `COLUMN/00000064.20x3.float32` are 20 lists of three.

    Fields for templates: the columns of numbers and text, and `path`. Raises Damaged,
    and InvalidInput for what cannot be attached.
    """
    pyarrow, parquet = required("pyarrow"), required("pyarrow.parquet")
    try:
        with parquet.ParquetFile(source.file()) as file:
            rows = Rows(pyarrow, file.schema_arrow, source.mtime_ns)
            if source.form.is_in_place and source.form.is_by_row is False:
                rows.numbers = _number_types(pyarrow.types, file.schema_arrow)
                for name, form in rows.numbers.items():
                    yield from _numbers(source, file, name, *form)
            first = 0
            if rows.numbers and len(rows.numbers) == len(file.schema_arrow):
                return
            for index in range(file.num_row_groups):
                group = file.metadata.row_group(index)
                if source.form.is_in_place:
                    rows.places = _places(source, group, rows.contents, bool(rows.numbers))
                at_once = rows_at_once(group, index)
                for batch in file.iter_batches(at_once, [index], use_threads=False):
                    for row, values in enumerate(batch.to_pylist()):
                        yield from rows.records(first + row, values)
                    first += len(batch)
    except (pyarrow.ArrowException, OSError) as error:
        raise Damaged(f"cannot be read as Parquet: {' '.join(str(error).split())}") from None


def rows_at_once(group: Any, index: int) -> int:
    """How many rows of a row group fit into BATCH_BYTES, by what the end of the file says. Raises Damaged."""
    columns = [group.column(place) for place in range(group.num_columns)]
    whole_bytes = sum(column.total_uncompressed_size for column in columns)
    stored_bytes = sum(column.total_compressed_size for column in columns)
    if is_bomb(whole_bytes, stored_bytes):
        raise Damaged(
            f"row group {index} has {whole_bytes} bytes in {stored_bytes}: made to fill memory or disk"
        )
    row_bytes: int = max(
        whole_bytes // max(group.num_rows, 1),
        *(
            column.total_uncompressed_size
            for column in columns
            if column.total_uncompressed_size > _REPEATED_RATIO * column.total_compressed_size
        ),
        1,
    )
    return max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes))


class _Places:
    """Finds values in the bytes of a column chunk that is not compressed: behind their length, in their order, or where
    an equal one was.
    """

    def __init__(self, source: Input, column: Any) -> None:
        """Raises Damaged for a place outside of the file."""
        pages = column.data_page_offset, column.dictionary_page_offset
        self._source = source
        self._begin = min(page for page in pages if page is not None)
        length = column.total_compressed_size
        if not 0 <= self._begin <= source.size_bytes() - length or length > RECORD_BYTES_MAX:
            raise Damaged(f"a column has {length} bytes at {self._begin}, limit {RECORD_BYTES_MAX}")
        self._content = source.read_at(self._begin, length)
        self._position = 0
        self._known: dict[int, int] = {}

    def of(self, value: bytes) -> Place | None:
        """None if it is not there, as in encodings that share beginnings; then nothing more is looked for."""
        key = hash(value)
        at = self._known.get(key, -1)
        if at < 0 or not self._content.startswith(value, at):
            at = self._content.find(_LENGTH.pack(len(value)) + value, self._position) + _LENGTH.size
            if at < _LENGTH.size:
                self._content = b""
                return None
            self._position, self._known[key] = at + len(value), at
        return self._source.place(self._begin + at)


def _number_types(types: Any, schema: Any) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """The columns of numbers by their names: the type, and the shape of a row; -1 for lists of any size."""
    found = {}
    for field in schema:
        kind, sizes = field.type, []
        while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            sizes.append(kind.list_size if types.is_fixed_size_list(kind) else -1)
            kind = kind.value_type
        if types.is_integer(kind) or types.is_floating(kind):
            found[field.name] = kind, tuple(sizes)
    return found


def _numbers(source: Input, file: Any, name: str, kind: Any, row_shape: tuple[int, ...]) -> Iterator[Record]:
    """A column as files in place, one for each page; or why not."""
    try:
        if min(row_shape, default=1) < 1:
            raise NotPlain("it is nested")
        array = Array.of(name, np.dtype(kind.to_pandas_dtype()), (file.metadata.num_rows, *row_shape))
        found = [*_pages(source, file, array)]
    except NotPlain as error:
        fault = f"{error}; store its rows with dlcmd import"
        yield Record(name.encode(), source.mtime_ns, fault=fault)
        return
    row = 0
    for page in found:
        shape = (page.rows, *row_shape)
        part = array._replace(name=f"{name}/{number(row)}", shape=shape)
        yield from in_place(source, part, [Block((0,) * len(shape), shape, page.offset, source)])
        row += page.rows


def _pages(source: Input, file: Any, array: Array) -> Iterator[Page]:
    """Of a column, through all row groups. Raises NotPlain, Damaged."""
    row_shape, paths = array.shape[1:], [column.path for column in file.schema]
    inner = array.name + "."
    columns = [
        place
        for place, path in enumerate(paths)
        if path == array.name or (row_shape and path.startswith(inner))
    ]
    if len(columns) != 1:
        raise NotPlain("its name is not unique")
    form = file.schema.column(columns[0])
    for index in range(file.num_row_groups):
        column = file.metadata.row_group(index).column(columns[0])
        try:
            yield from pages(source, column, form, array.item_bytes, row_shape)
        except Damaged as error:
            raise Damaged(f"{array.name} in row group {index}: {error}") from None


def _places(source: Input, group: Any, names: list[str], has_numbers: bool) -> dict[str, _Places]:
    """Of the uncompressed columns among those of bytes of a row group, by their names. Raises InvalidInput if there is
    none, and no numbers are attached.
    """
    columns = [group.column(place) for place in range(group.num_columns)]
    wanted = {*names, *(f"{name}.bytes" for name in names)}
    found = {
        column.path_in_schema: _Places(source, column)
        for column in columns
        if column.path_in_schema in wanted and column.compression == "UNCOMPRESSED"
    }
    if not found and not has_numbers:
        name = printable(os.fsencode(source.name))
        raise InvalidInput(
            f"{name}: no column of bytes is uncompressed; store its rows with dlcmd import, "
            "or attach its numbers with --whole"
        )
    return found


class Rows:
    """Makes records of rows. `contents`: the columns of bytes; `places`: those of values, by the names of columns;
    `numbers`: columns that have files of their own.
    """

    def __init__(self, pyarrow: Any, schema: Any, mtime_ns: int) -> None:
        types = pyarrow.types
        self._mtime_ns = mtime_ns
        self.places: dict[str, _Places] = {}
        self.numbers: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self.contents = [
            field.name
            for field in schema
            if types.is_binary(field.type) or types.is_large_binary(field.type) or _is_file(types, field.type)
        ]
        self._classes = _class_names(schema.metadata or {})

    def records(self, index: int, values: dict[str, Any]) -> Iterator[Record]:
        rest = {name: value for name, value in values.items() if name not in self.contents}
        fields = {name: str(value) for name, value in rest.items() if isinstance(value, str | int | float)}
        rest = {name: value for name, value in rest.items() if name not in self.numbers}
        for name, classes in self._classes.items():
            label = values.get(name)
            if isinstance(label, int) and 0 <= label < len(classes):
                fields[name] = classes[label]
        beside = ""  # the path of an image, without its suffix, for the other columns
        for name in self.contents:
            value = values[name]
            content, path = (
                (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
            )
            key = number(index) if len(self.contents) == 1 else f"{number(index)}.{name}"
            if content is None:
                if value is not None:
                    fault = f"the image is not in the file, but at {path}"
                    yield Record(key.encode(), self._mtime_ns, fault=fault)
                continue
            suffix = posixpath.splitext(path or "")[1] or suffix_of(content)
            places = self.places.get(f"{name}.bytes" if isinstance(value, dict) else name)
            place = places.of(content) if places is not None else None
            record = Record.of((key + suffix).encode(), content, self._mtime_ns, place)
            record.fields = {**fields, "path": path} if path else fields
            beside = beside or posixpath.splitext(path or "")[0]
            yield record
        if rest:
            text = json.dumps(rest, ensure_ascii=False, default=_jsonable).encode()
            record = Record.of(f"{number(index)}.json".encode(), text, self._mtime_ns)
            record.fields = {**fields, "path": f"{beside}.json"} if beside else fields
            yield record


def _is_file(types: Any, kind: Any) -> bool:
    """Whether a type is an image or a sound of `datasets`."""
    if not types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    content = kind.field("bytes").type
    return bool(types.is_binary(content) or types.is_large_binary(content))


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Names of the classes of each column, as `datasets` notes them."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        return {
            name: list(map(str, feature["names"]))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and "names" in feature
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _jsonable(value: object) -> object:
    """Values that JSON has not: times in ISO 8601, bytes in base64, others as text."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, decimal.Decimal) else repr(value)
