"""Tokens in the shards of LitData and of MosaicML Streaming (MDS). No I/O of its own: a source reads."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.errors import Damaged, DieselfsError, InvalidInput, parse_fault
from dieselfs.names import path_fault
from dieselfs.samples.source import SampleSource
from dieselfs.samples.token_files import TokenFile, integer_type, joined, named
from dieselfs.shuffle.windows import Stream

INDEX = b"index.json"
INDEX_BYTES_MAX = 64 << 20

NUMPY_TYPES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "bool",
)  # fmt: skip
TORCH_TYPES = (
    "float32", "float32", "float64", "float64", "complex64", "complex64", "complex128", "complex128", "float16",
    "float16", "", "uint8", "int8", "int16", "int16", "int32", "int32", "int64", "int64", "bool", "uint16",
)  # fmt: skip
"""The types of LitData by number."""

_TYPES_BY_FORMAT = {"no_header_numpy": NUMPY_TYPES, "no_header_tensor": TORCH_TYPES}
_TABLE = np.dtype("<u4")
_SHAPE_BYTES = (1, 2, 4, 8)
"""What MDS takes for the length of an array, the smallest that holds it, after one byte."""


def shard_index(source: SampleSource, folder: bytes) -> dict[str, Any] | None:
    """The index of a folder of shards; None for another folder. Raises Damaged."""
    node = source.snapshot.find(joined(folder, INDEX))
    if node < 0:
        return None
    if source.snapshot.size(node) > INDEX_BYTES_MAX:
        raise Damaged(f"{named(source, node)} has more than {INDEX_BYTES_MAX} bytes")
    try:
        index = json.loads(source.read_many([node])[0])
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{named(source, node)}: {error}") from None
    return index if isinstance(index, dict) and ("chunks" in index or "shards" in index) else None


def shard_files(
    source: SampleSource, folder: bytes, index: dict[str, Any], column: str, dtype: npt.DTypeLike | None
) -> Iterator[TokenFile]:
    """The shards of an index, in its order. `column`: of MDS; `dtype`: of tokens that MDS has as bytes.

    Raises InvalidInput, Damaged.
    """
    try:
        if "chunks" in index:
            yield from _litdata(source, folder, index)
        else:
            for shard in index["shards"]:
                yield _mds(source, folder, shard, column, dtype)
    except DieselfsError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise Damaged(
            f"{INDEX.decode()}: no proper description of its shards: {parse_fault(error)}"
        ) from None


def _litdata(source: SampleSource, folder: bytes, index: dict[str, Any]) -> Iterator[TokenFile]:
    """Chunks for LitData's TokensLoader: a table of documents, and then nothing but tokens."""
    config = index["config"]
    kind, _, number = str(config["data_format"][0]).partition(":")
    if kind not in _TYPES_BY_FORMAT or len(config["data_format"]) != 1:
        raise InvalidInput("the chunks of LitData have no tokens: write them for its TokensLoader")
    if config.get("compression") or config.get("encryption"):
        raise InvalidInput(
            "compressed or encrypted chunks of LitData cannot be read in parts: write them plain"
        )
    dtype = integer_type(_TYPES_BY_FORMAT[kind][int(number)])
    for chunk in index["chunks"]:
        items, tokens = int(chunk["chunk_size"]), int(chunk["dim"])
        node = _shard(source, folder, chunk["filename"])
        stream = Stream.whole((items + 2) * _TABLE.itemsize, dtype.itemsize, tokens)
        if min(items, tokens) < 0 or source.snapshot.size(node) != stream.end_byte:
            raise Damaged(
                f"{named(source, node)}: its size is not that of {items} items with {tokens} tokens"
            )
        yield TokenFile(node, dtype, stream, table=items)


def _mds(
    source: SampleSource, folder: bytes, shard: dict[str, Any], column: str, dtype: npt.DTypeLike | None
) -> TokenFile:
    names, sizes = shard["column_names"], shard["column_sizes"]
    if column not in names:
        raise InvalidInput(
            f"the shards have no column {column!r}: give one of {', '.join(names)}, as column="
        )
    place = names.index(column)
    kind, _, form = str(shard["column_encodings"][place]).partition(":")
    form, _, shape = form.partition(":")
    of_tokens = dtype if kind == "bytes" else form
    if of_tokens is None:
        raise InvalidInput(f"column {column!r} has bytes: give the type of its tokens, as dtype='int64'")
    if kind not in ("bytes", "ndarray") or (kind == "ndarray" and (not form or "," in shape)):
        raise InvalidInput(
            f"column {column!r} has {shard['column_encodings'][place]}, and no tokens of one type"
        )
    if sum(size is None for number, size in enumerate(sizes) if number != place):
        raise InvalidInput("other columns of varying size: write the tokens without them")
    of_tokens = integer_type(of_tokens)
    node = _shard(source, folder, shard["raw_data"]["basename"])
    offsets = _offsets(source, node, int(shard["samples"]))
    before, after = sum(sizes[:place]), sum(sizes[place + 1 :])
    head = _TABLE.itemsize * (sizes[place] is None)
    begins, ends = offsets[:-1] + head + before, offsets[1:] - after
    if kind == "ndarray" and not shape:
        begins = begins + _array_head(ends - begins, of_tokens.itemsize)
    counts = (ends - begins) // of_tokens.itemsize
    if (counts * of_tokens.itemsize != ends - begins).any() or (counts < 0).any():
        raise Damaged(f"{named(source, node)}: a sample has no whole number of tokens of {of_tokens}")
    return TokenFile(node, of_tokens, Stream(begins, counts, of_tokens.itemsize), has_documents=True)


def _array_head(lengths: Numbers, item_bytes: int) -> Numbers:
    """The bytes before the tokens of arrays of one dimension, whose encodings have `lengths` bytes."""
    heads = np.full(len(lengths), 1 + _SHAPE_BYTES[-1], np.int64)
    for size in reversed(_SHAPE_BYTES[:-1]):
        heads[(lengths - 1 - size) // item_bytes < 1 << 8 * size] = 1 + size
    return heads


def _shard(source: SampleSource, folder: bytes, name: str) -> int:
    path = name.encode()
    node = -1 if not path or path_fault(path) else source.snapshot.find(joined(folder, path))
    if node < 0 or not source.snapshot.stat(node).is_file:
        raise InvalidInput(
            f"{name!r} is missing, which {INDEX.decode()} names; compressed shards cannot be read in parts"
        )
    return node


def _offsets(source: SampleSource, node: int, samples: int) -> Numbers:
    """The table of a shard: shape (samples + 1,). Raises Damaged."""
    end, size = (samples + 2) * _TABLE.itemsize, source.snapshot.size(node)
    if samples >= 0 and end <= size:
        table = np.frombuffer(source.read_range(node, 0, end), _TABLE).astype(np.int64)
        offsets: Numbers = table[1:]
        if (
            table[0] == samples
            and end <= offsets[0]
            and offsets[-1] <= size
            and (np.diff(offsets) >= 0).all()
        ):
            return offsets
    raise Damaged(f"{named(source, node)}: its table is not that of {samples} samples")


def table_starts(source: SampleSource, file: TokenFile) -> Numbers:
    """The first token of each document of a chunk of LitData. Raises Damaged."""
    offsets = _offsets(source, file.node, file.table)
    starts: Numbers = (offsets[:-1] - offsets[0]) // file.dtype.itemsize
    return starts
