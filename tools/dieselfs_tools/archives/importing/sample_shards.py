"""Samples of MosaicML Streaming (MDS) and of LitData. This module opens files.

A shard has a table of offsets, then samples, each of them the sizes and the bytes of its values.
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import xxhash

from dieselfs.errors import Damaged, InvalidInput, parse_fault
from dieselfs.names import path_fault
from dieselfs.samples.token_shards import NUMPY_TYPES, TORCH_TYPES
from dieselfs_tools.archives.formats import required
from dieselfs_tools.archives.importing import parquet_file
from dieselfs_tools.archives.importing.bucket_files import INDEX
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.record import Content, Place, Record, npy, number, suffix_of

SAMPLES_MAX = 1 << 28
SAMPLE_BYTES_MAX = 1 << 30
SKIP_BYTES = 1 << 20

_COUNT = struct.Struct("<I")


def samples(stream: Content) -> Iterator[tuple[int, bytes]]:
    """The samples of a shard, and where they begin. Raises Damaged if its table makes no sense, or it is cut off."""
    (count,) = _COUNT.unpack(_exactly(stream, _COUNT.size))
    if count > SAMPLES_MAX:
        raise Damaged(f"its table says {count} samples")
    table = _exactly(stream, (count + 1) * _COUNT.size)
    offsets = [offset for (offset,) in _COUNT.iter_unpack(table)]
    position = _COUNT.size + len(table)
    for begin, end in pairwise(offsets):
        if not position <= begin <= end or end - begin > SAMPLE_BYTES_MAX:
            raise Damaged(f"its table has a sample from {begin} to {end}, after {position}")
        while position < begin:  # notes of the writer
            position += len(_exactly(stream, min(begin - position, SKIP_BYTES)))
        yield begin, _exactly(stream, end - begin)
        position = end


def values(sample: bytes, sizes: Sequence[int | None]) -> list[bytes]:
    """The values of a sample, whose sizes are those given, or else noted at its begin. Raises Damaged."""
    noted = sum(size is None for size in sizes)
    place = noted * _COUNT.size
    if len(sample) < place:
        raise Damaged("a sample is shorter than its sizes")
    lengths = _COUNT.iter_unpack(sample[:place])
    found = []
    for size in sizes:
        length = next(lengths)[0] if size is None else size
        found.append(sample[place : place + length])
        place += length
    if place != len(sample):
        raise Damaged(f"a sample has {len(sample)} bytes, and its values {place}")
    return found


def _exactly(stream: Content, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise Damaged("it is cut off")
    return content


INDEX_BYTES_MAX = 64 << 20
"""The largest index, decompressed: it is read into memory, and names a shard in some 400 bytes."""
MDS_SUFFIXES = {"str": ".txt", "json": ".json", "jpeg": ".jpg", "png": ".png", "pkl": ".pkl", "pil": ".pil"}
TEXTS = ("str", "str_int", "str_float", "str_decimal")

_SHAPE_TYPES = ("uint8", "uint16", "uint32", "uint64")
_ARRAY_TYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_MDS_SCALARS = frozenset(_ARRAY_TYPES.values())


def recognizes_mds(source: Input) -> bool:
    """Whether a folder has an index of shards."""
    return has_index(source, "shards")


def read_mds(source: Input) -> Iterator[Record]:
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
            raise Damaged(f"{INDEX}: a shard has no proper description: {parse_fault(error)}") from None
        with ExitStack() as stack:
            opened = open_shard(source, files, stack)
            stream = _Hashed(opened.stream(), hashes)
            found = 0
            for found, (begin, sample) in enumerate(samples(stream), 1):
                key = number(first + found - 1)
                parts = values(sample, sizes)
                begin += len(sample) - sum(map(len, parts))  # behind the sizes
                texts = _mds_file, _mds_text, mtime_ns, begin, opened.place
                yield from _records(key, names, encodings, parts, *texts)
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
    kinds: list[str],
    parts: list[bytes],
    file_of: Callable[[str, bytes], tuple[str, bytes]],
    text_of: Callable[[str, bytes], str | None],
    mtime_ns: int,
    begin: int = 0,
    place_of: Callable[[int], Place | None] = lambda _: None,
) -> Iterator[Record]:
    """The files of a sample, one for each part. `file_of`: suffix and content; `text_of`: the field for names, None if
    there is none; `begin`: of the first part in the shard; the others follow.
    """
    files = [*map(file_of, kinds, parts)]
    texts = zip(names, map(text_of, kinds, parts), strict=True)
    fields = {name: text for name, text in texts if text is not None}
    for name, part, (suffix, content) in zip(names, parts, files, strict=True):
        place = place_of(begin) if content is part else None
        dotted = f".{name.replace('/', '.')}" if name else ""
        record = Record.of(f"{key}{dotted}{suffix}".encode(), content, mtime_ns, place)
        record.fields = fields
        yield record
        begin += len(part)


def _mds_text(encoding: str, part: bytes) -> str | None:
    if encoding in TEXTS:
        return part.decode("utf-8", "replace")
    if encoding not in _MDS_SCALARS and encoding != "int":
        return None
    return str(np.frombuffer(part, "int64" if encoding == "int" else encoding)[0])


def _mds_file(encoding: str, part: bytes) -> tuple[str, bytes]:
    """Suffix and content of the file of a value. Raises Damaged."""
    kind, _, rest = encoding.partition(":")
    try:
        if kind == "int" or kind in _MDS_SCALARS:
            return ".npy", npy(np.frombuffer(part, "int64" if kind == "int" else kind).reshape(()))
        if kind == "ndarray":
            return ".npy", npy(_array(rest, part))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise Damaged(f"a value is no {encoding}: {error}") from None
    if kind in TEXTS:
        return ".txt", part
    return MDS_SUFFIXES.get(kind, suffix_of(part)), part


def _array(rest: str, part: bytes) -> Any:
    """`rest` of the encoding: empty, TYPE, or TYPE:SHAPE; what it does not say is at the begin of the value."""
    dtype, _, shape_text = rest.partition(":")
    place = 0
    if not dtype:
        dtype, place = _ARRAY_TYPES[part[0]], 1
    if dtype not in _MDS_SCALARS:
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


BATCHES = "batch"
"""The level of compression of chunks whose samples are compressed in batches."""

LOADER = "PyTreeLoader"
LITDATA_SUFFIXES = {
    "str": ".txt",
    "text": ".txt",
    "json": ".json",
    "jpeg": ".jpg",
    "pickle": ".pkl",
    "tifffile": ".tif",
}

_ARROW_END = struct.Struct("<I8s")
_ARROW_MAGIC = b"LDARW01\0"
_NESTED_JSON = struct.Struct("<xI")
_SCALARS = {"int": "int64", "float": "float64", "bool": "bool"}


def recognizes_litdata(source: Input) -> bool:
    """Whether a folder has an index of chunks."""
    return has_index(source, "chunks")


def read_litdata(source: Input) -> Iterator[Record]:
    """Sample 7 with the key `image` has the file `00000007.image.jpg`. Numbers, arrays and tensors are .npy files;
    other values are files as they were encoded, also pickled ones, which are not opened. Rows of text, numbers and
    nested values, which LitData stores with Arrow, are files as those of Parquet.

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
            found, stream = 0, shard.stream()
            for found, (_, sample) in enumerate(samples(stream), 1):
                if not sample and formats:
                    found = yield from _arrow_rows(stream, first, mtime_ns)
                    break
                parts = values(sample, [None] * len(formats))
                key = number(first + found - 1)
                yield from _records(key, names, formats, parts, file_of, _litdata_text, mtime_ns)
            if found != expected:
                raise Damaged(f"{file}: it has {found} of {expected} samples")
        first += found


