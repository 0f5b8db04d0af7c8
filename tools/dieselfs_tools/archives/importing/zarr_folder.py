"""Rows of zarr arrays of versions 2 and 3, also in shards; of uncompressed ones as ranges. This module opens files.

A group needs consolidated metadata: the process that reads it sees no folders.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from operator import add, floordiv, mod, mul
from typing import Any, NamedTuple

import numpy as np

from dieselfs.errors import Damaged, InvalidInput, parse_fault
from dieselfs.names import printable
from dieselfs_tools.archives.importing.array_files import DIMENSIONS_MAX, ITEM_BYTES
from dieselfs_tools.archives.importing.arrays import Array, Block, imported, in_place
from dieselfs_tools.archives.importing.inputs import Input, label_of
from dieselfs_tools.archives.importing.record import Record
from dieselfs_tools.archives.importing.zarr_chunks import NotImported, Slabs, decoding

METADATA_BYTES_MAX = 64 << 20

_ARRAY_2, _ALL_2, _GROUP_2, _NODE_3 = ".zarray", ".zmetadata", ".zgroup", "zarr.json"
_LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
_INDEX_ITEM = 16
_CHECKSUM_BYTES = 4


class _Layout(NamedTuple):
    """How an array is stored. `chunk`: the shape of a file; `inner`: of a chunk in a shard, empty without shards. The
    file of a chunk is `prefix`, and its numbers with a separator between them. `fault`: why it is not attached.
    """

    array: Array
    chunk: tuple[int, ...]
    prefix: str
    separator: str
    inner: tuple[int, ...] = ()
    index_codecs: int = 0
    is_index_first: bool = False
    fault: str = ""

    def key(self, indexes: Sequence[int]) -> str:
        """The file of a chunk, by its numbers."""
        return self.prefix + self.separator.join(map(str, indexes))


def recognizes(source: Input) -> bool:
    """By the files with metadata in a folder."""
    if not source.is_folder:
        return False
    with ExitStack() as stack:
        return any(source.beside(base, stack) for base in (_NODE_3, _ARRAY_2, _ALL_2, _GROUP_2))


def read(source: Input) -> Iterator[Record]:
    """The rows of all arrays. Raises Damaged, InvalidInput."""
    name = printable(os.fsencode(source.name))
    try:
        for path, metadata in _arrays(source, name):
            shown = path or label_of(source.name)
            prefix = f"{path}/" if path else ""
            layout = (_layout_3 if metadata["zarr_format"] == 3 else _layout_2)(shown, prefix, metadata)
            if not source.form.is_in_place:
                yield from _imported(source, layout, metadata)
            elif layout.fault:
                fault = f"{layout.fault}; store it with dlcmd import"
                yield Record(shown.encode(), source.mtime_ns, fault=fault)
            else:
                yield from in_place(source, layout.array, _blocks(source, layout))
    except InvalidInput:  # a ValueError too
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"no proper metadata of zarr: {parse_fault(error)}") from None


def _imported(source: Input, layout: _Layout, metadata: Mapping[str, Any]) -> Iterator[Record]:
    """The .npy files of an array. Raises Damaged, ValueError, KeyError, TypeError."""
    array = layout.array
    try:
        if not layout.chunk and array.shape:
            raise NotImported(layout.fault)
        how = decoding(metadata, layout.chunk)
        slabs = Slabs(source, array.shape, layout.chunk, layout.key, how)
    except NotImported as error:
        fault = f"{error}; store the folder with dlcmd put -r"
        yield Record(array.name.encode(), source.mtime_ns, fault=fault)
        return
    yield from imported(source, array._replace(item_bytes=how.dtype.itemsize), slabs.read)


def _arrays(source: Input, name: str) -> Iterator[tuple[str, Any]]:
    """Path and metadata of each array."""
    array = node = _json(source, _NODE_3)
    if node is None:
        array = _json(source, _ARRAY_2)
    elif node["node_type"] != "array":
        array = None
    if array is not None:
        yield "", array
        return
    if node is not None:
        nodes = (node.get("consolidated_metadata") or {}).get("metadata")
        arrays = {path: one for path, one in (nodes or {}).items() if one["node_type"] == "array"}
    else:
        nodes = (_json(source, _ALL_2) or {}).get("metadata")
        suffix = f"/{_ARRAY_2}"
        arrays = {
            path.removesuffix(suffix): one for path, one in (nodes or {}).items() if path.endswith(suffix)
        }
    if nodes is None:
        raise InvalidInput(
            f"{name}: a group without a list of its arrays: name an array, or run zarr.consolidate_metadata"
        )
    yield from arrays.items()


def _json(source: Input, base: str) -> Any:
    """The content of a file; None if there is none. Raises ValueError."""
    with ExitStack() as stack:
        if (file := source.beside(base, stack, is_packed=False)) is None:
            return None
        content = file.stream().read(METADATA_BYTES_MAX + 1)
        if len(content) > METADATA_BYTES_MAX:
            raise ValueError(f"{base} has more than {METADATA_BYTES_MAX} bytes")
        return json.loads(content)


def _layout_2(name: str, prefix: str, metadata: Mapping[str, Any]) -> _Layout:
    """Raises ValueError, KeyError, TypeError."""
    shape, chunk, dtype = _numbers(metadata["shape"]), _numbers(metadata["chunks"]), metadata["dtype"]
    array, fault = Array.of(name, np.dtype(dtype if isinstance(dtype, str) else object), shape), ""
    if metadata["compressor"] or metadata["filters"]:
        fault = "it is compressed, or changed by a filter"
    elif metadata["order"] != "C" and len(shape) > 1:
        fault = "it is in Fortran order"
    elif not isinstance(dtype, str):
        fault = "it has records"
    separator = metadata.get("dimension_separator", ".")
    return _checked(_Layout(array, chunk, prefix if shape else f"{prefix}0", separator, fault=fault))


def _layout_3(name: str, prefix: str, metadata: Mapping[str, Any]) -> _Layout:
    """As `_layout_2`; one without chunks is not imported either."""
    shape, dtype = _numbers(metadata["shape"]), metadata["data_type"]
    grid, encoding, codecs = metadata["chunk_grid"], metadata["chunk_key_encoding"], metadata["codecs"]
    known = dtype if isinstance(dtype, str) and dtype in ITEM_BYTES else ""
    array = Array(name, known, ITEM_BYTES.get(known, 0), shape)
    if metadata.get("storage_transformers") or grid["name"] != "regular":
        return _Layout(array, (), prefix, "", fault="its chunks have a form of their own")
    chunk, is_default = _numbers(grid["configuration"]["chunk_shape"]), encoding["name"] == "default"
    separator = (encoding.get("configuration") or {}).get("separator", "/" if is_default else ".")
    if is_default:
        prefix += f"c{separator}" if shape else "c"
    elif not shape:
        prefix += "0"
    layout = _Layout(array, chunk, prefix, separator)
    sharding = codecs[0].get("configuration") if codecs[0]["name"] == "sharding_indexed" else None
    if not _are_plain(codecs if sharding is None else sharding["codecs"], array):
        return _checked(layout._replace(fault="it is compressed, or changed by another codec"))
    layout = _checked(layout)
    if sharding is None or layout.fault:
        return layout
    inner, index_codecs = _numbers(sharding["chunk_shape"]), [one["name"] for one in sharding["index_codecs"]]
    is_divided = len(inner) == len(chunk) > 0 and 0 not in inner and not any(map(mod, chunk, inner))
    if len(codecs) > 1 or index_codecs not in (["bytes"], ["bytes", "crc32c"]) or not is_divided:
        return layout._replace(fault="its shards have a form of their own")
    is_first = sharding.get("index_location", "end") == "start"
    return layout._replace(inner=inner, index_codecs=len(index_codecs), is_index_first=is_first)


def _are_plain(codecs: Any, array: Array) -> bool:
    """Whether codecs leave the numbers as they are, little-endian."""
    (first, *others) = codecs
    return not others and (first == _LITTLE or (first["name"] == "bytes" and array.item_bytes == 1))


def _numbers(values: Any) -> tuple[int, ...]:
    if len(values) > DIMENSIONS_MAX or not all(type(one) is int and one >= 0 for one in values):
        raise ValueError(f"{values} is no shape")
    return tuple(values)


def _checked(layout: _Layout) -> _Layout:
    """The layout. Raises ValueError."""
    shape, chunk = layout.array.shape, layout.chunk
    if len(chunk) != len(shape) or 0 in chunk:
        raise ValueError(f"{layout.array.name} has the shape {shape} and chunks {chunk}")
    return layout


def _blocks(source: Input, layout: _Layout) -> Iterator[Block]:
    """Raises Damaged for a missing chunk, and an index of a shard that is cut off, or names other lengths."""
    array, chunk = layout.array, layout.chunk
    counts = [-(-size // part) for size, part in zip(array.shape, chunk, strict=True)]
    for number in range(math.prod(counts)):  # without a list: a file may claim any count
        indexes = _indexes(number, counts)
        first = tuple(index * part for index, part in zip(indexes, chunk, strict=True))
        key = layout.key(indexes)
        with ExitStack() as stack:
            if (file := source.beside(key, stack, is_packed=False)) is None:
                raise Damaged(f"{key} is missing: the numbers there are those of the fill value")
            places = zip(chunk, array.shape, first, strict=True)
            used = [min(part, size - begin) for part, size, begin in places]
            if not layout.inner:
                yield Block(first, (*used[:1], *chunk[1:]), 0, file)
                continue
            for at, offset in _index(file, layout, key, used):
                begin = tuple(map(mul, at, layout.inner))
                shape = (min(layout.inner[0], used[0] - begin[0]), *layout.inner[1:])
                yield Block(tuple(map(add, first, begin)), shape, offset, file)


def _indexes(number: int, counts: list[int]) -> list[int]:
    """The numbers of a chunk in each dimension; the last one rises first."""
    found = []
    for size in reversed(counts):
        number, index = divmod(number, size)
        found.append(index)
    return found[::-1]


def _index(
    shard: Input, layout: _Layout, key: str, used: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], int]]:
    """The numbers of each chunk in a shard, and where it begins. `used`: how much of the shard is of the array; other
    chunks are left out.
    """
    counts = tuple(map(floordiv, layout.chunk, layout.inner))
    needed = [-(-many // part) for many, part in zip(used, layout.inner, strict=True)]
    chunk_bytes = layout.array.item_bytes * math.prod(layout.inner)
    length, size_bytes = math.prod(counts) * _INDEX_ITEM, shard.size_bytes()
    whole = length + (_CHECKSUM_BYTES if layout.index_codecs > 1 else 0)
    if whole + math.prod(needed) * chunk_bytes > size_bytes:
        raise Damaged(f"{key} is shorter than its index and chunks")
    index = shard.read_at(0 if layout.is_index_first else size_bytes - whole, length)
    places = np.frombuffer(index, "<u8").reshape(*counts, 2)[tuple(map(slice, needed))]
    if (places[..., 1] != chunk_bytes).any():
        raise Damaged(f"{key} has not all of its chunks, or chunks of another length")
    return zip(np.ndindex(*needed), places[..., 0].ravel().tolist(), strict=True)
