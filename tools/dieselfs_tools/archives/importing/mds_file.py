"""Samples of MosaicML Streaming (MDS): one file for each column. This module opens files."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, BinaryIO

import numpy as np
import xxhash

from dieselfs.errors import Damaged
from dieselfs.names import path_fault
from dieselfs_tools.archives.importing.content_types import npy, number, suffix_of
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.record import Place, Record
from dieselfs_tools.archives.importing.sample_shards import INDEX, samples, values

INDEX_BYTES_MAX = 64 << 20
"""Of an index, decompressed: it is read into memory, and names a shard in some 400 bytes."""
SUFFIXES = {"str": ".txt", "json": ".json", "jpeg": ".jpg", "png": ".png", "pkl": ".pkl", "pil": ".pil"}
TEXTS = ("str", "str_int", "str_float", "str_decimal")

_SCALARS = (
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
)
_SHAPE_TYPES = ("uint8", "uint16", "uint32", "uint64")
_ARRAY_TYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip


def recognizes(source: Input) -> bool:
    """Whether a folder has an index of shards."""
    return has_index(source, "shards")


def read(source: Input) -> Iterator[Record]:
    """Sample 7 has the files `00000007.image.jpg`, `00000007.label.npy`, .... Texts and numbers are fields of names.

    Numbers and arrays are .npy files; other values are files as they were encoded, also pickled ones, which are not
    opened. Raises Damaged.
    """
    index, mtime_ns = read_index(source)
    first = 0
    for shard in listed(index, "shards"):
        try:
            names, encodings, sizes = _columns(shard)
            packed = shard["zip_data"]
            data = shard["raw_data"]
            expected, hashes = int(shard["samples"]), dict(data.get("hashes") or {})
            files = {part["basename"]: part is packed for part in (data, packed) if part}
            name = data["basename"]
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise Damaged(f"{INDEX}: a shard has no proper description: {error!r}") from None
        with ExitStack() as stack:
            opened = open_shard(source, files, stack)
            stream = _Hashed(opened.stream(), hashes)
            found = 0
            for found, (begin, sample) in enumerate(samples(stream.as_file()), 1):
                key = number(first + found - 1)
                parts = values(sample, sizes)
                begin += len(sample) - sum(map(len, parts))  # behind the sizes
                yield from _records(key, names, encodings, parts, mtime_ns, begin, opened.place)
            if found != expected:
                raise Damaged(f"{name}: it has {found} of {expected} samples")
            stream.check(name)
        first += found


def _columns(shard: Any) -> tuple[list[str], list[str], list[int | None]]:
    """Names, encodings and sizes. Raises KeyError, TypeError, ValueError."""
    names, encodings = ([*map(checked_text, shard[f"column_{what}"])] for what in ("names", "encodings"))
    sizes = [None if size is None else int(size) for size in shard["column_sizes"]]
    if not len(names) == len(encodings) == len(sizes) or min(filter(None, sizes), default=0) < 0:
        raise ValueError("names, encodings and sizes of its columns")
    return names, encodings, sizes


def checked_text(text: Any) -> str:
    """Raises TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is not a text")
    return text


def read_index(source: Input) -> tuple[Any, int]:
    """The index of a folder, and its time, which a copy of a folder keeps more often than that of the folder. Raises
    Damaged.
    """
    with ExitStack() as stack:
        try:
            if (file := source.beside(INDEX, stack)) is not None:
                content = file.stream().read(INDEX_BYTES_MAX + 1)
                if len(content) > INDEX_BYTES_MAX:
                    raise ValueError(f"more than {INDEX_BYTES_MAX} bytes")
                return json.loads(content), file.mtime_ns
        except (OSError, ValueError, RecursionError) as error:
            raise Damaged(f"{INDEX}: {error}") from None
    raise Damaged(f"{INDEX} is missing")


def has_index(source: Input, key: str) -> bool:
    """Whether a folder has an index with this key."""
    try:
        index = read_index(source)[0] if source.is_folder else None
    except Damaged:
        return False
    return isinstance(index, dict) and key in index


def listed(index: Any, key: str) -> list[Any]:
    """The shards in an index. Raises Damaged."""
    try:
        shards = index[key]
        if isinstance(shards, list):
            return shards
        raise ValueError(f"{key} is no list")
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{INDEX}: {error}") from None