def _arrow_rows(stream: Content, first: int, mtime_ns: int) -> Generator[Record, None, int]:
    """The rows behind a table of empty samples, as those of Parquet; returns their number. The rows are an Arrow IPC
    file, its length (4 bytes), and a magic number. Raises Damaged.
    """
    pyarrow = required("pyarrow")
    content = stream.read(SAMPLE_BYTES_MAX + 1)
    end = len(content) - _ARROW_END.size
    length, magic = _ARROW_END.unpack_from(content, end) if end >= 0 else (0, b"")
    if magic != _ARROW_MAGIC or length != end or len(content) > SAMPLE_BYTES_MAX:
        raise Damaged("its samples are empty, and it has no Arrow rows")
    try:
        with required("pyarrow.ipc").open_file(pyarrow.py_buffer(content).slice(0, length)) as file:
            rows, found = parquet_file.Rows(pyarrow, file.schema, mtime_ns), 0
            for batch in range(file.num_record_batches):
                for values_of_row in file.get_batch(batch).to_pylist():
                    yield from rows.records(first + found, values_of_row)
                    found += 1
            return found
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise Damaged(f"its rows cannot be read as Arrow: {' '.join(str(error).split())}") from None


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


def _litdata_text(kind: str, part: bytes) -> str | None:
    if kind == "str":
        return part.decode("utf-8", "replace")
    return str(np.frombuffer(part, _SCALARS[kind])[0]) if kind in _SCALARS else None


def file_of(kind: str, part: bytes) -> tuple[str, bytes]:
    """Suffix and content of the file of a leaf. Raises Damaged."""
    kind, _, detail = kind.partition(":")
    try:
        if kind in _SCALARS:
            return ".npy", npy(np.frombuffer(part, _SCALARS[kind]).reshape(()))
        if kind in ("no_header_numpy", "no_header_tensor"):
            types = NUMPY_TYPES if kind == "no_header_numpy" else TORCH_TYPES
            if dtype := types[int(detail)]:
                return ".npy", npy(np.frombuffer(part, dtype))
            return ".bfloat16", part
        if kind in ("numpy", "tensor"):
            order, types = ("<", NUMPY_TYPES) if kind == "numpy" else (">", TORCH_TYPES)
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
    return LITDATA_SUFFIXES.get(kind, suffix_of(part)), part


def _nested(part: bytes) -> tuple[str, bytes]:
    """A nested value: JSON, as older versions write it or behind a header; else in a form that only LitData reads."""
    if part[:1] > b" ":
        return ".json", part
    if part[:1] == b"\0" and len(part) >= _NESTED_JSON.size:
        (length,) = _NESTED_JSON.unpack_from(part)
        if length == len(part) - _NESTED_JSON.size:
            return ".json", part[_NESTED_JSON.size :]
    return ".nested", part
