"""Files of tokens: which bytes of them are tokens, of which type. No I/O of its own: a source reads.

A `.npy` file has an array; a `.bin` file beside an `.idx` file is an indexed dataset of Megatron; every other file
has nothing but tokens, whose type the caller gives.
"""

import io
import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.names import printable
from dieselfs.samples.source import SampleSource
from dieselfs.shuffle.windows import Stream

SUFFIXES = (".npy", ".bin")
"""Of the files of a folder that are taken without a pattern."""

NPY_HEAD_BYTES_MAX = 16 << 10
"""The header of a `.npy` file with one dimension is much smaller."""

_MEGATRON_HEAD = struct.Struct("<9sQBQQ")
_MEGATRON_MAGIC, _MEGATRON_VERSION = b"MMIDIDX\x00\x00", 1
_MEGATRON_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_POINTER_BYTES, _LENGTH_BYTES = 8, 4


@dataclass(frozen=True, eq=False, slots=True)
class TokenFile:
    """`node`: in the snapshot; `dtype`: of a token; `index`: the node of Megatron's index, -1 without one; `table`: the
    documents in the table of a chunk of LitData; `has_documents`: each stretch is one.
    """

    node: int
    dtype: np.dtype[np.integer]
    stream: Stream
    index: int = -1
    table: int = 0
    has_documents: bool = False


def token_file(source: SampleSource, node: int, dtype: npt.DTypeLike | None) -> TokenFile:
    """A file of tokens. `dtype`: of the tokens, for a file without a header. Raises InvalidInput, Damaged."""
    path = source.snapshot.path(node)
    if path.endswith(b".npy"):
        return _npy_file(source, node)
    index = source.snapshot.find(path.removesuffix(b".bin") + b".idx") if path.endswith(b".bin") else -1
    if index >= 0:
        return _megatron_file(source, node, index)
    if dtype is None:
        raise InvalidInput(
            f"{named(source, node)} has no header: give the type of its tokens, as dtype='uint16'"
        )
    size, of_tokens = source.snapshot.size(node), integer_type(dtype)
    if size % of_tokens.itemsize:
        raise InvalidInput(f"{named(source, node)}: {size} bytes are no whole number of {of_tokens}")
    return TokenFile(node, of_tokens, Stream.whole(0, of_tokens.itemsize, size // of_tokens.itemsize))


def integer_type(dtype: npt.DTypeLike) -> np.dtype[np.integer]:
    """Raises InvalidInput unless it is a type of whole numbers."""
    try:
        of_tokens: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise InvalidInput(f"dtype is {dtype!r}: give the name of a NumPy type, as 'uint16'") from None
    if of_tokens.kind not in "iu":
        raise InvalidInput(f"tokens are whole numbers, not {of_tokens}")
    return of_tokens


def _npy_file(source: SampleSource, node: int) -> TokenFile:
    name, size = named(source, node), source.snapshot.size(node)
    head = io.BytesIO(source.read_range(node, 0, min(size, NPY_HEAD_BYTES_MAX)))
    try:
        version = np.lib.format.read_magic(head)
        read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(head)
    except ValueError as error:
        raise InvalidInput(f"{name} is no array of NumPy: {error}") from None
    if len(shape) != 1:
        raise InvalidInput(f"{name}: the array has the shape {shape}; tokens have one dimension")
    if dtype.kind not in "iu":
        raise InvalidInput(f"{name}: tokens are whole numbers, not {dtype}")
    stream = Stream.whole(head.tell(), dtype.itemsize, shape[0])
    if size < stream.end_byte:
        raise Damaged(f"{name}: it is cut off, it should have {shape[0]} tokens")
    return TokenFile(node, dtype, stream)


def _megatron_file(source: SampleSource, node: int, index: int) -> TokenFile:
    name, size = named(source, index), source.snapshot.size(node)
    code, sequences, documents = _megatron_head(source, index)
    if code not in _MEGATRON_TYPES:
        raise InvalidInput(f"{name}: its type {code} is none of tokens")
    dtype = np.dtype(_MEGATRON_TYPES[code])
    place = _MEGATRON_HEAD.size + _LENGTH_BYTES * sequences
    end = place + _POINTER_BYTES * (sequences + documents)
    if source.snapshot.size(index) < end:
        raise Damaged(f"{name}: it is cut off, it should have {sequences} sequences")
    tokens = 0
    if sequences:
        last = source.read_range(index, place - _LENGTH_BYTES, place)
        pointers = place + _POINTER_BYTES * (sequences - 1)
        (pointer,) = struct.unpack("<q", source.read_range(index, pointers, pointers + _POINTER_BYTES))
        tokens = pointer // dtype.itemsize + struct.unpack("<i", last)[0]
    if size != tokens * dtype.itemsize:
        raise Damaged(
            f"{named(source, node)}: it has {size} bytes, and by its index {tokens} tokens of {dtype}"
        )
    return TokenFile(node, dtype, Stream.whole(0, dtype.itemsize, tokens), index)


def _megatron_head(source: SampleSource, index: int) -> tuple[int, int, int]:
    """The type, and the numbers of sequences and documents. Raises Damaged."""
    head = source.read_range(index, 0, min(source.snapshot.size(index), _MEGATRON_HEAD.size))
    if len(head) == _MEGATRON_HEAD.size:
        magic, version, code, sequences, documents = _MEGATRON_HEAD.unpack(head)
        if (magic, version) == (_MEGATRON_MAGIC, _MEGATRON_VERSION):
            return code, sequences, documents
    raise Damaged(f"{named(source, index)} is no index of Megatron, version {_MEGATRON_VERSION}")


def document_starts(source: SampleSource, file: TokenFile) -> Numbers:
    """The first token of each document, ascending, as Megatron's index or a shard has them. Raises Damaged,
    InvalidInput if nothing has them.
    """
    if file.has_documents:
        return file.stream.firsts
    if file.index < 0:
        raise InvalidInput(
            f"{named(source, file.node)} does not say where documents begin: give the token that ends them, eos="
        )
    _, sequences, documents = _megatron_head(source, file.index)
    content = source.read_many([file.index])[0]
    place = _MEGATRON_HEAD.size + _LENGTH_BYTES * sequences
    pointers = np.frombuffer(content, "<i8", sequences, place)
    firsts = np.frombuffer(content, "<i8", documents, place + _POINTER_BYTES * sequences)
    # The last entry is the end of all. Megatron writes 0 first, also without any document.
    firsts = firsts[firsts < sequences]
    starts: Numbers = pointers[firsts] // file.dtype.itemsize
    if (np.diff(starts) < 0).any() or (len(starts) and starts[0] < 0):
        raise Damaged(f"{named(source, file.index)}: its documents are not ascending")
    return starts


def named(source: SampleSource, node: int) -> str:
    return printable(os.fsencode(source.place(source.snapshot.path(node))))


def joined(folder: bytes, name: bytes) -> bytes:
    """The path of a file in a folder of the snapshot."""
    return b"/".join(filter(None, (folder, name)))