def open_shard(source: Input, files: Mapping[str, bool], stack: ExitStack) -> Input:
    """The first of these files of a folder that exists; the values: whether it is compressed. Raises Damaged."""
    for name, is_packed in files.items():
        if not isinstance(name, str) or path_fault(os.fsencode(name)) or not name:
            raise Damaged(f"{INDEX}: {name!r} is no name of a shard")
        if (shard := source.beside(name, stack, is_packed)) is not None:
            return shard
    raise Damaged(f"{next(iter(files))} is missing, which {INDEX} names")


def _records(
    key: str,
    names: list[str],
    encodings: list[str],
    parts: list[bytes],
    mtime_ns: int,
    begin: int,
    place_of: Callable[[int], Place | None],
) -> Iterator[Record]:
    """`begin`: of the first part in the shard; the others follow."""
    files = [*map(_file, encodings, parts)]
    fields = {
        name: _text(encoding, part)
        for name, encoding, part in zip(names, encodings, parts, strict=True)
        if encoding in TEXTS or encoding in _SCALARS or encoding == "int"
    }
    for name, part, (suffix, content) in zip(names, parts, files, strict=True):
        place = place_of(begin) if content is part else None
        record = Record.of(f"{key}.{name.replace('/', '.')}{suffix}".encode(), content, mtime_ns, place)
        record.fields = fields
        yield record
        begin += len(part)


def _text(encoding: str, part: bytes) -> str:
    if encoding in TEXTS:
        return part.decode("utf-8", "replace")
    return str(np.frombuffer(part, "int64" if encoding == "int" else encoding)[0])


def _file(encoding: str, part: bytes) -> tuple[str, bytes]:
    """Suffix and content of the file of a value. Raises Damaged."""
    kind, _, rest = encoding.partition(":")
    try:
        if kind == "int" or kind in _SCALARS:
            return ".npy", npy(np.frombuffer(part, "int64" if kind == "int" else kind).reshape(()))
        if kind == "ndarray":
            return ".npy", npy(_array(rest, part))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise Damaged(f"a value is no {encoding}: {error}") from None
    if kind in TEXTS:
        return ".txt", part
    return SUFFIXES.get(kind, suffix_of(part)), part


def _array(rest: str, part: bytes) -> Any:
    """`rest` of the encoding: empty, TYPE, or TYPE:SHAPE; what it does not say is at the begin of the value."""
    dtype, _, shape_text = rest.partition(":")
    place = 0
    if not dtype:
        dtype, place = _ARRAY_TYPES[part[0]], 1
    if dtype not in _SCALARS:
        raise ValueError(f"type {dtype}")
    if shape_text:
        shape = tuple(map(int, shape_text.split(",")))
    else:
        dimensions, shape_type = part[place] >> 2, np.dtype(_SHAPE_TYPES[part[place] & 3])
        place += 1
        end = place + dimensions * shape_type.itemsize
        shape, place = tuple(np.frombuffer(part[place:end], shape_type).tolist()), end
    return np.frombuffer(part[place:], dtype).reshape(shape)


class _Hashed:
    """A stream whose bytes are compared with the hashes that the index has, as far as the algorithm is known."""

    def __init__(self, stream: BinaryIO, hashes: dict[str, str]) -> None:
        self._stream = stream
        self._expected: list[tuple[Any, str]] = []
        for name, digest in hashes.items():
            algorithm: Callable[[], Any] | None = getattr(hashlib, name, None) or getattr(xxhash, name, None)
            if algorithm is not None and name.replace("_", "").isalnum():
                self._expected.append((algorithm(), digest))

    def as_file(self) -> Any:
        return self

    def read(self, size: int, /) -> bytes:
        content = self._stream.read(size)
        for running, _ in self._expected:
            running.update(content)
        return content

    def check(self, name: str) -> None:
        """Read the rest. Raises Damaged if a hash differs."""
        while self.read(1 << 20):
            pass
        for running, digest in self._expected:
            if running.hexdigest() != digest:
                raise Damaged(f"{name}: its {running.name} is not that of {INDEX}")
