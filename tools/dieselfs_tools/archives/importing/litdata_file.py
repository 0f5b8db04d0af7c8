"""Samples of LitData: one file for each leaf of a sample. This module opens files."""

import json
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from dieselfs.errors import Damaged, InvalidInput
from dieselfs_tools.archives.importing.content_types import npy, number, suffix_of
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.mds_file import checked_text, has_index, listed, open_shard, read_index
from dieselfs_tools.archives.importing.record import Record
from dieselfs_tools.archives.importing.sample_shards import INDEX, samples, values

BATCHES = "batch"
"""The level of compression of chunks whose samples are compressed in batches."""

LOADER = "PyTreeLoader"
SUFFIXES = {
    "str": ".txt",
    "text": ".txt",
    "json": ".json",
    "jpeg": ".jpg",
    "pickle": ".pkl",
    "tifffile": ".tif",
}

_NUMPY_TYPES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "bool",
)  # fmt: skip
_TORCH_TYPES = (
    "float32", "float32", "float64", "float64", "complex64", "complex64", "complex128", "complex128", "float16",
    "float16", "", "uint8", "int8", "int16", "int16", "int32", "int32", "int64", "int64", "bool", "uint16",
)  # fmt: skip
_NESTED_JSON = struct.Struct("<xI")
_SCALARS = {"int": "int64", "float": "float64", "bool": "bool"}


def recognizes(source: Input) -> bool:
    """Whether a folder has an index of chunks."""
    return has_index(source, "chunks")


def read(source: Input) -> Iterator[Record]:
    """Sample 7 with the key `image` has the file `00000007.image.jpg`. Numbers, arrays and tensors are .npy files;
    other values are files as they were encoded, also pickled ones, which are not opened.

    Raises Damaged, and InvalidInput for chunks of tokens, encrypted ones, and those compressed in batches.
    """
    index, mtime_ns = read_index(source)
    formats, names, is_packed = _layout(index)
    first = 0
    for chunk in listed(index, "chunks"):
        with ExitStack() as stack:
            try:
                file, expected = chunk["filename"], int(chunk["chunk_size"])
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise Damaged(f"{INDEX}: a chunk has no proper {error}") from None
            shard = open_shard(source, {file: is_packed}, stack)
            found = 0
            for found, (_, sample) in enumerate(samples(shard.stream()), 1):
                parts = values(sample, [None] * len(formats))
                yield from _records(number(first + found - 1), formats, names, parts, mtime_ns)
            if found != expected:
                raise Damaged(f"{file}: it has {found} of {expected} samples")
        first += found


def _layout(index: Any) -> tuple[list[str], list[str], bool]:
    """Formats and names of the leaves, and whether chunks are compressed. Raises Damaged, InvalidInput."""
    try:
        config = index["config"]
        formats, loader = [*map(checked_text, config["data_format"])], config.get("item_loader") or LOADER
        names = [".".join(path) for path in _leaves(json.loads(config["data_spec"])[1])]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise Damaged(f"{INDEX}: no proper config: {error}") from None
    unreadable = {
        "encrypted chunks": config.get("encryption"),
        "chunks that are compressed in batches": config.get("compression_level") == BATCHES,
        f"chunks for {loader}": loader != LOADER,
    }
    for what, is_so in unreadable.items():
        if is_so:
            raise InvalidInput(f"{what} of LitData cannot be read; write them uncompressed and plain")
    if len(formats) != len(names):
        raise Damaged(f"{INDEX}: {len(formats)} formats for {len(names)} leaves")
    return formats, names, bool(config.get("compression"))


def _leaves(spec: Any) -> Iterator[tuple[str, ...]]:
    """The path of each leaf of a pytree: keys of dictionaries, numbers in lists."""
    if spec["type"] is None:
        yield ()
        return
    context = json.loads(spec["context"]) if spec["context"] else None
    for place, child in enumerate(spec["children_spec"]):
        name = str(context[place]) if isinstance(context, list) else str(place)
        for path in _leaves(child):
            yield (name, *path)


def _records(
    key: str, formats: list[str], names: list[str], parts: list[bytes], mtime_ns: int
) -> Iterator[Record]:
    files = [file_of(kind, part) for kind, part in zip(formats, parts, strict=True)]
    fields = {
        name: part.decode("utf-8", "replace")
        if kind == "str"
        else str(np.frombuffer(part, _SCALARS[kind])[0])
        for name, kind, part in zip(names, formats, parts, strict=True)
        if kind == "str" or kind in _SCALARS
    }
    for name, (suffix, content) in zip(names, files, strict=True):
        dotted = f".{name.replace('/', '.')}" if name else ""
        record = Record.of(f"{key}{dotted}{suffix}".encode(), content, mtime_ns)
        record.fields = fields
        yield record


def file_of(kind: str, part: bytes) -> tuple[str, bytes]:
    """Suffix and content of the file of a leaf. Raises Damaged."""
    kind, _, detail = kind.partition(":")
    try:
        if kind in _SCALARS:
            return ".npy", npy(np.frombuffer(part, _SCALARS[kind]).reshape(()))
        if kind in ("no_header_numpy", "no_header_tensor"):
            types = _NUMPY_TYPES if kind == "no_header_numpy" else _TORCH_TYPES
            if dtype := types[int(detail)]:
                return ".npy", npy(np.frombuffer(part, dtype))
            return ".bfloat16", part
        if kind in ("numpy", "tensor"):
            order, types = ("<", _NUMPY_TYPES) if kind == "numpy" else (">", _TORCH_TYPES)
            index, rank = struct.unpack_from(f"{order}II", part)
            shape = struct.unpack_from(f"{order}{rank}I", part, 8)
            if dtype := types[index]:
                return ".npy", npy(np.frombuffer(part[8 + 4 * rank :], dtype).reshape(shape))
            return ".bfloat16", part[8 + 4 * rank :]
    except (ValueError, IndexError, struct.error) as error:
        raise Damaged(f"a value is no {kind}: {error}") from None
    if kind == "json":
        return _nested(part)
    if kind == "image" and detail.isalnum():
        return f".{detail}", part
    return SUFFIXES.get(kind, suffix_of(part)), part


def _nested(part: bytes) -> tuple[str, bytes]:
    """A nested value: JSON, as older versions write it or behind a header; else in a form that only LitData reads."""
    if part[:1] > b" ":
        return ".json", part
    if part[:1] == b"\0" and len(part) >= _NESTED_JSON.size:
        (length,) = _NESTED_JSON.unpack_from(part)
        if length == len(part) - _NESTED_JSON.size:
            return ".json", part[_NESTED_JSON.size :]
    return ".nested", part
