"""Arrays of NumPy's .npy files, tensors of safetensors files, and files as they are. This module opens files.

Headers say types, shapes and places; all of it is compared with the length of the file.
"""

import json
import os
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from dieselfs.errors import Damaged, InvalidInput, parse_fault
from dieselfs.raw_array import raw_name
from dieselfs_tools.archives.importing.arrays import Array, Block, imported, in_place
from dieselfs_tools.archives.importing.inputs import Input, base_of, label_of
from dieselfs_tools.archives.importing.record import Record

HEADER_BYTES_MAX = 100_000_000
"""Of a safetensors file, as its library has it."""

_LENGTH_BYTES = 8
DIMENSIONS_MAX = 64
_TENSOR_TYPES = {
    "BOOL": ("bool", 1), "U8": ("uint8", 1), "I8": ("int8", 1), "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3": ("float8_e4m3fn", 1), "I16": ("int16", 2), "U16": ("uint16", 2), "F16": ("float16", 2),
    "BF16": ("bfloat16", 2), "I32": ("int32", 4), "U32": ("uint32", 4), "F32": ("float32", 4),
    "I64": ("int64", 8), "U64": ("uint64", 8), "F64": ("float64", 8), "C64": ("complex64", 8),
}  # fmt: skip

ITEM_BYTES = {**dict(_TENSOR_TYPES.values()), "complex128": 16}
"""Bytes of a number, by the name of its type."""


def read_file(source: Input) -> Iterator[Record]:
    """The whole source, with its own name. Raises InvalidInput for a folder."""
    if source.is_folder:
        raise InvalidInput("it is a folder: name the files in it")
    with open(source.file(), "rb") as file:
        name, size = os.fsencode(base_of(source.name)), os.fstat(file.fileno()).st_size
        content, place = (None, source.place(0)) if size else (b"", None)
        yield Record(name, source.mtime_ns, size, content, partial(_at, file, 0), place=place)


def read_npy(source: Input) -> Iterator[Record]:
    """Rows are files in a folder with the name of the source, without its suffix. Raises Damaged, InvalidInput."""
    with open(source.file(), "rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, is_fortran, dtype = read_header(file)
        except Exception as error:  # also of the parser of Python
            raise Damaged(f"no proper header of NumPy: {' '.join(str(error).split())}") from None
        if dtype.hasobject:
            raise InvalidInput(f"{source.name}: objects of Python, which could run code, are not read")
        array = Array.of(label_of(source.name), dtype, shape)
        if min(shape, default=0) < 0:
            raise Damaged(f"its header says the shape {shape}")
        if is_fortran and len(shape) > 1:
            raise InvalidInput(
                f"{source.name}: it is in Fortran order; write it with numpy.ascontiguousarray"
            )
        yield from _files(source, file, array, dtype, file.tell())


def recognizes_safetensors(source: Input) -> bool:
    """By the length at its begin, and the bracket behind it."""
    head = source.head
    return head[_LENGTH_BYTES : _LENGTH_BYTES + 2] == b'{"' and _header_bytes(head) <= HEADER_BYTES_MAX


def _header_bytes(head: bytes) -> int:
    return int.from_bytes(head[:_LENGTH_BYTES], "little")


def read_safetensors(source: Input) -> Iterator[Record]:
    """A tensor is a file with its name. Raises Damaged."""
    if source.form.is_by_row is None:
        source.form = source.form._replace(is_by_row=False)
    with open(source.file(), "rb") as file:
        length = _header_bytes(file.read(_LENGTH_BYTES))
        if length > HEADER_BYTES_MAX:
            raise Damaged(f"its header has {length} bytes, limit {HEADER_BYTES_MAX}")
        try:
            tensors = json.loads(file.read(length))
            tensors.pop("__metadata__", None)
            found = sorted(map(_tensor, tensors, tensors.values()), key=lambda one: one[1])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"no proper header of safetensors: {parse_fault(error)}") from None
        end = 0
        for array, begin, dtype in found:
            if begin < end:
                raise Damaged(f"{array.name}: its bytes are also those of another tensor")
            end = begin + array.total_bytes
            if not array.dtype:
                fault = "the type of the tensor is not known; store the file as it is, with dlcmd put"
                yield Record(array.name.encode(), source.mtime_ns, fault=fault)
                continue
            yield from _files(source, file, array, dtype, _LENGTH_BYTES + length + begin)


def _tensor(name: str, facts: Any) -> tuple[Array, int, Any]:
    """The tensor, where it begins behind the header, and its numpy type, None without one. Raises ValueError,
    KeyError, TypeError.
    """
    shape, (begin, end) = facts["shape"], facts["data_offsets"]
    dtype, item_bytes = _TENSOR_TYPES.get(facts["dtype"], ("", 0))
    if len(shape) > DIMENSIONS_MAX or not all(type(one) is int and one >= 0 for one in (*shape, begin, end)):
        raise ValueError(f"{name} has the shape {shape} from {begin} to {end}")
    array = Array(name, dtype, item_bytes, tuple(shape))
    if dtype and end - begin != array.total_bytes:
        raise ValueError(f"{name} has {end - begin} bytes for the shape {shape}")
    is_numpy = dtype and not dtype.startswith(("bfloat", "float8"))
    return array, begin, np.dtype(dtype) if is_numpy else None


def _files(source: Input, file: BinaryIO, array: Array, dtype: Any, begin: int) -> Iterator[Record]:
    """`dtype`: of numpy; None if it has none, and the bytes are the file."""
    if source.form.is_in_place:
        yield from in_place(source, array, [Block((0,) * len(array.shape), array.shape, begin, source)])
        return
    if begin + array.total_bytes > os.fstat(file.fileno()).st_size:
        raise Damaged(f"{array.name}: it ends behind the end of the file")
    if dtype is None:
        name = raw_name(array.name, array.dtype, array.shape).encode()
        opened = partial(_at, file, begin)
        yield Record(name, source.mtime_ns, array.total_bytes, opened=opened, place=source.place(begin))
        return

    def read(first: int, last: int) -> Any:
        if not array.shape:
            return np.frombuffer(_read_at(file, begin, array.item_bytes), dtype).reshape(())
        content = _read_at(file, begin + first * array.row_bytes, (last - first) * array.row_bytes)
        return np.frombuffer(content, dtype).reshape(last - first, *array.shape[1:])

    yield from imported(source, array, read)


def _at(file: BinaryIO, offset: int) -> BinaryIO:
    file.seek(offset)
    return file


def _read_at(file: BinaryIO, offset: int, length: int) -> bytes:
    return _at(file, offset).read(length)
