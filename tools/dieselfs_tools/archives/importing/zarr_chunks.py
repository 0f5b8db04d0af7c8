"""Rows of zarr arrays of versions 2 and 3 from chunks with any common codec. No I/O of its own: `Input` reads files.

A chunk that is not there has the fill value.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.errors import Damaged
from dieselfs_tools.archives.formats import required
from dieselfs_tools.archives.importing.arrays import NAMED_KINDS
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.record import RATIO_MAX, RECORD_BYTES_MAX

CODECS_2 = frozenset(("blosc", "bz2", "delta", "gzip", "lz4", "lzma", "shuffle", "zlib", "zstd"))
CODECS_3 = frozenset(("blosc", "gzip", "zstd"))
"""Of numcodecs. Others are refused: some run code."""

SPARSE_BYTES_MAX = 1 << 30
"""Rows of more than this in all are refused if less than their RATIO_MAX-th part is stored."""

_ABSENT = (1 << 64) - 1
_CHECKSUM = struct.Struct("<I")

Values = npt.NDArray[Any]
Decode = Callable[[bytes], Values]
"""From the bytes of a chunk to its numbers, in the shape of the chunk."""


class NotImported(ValueError):
    """Why an array has no form as files."""


class Decoding(NamedTuple):
    """`dtype`: as it is stored."""

    dtype: np.dtype[Any]
    fill: Any
    decode: Decode


def decoding(metadata: Mapping[str, Any], chunk: tuple[int, ...]) -> Decoding:
    """Of the chunks of an array. Raises NotImported, ValueError, KeyError, TypeError; InvalidInput for a package."""
    is_third = metadata["zarr_format"] == 3
    named = metadata["data_type" if is_third else "dtype"]
    try:
        dtype = np.dtype(named if isinstance(named, str) else object)
    except TypeError:
        raise NotImported("its type has no form as a file") from None
    if dtype.kind not in NAMED_KINDS:
        raise NotImported("its type has no form as a file")
    if dtype.itemsize * math.prod(chunk) > RECORD_BYTES_MAX:
        raise NotImported(f"a chunk has more than {RECORD_BYTES_MAX} bytes")
    fill = _fill(metadata.get("fill_value"), dtype)
    if is_third:
        return Decoding(dtype, fill, _decode_3(metadata["codecs"], dtype, chunk, fill))
    configurations = [*(metadata["filters"] or ()), *filter(None, [metadata["compressor"]])]
    codecs = [_codec(one["id"], CODECS_2, one) for one in configurations[::-1]]
    order = metadata["order"]

    def decode(content: bytes) -> Values:
        for codec in codecs:
            content = codec(content)
        return np.frombuffer(content, dtype).reshape(chunk, order=order)

    return Decoding(dtype, fill, decode)


def _codec(name: str, known: frozenset[str], configuration: Mapping[str, Any]) -> Callable[[bytes], Any]:
    if name not in known:
        raise NotImported(f"its codec {name} is not read")
    if name == "blosc":
        required("numcodecs.blosc").use_threads = False
    decode: Callable[[bytes], Any] = required("numcodecs").get_codec(dict(configuration)).decode
    return decode


def _fill(value: Any, dtype: np.dtype[Any]) -> Any:
    """As JSON has it: a number, its name, its bits in hexadecimal, or the two parts of a complex number."""
    if isinstance(value, str) and value.startswith("0x"):
        return np.frombuffer(bytes.fromhex(value[2:]), dtype.newbyteorder(">"))[0]
    if isinstance(value, list):
        return complex(*map(float, value))
    return np.asarray(value or 0).astype(dtype)[()]


def _decode_3(codecs: Sequence[Any], dtype: np.dtype[Any], chunk: tuple[int, ...], fill: Any) -> Decode:
    """Raises as `decoding`."""
    order, shard, undone = [*range(len(chunk))], None, list[Callable[[bytes], bytes]]()
    for codec in codecs:
        name, given = codec["name"], codec.get("configuration") or {}
        match name:
            case "transpose":
                order = [order[place] for place in given["order"]]
            case "bytes":
                dtype = dtype.newbyteorder(">" if given.get("endian") == "big" else "<")
            case "sharding_indexed":
                shard = _decode_shard(given, dtype, tuple(chunk[place] for place in order), fill)
            case "crc32c":
                undone.insert(0, _checked)
            case _:
                undone.insert(0, _codec(name, CODECS_3, {"id": name}))
    stored, back = [chunk[place] for place in order], np.argsort(order)

    def decode(content: bytes) -> Values:
        for undo in undone:
            content = undo(content)
        values = shard(content) if shard else np.frombuffer(content, dtype).reshape(stored)
        return values.transpose(back)

    return decode


def _decode_shard(
    given: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...], fill: Any
) -> Decode:
    inner, index_codecs = tuple(given["chunk_shape"]), [one["name"] for one in given["index_codecs"]]
    if index_codecs not in (["bytes"], ["bytes", "crc32c"]):
        raise NotImported("its shards have a form of their own")
    if len(inner) != len(shape) or any(
        part < 1 or size % part for size, part in zip(shape, inner, strict=True)
    ):
        raise ValueError(f"the shape {shape} in chunks of {inner}")
    counts = [size // part for size, part in zip(shape, inner, strict=True)]
    is_first, decode_inner = (
        given.get("index_location", "end") == "start",
        _decode_3(given["codecs"], dtype, inner, fill),
    )
    index_bytes = 16 * math.prod(counts) + (_CHECKSUM.size if len(index_codecs) > 1 else 0)

    def decode(content: bytes) -> Values:
        if len(content) < index_bytes:
            raise ValueError("it is shorter than its index")
        index = content[:index_bytes] if is_first else content[-index_bytes:]
        places = np.frombuffer(_checked(index) if len(index_codecs) > 1 else index, "<u8").reshape(-1, 2)
        found = np.full(shape, fill, dtype)
        for (offset, length), first in zip(places.tolist(), product(*map(range, counts)), strict=True):
            if offset == length == _ABSENT:
                continue
            if offset + length > len(content):
                raise ValueError("a chunk in it ends behind its end")
            where = tuple(slice(at * part, (at + 1) * part) for at, part in zip(first, inner, strict=True))
            found[where] = decode_inner(content[offset : offset + length])
        return found

    return decode


def _checked(content: bytes) -> bytes:
    """Content without the CRC-32C behind it. Raises ValueError if that is wrong."""
    body, checksum = content[: -_CHECKSUM.size], content[-_CHECKSUM.size :]
    if _CHECKSUM.pack(required("google_crc32c").value(body)) != checksum:
        raise ValueError("its checksum is wrong")
    return body


class Slabs:
    """The rows of an array. One row of chunks is in memory at a time."""

    def __init__(
        self,
        source: Input,
        shape: tuple[int, ...],
        chunk: tuple[int, ...],
        key_of: Callable[[Sequence[int]], str],
        how: Decoding,
    ) -> None:
        """`key_of`: the file of a chunk by its numbers. Raises NotImported."""
        self._source, self._shape, self._chunk = source, shape, chunk
        self._key_of, self._how = key_of, how
        self._rows, self._begin, self._whole_bytes, self._stored_bytes = np.empty(0), -1, 0, 0
        if shape and how.dtype.itemsize * math.prod((min(chunk[0], shape[0]), *shape[1:])) > RECORD_BYTES_MAX:
            raise NotImported(f"a row of its chunks has more than {RECORD_BYTES_MAX} bytes")

    def read(self, first: int, last: int) -> Values:
        """From one row to another; a scalar. Raises Damaged."""
        if not self._shape:
            found = np.full((), self._how.fill, self._how.dtype)
            self._fill(found, ())
            return found
        step, parts = self._chunk[0], list[Values]()
        while first < last or not parts:
            begin = first - first % step
            if begin != self._begin:
                self._load(begin)
            parts.append(self._rows[first - begin : last - begin])
            first = begin + step
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _load(self, begin: int) -> None:
        rows = min(self._chunk[0], self._shape[0] - begin)
        self._rows = np.full((rows, *self._shape[1:]), self._how.fill, self._how.dtype)
        self._begin = begin
        counts = (-(-size // part) for size, part in zip(self._shape[1:], self._chunk[1:], strict=True))
        for others in product(*map(range, counts)):
            first = tuple(at * part for at, part in zip(others, self._chunk[1:], strict=True))
            where = tuple(slice(at, at + part) for at, part in zip(first, self._chunk[1:], strict=True))
            self._fill(self._rows[(slice(None), *where)], (begin // self._chunk[0], *others))
        self._whole_bytes += self._rows.nbytes
        if self._whole_bytes > max(SPARSE_BYTES_MAX, RATIO_MAX * self._stored_bytes):
            raise Damaged(f"{self._whole_bytes} bytes in {self._stored_bytes}: made to fill memory or disk")

    def _fill(self, part: Values, numbers: Sequence[int]) -> None:
        """Write the numbers of a chunk, as far as the array has them."""
        key = self._key_of(numbers)
        with ExitStack() as stack:
            if (file := self._source.beside(key, stack, is_packed=False)) is None:
                return
            content = file.stream().read(RECORD_BYTES_MAX)
        self._stored_bytes += len(content)
        try:
            part[...] = self._how.decode(content)[tuple(map(slice, part.shape))]
        except Exception as error:  # each codec has several of its own
            raise Damaged(f"{key} cannot be decoded: {error}") from None
