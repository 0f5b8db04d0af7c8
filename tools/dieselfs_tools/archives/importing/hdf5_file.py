"""Datasets of an HDF5 file, row by row: groups are folders, and rows are .npy files. This module opens files."""

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from typing import Any

import numpy as np

from dieselfs.errors import Damaged
from dieselfs_tools.archives.formats import required
from dieselfs_tools.archives.importing.arrays import (
    Array,
    Block,
    imported,
    in_place,
    whole_file,
)
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.record import (
    FOLDER_MODE,
    RECORD_BYTES_MAX,
    Record,
    is_bomb,
    number,
)

DEPTH_MAX = 64
"""Groups in groups."""


def read(source: Input) -> Iterator[Record]:
    """A row of numbers is an .npy file, one of text a .txt file, and one of bytes of variable length is these bytes. So
    is a dataset of bytes (uint8) of one dimension.

    Raises Damaged. Types without a form as a file, as references, are faults of their records. So is what would read
    another file, or more memory than a record may need.
    """
    h5py = required("h5py")
    path = source.file()
    try:
        with ExitStack() as stack:
            # HDF5 looks for the real path of a link, and a temporary file has none.
            opened = stack.enter_context(open(path, "rb")) if os.path.islink(path) else path
            file = stack.enter_context(h5py.File(opened, "r", locking=False))
            yield from _group(h5py, file, "", source, {_address(h5py, file)})
    except (OSError, RuntimeError, KeyError) as error:
        raise Damaged(f"cannot be read as HDF5: {error}") from None


def _address(h5py: Any, group: Any) -> int:
    address: int = h5py.h5o.get_info(group.id).addr
    return address


def _group(
    h5py: Any, group: Any, path: str, source: Input, seen: set[int], depth: int = 1
) -> Iterator[Record]:
    """`seen`: the addresses of groups that were read, which may contain each other."""
    mtime_ns = source.mtime_ns
    for name in group:
        below = f"{path}/{name}" if path else name
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            what = (
                f"the file {link.filename}"
                if isinstance(link, h5py.ExternalLink)
                else f"the place {link.path}"
            )
            yield Record(
                below.encode(), mtime_ns, fault=f"a link of HDF5, which is not followed; import {what}"
            )
            continue
        item = group[name]
        if isinstance(item, h5py.Group):
            if (address := _address(h5py, item)) in seen:
                yield Record(
                    below.encode(), mtime_ns, fault="a group that has another name too, and is read there"
                )
                continue
            if depth >= DEPTH_MAX:
                raise Damaged(f"more than {DEPTH_MAX} groups in each other")
            seen.add(address)
            yield Record(below.encode(), mtime_ns, mode=FOLDER_MODE)
            yield from _group(h5py, item, below, source, seen, depth + 1)
        elif isinstance(item, h5py.Dataset):
            yield from _dataset(h5py, item, below, source)


def _danger(dataset: Any) -> str:
    """Why a dataset is not read, or nothing. Its content is not read for that."""
    if dataset.external or dataset.is_virtual:
        return "its content is in other files, which its file names; import a copy without external or virtual storage"
    item_bytes = dataset.dtype.itemsize
    whole_bytes = item_bytes * math.prod(dataset.shape or ())
    for what, shape in (("a row", (dataset.shape or ())[1:]), ("a chunk", dataset.chunks or ())):
        if (part_bytes := item_bytes * math.prod(shape)) > RECORD_BYTES_MAX:
            return f"{what} of it has {part_bytes} bytes, limit {RECORD_BYTES_MAX}"
    stored_bytes = dataset.id.get_storage_size()
    if is_bomb(whole_bytes, stored_bytes):
        return f"{whole_bytes} bytes in {stored_bytes}: a file made to fill memory or disk"
    return ""


def _dataset(h5py: Any, dataset: Any, path: str, source: Input) -> Iterator[Record]:
    """A scalar is one file; of an array, each row is one."""
    mtime_ns = source.mtime_ns
    if danger := _danger(dataset):
        yield Record(path.encode(), mtime_ns, fault=danger)
        return
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    vlen = h5py.check_vlen_dtype(dataset.dtype)
    if dataset.shape is None or (dataset.dtype.hasobject and not is_text and vlen is None):
        yield Record(path.encode(), mtime_ns, fault=f"an HDF5 {dataset.dtype}, which has no form as a file")
        return
    if dataset.shape == ():
        yield _record(path, dataset[()], mtime_ns)
        return
    if dataset.dtype.hasobject:
        for row in range(len(dataset)):
            yield _record(f"{path}/{number(row)}", dataset[row], mtime_ns)
        return
    array = Array.of(path, dataset.dtype, dataset.shape)
    if not source.form.is_in_place:
        yield from imported(source, array, lambda first, last: dataset[first:last])
    elif why := _not_in_place(h5py, dataset):
        yield Record(path.encode(), mtime_ns, fault=f"{why}; store it with dlcmd import")
    else:
        yield from in_place(source, array, _blocks(source, array, dataset))


def _not_in_place(h5py: Any, dataset: Any) -> str:
    """Why the file has not the numbers of a dataset as they are, row by row; or nothing."""
    if dataset.id.get_create_plist().get_nfilters():
        return "it is compressed, or changed by another filter"
    if dataset.id.get_type() != h5py.h5t.py_create(dataset.dtype, logical=True):
        return "its numbers have a form of their own"
    if dataset.chunks is None:
        return "" if dataset.id.get_offset() is not None or not dataset.size else "it has no place of its own"
    counts = (-(-size // part) for size, part in zip(dataset.shape, dataset.chunks, strict=True))
    if dataset.id.get_num_chunks() != math.prod(counts):
        return "some of its chunks were not written"
    return ""


def _blocks(source: Input, array: Array, dataset: Any) -> list[Block]:
    """Where its parts are. Raises Damaged for chunks that are not those of the dataset."""
    if array.total_bytes > source.size_bytes():
        raise Damaged(f"{dataset.name}: its {array.total_bytes} bytes are more than those of the file")
    if dataset.chunks is None:
        return [Block((0,) * len(array.shape), array.shape, dataset.id.get_offset() or 0, source)]
    chunks: list[tuple[tuple[int, ...], int]] = []
    dataset.id.chunk_iter(lambda one: chunks.append((one.chunk_offset, one.byte_offset)))
    chunks.sort()
    places = product(*(range(0, size, part) for size, part in zip(array.shape, dataset.chunks, strict=True)))
    if [first for first, _ in chunks] != [*places]:
        raise Damaged(f"{dataset.name}: its chunks are not those of the shape {array.shape}")
    step, *others = dataset.chunks
    return [
        Block(first, (min(step, len(dataset) - first[0]), *others), offset, source)
        for first, offset in chunks
    ]


def _record(path: str, value: Any, mtime_ns: int) -> Record:
    """One value: text, bytes, or an array."""
    if isinstance(value, str):
        return Record.of(f"{path}.txt".encode(), value.encode(), mtime_ns)
    if isinstance(value, bytes):
        return Record.of(f"{path}.txt".encode(), value, mtime_ns)
    array = np.asanyarray(value)
    if array.dtype.hasobject:
        return Record(
            path.encode(), mtime_ns, fault="an array of text or of arrays, which has no form as a file"
        )
    return whole_file(path, array, mtime_ns)
