"""References that clients ask for, to bytes which their dataset has already: `dlcmd put --dedup`. Blocks.

A client knows extents from a snapshot, but not where a payload begins in its object, nor whether the chunk has the
bytes itself. So it names a range of a payload, and this completes the chunk. Who may write to a dataset may read all of
it, and only extents that the chunk has for a file can be named: the reference gives nobody bytes of others.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dieselfs.chunk.format import ChunkHeader, Op, Preamble, check_extents
from dieselfs.chunk.ids import chunk_name
from dieselfs.chunk.source import AttachedSource
from dieselfs.digests import digest_of
from dieselfs.errors import InvalidInput
from dieselfs_server.datasets.commit import read_header, read_preamble
from dieselfs_server.datasets.references import Chunk
from dieselfs_server.datasets.referring_copy import is_covered
from dieselfs_server.store.interface import ObjectStore

Completed = tuple[Chunk, bytes]


def read_bytes(store: ObjectStore, dataset_id: bytes, preamble: Preamble, header: ChunkHeader) -> int:
    """How much `completed` reads at most: the header of the chunk that is named, and the range, unless it is the whole
    payload of a chunk that has it itself. The first read of a foreign source reads all of it. Raises NotFound, Damaged.
    """
    assert header.source is not None
    old = read_preamble(store, dataset_id, header.source.chunk[1])
    if old.is_attached:
        return old.header_length + old.payload_length
    is_whole = (header.source.offset, preamble.payload_length) == (0, old.payload_length)
    return old.header_length + (0 if is_whole else preamble.payload_length)


def completed(store: ObjectStore, dataset_id: bytes, preamble: Preamble, header: ChunkHeader) -> Completed:
    """The chunk with its true source, and its object. If the bytes are in a foreign source, or are a part of a chunk of
    another dataset, all of which would stay for their sake: a chunk with a copy of them.

    Raises InvalidInput for what that chunk does not have, NotFound if it is gone, Damaged for wrong bytes of it.
    """
    asked = header.source
    assert asked is not None
    named, start, length = asked.chunk[1], asked.offset, preamble.payload_length
    old, old_header = read_header(store, dataset_id, named)
    _check(preamble, header, asked, old, old_header)
    is_whole = (start, length) == (0, old.payload_length)
    content, digest = b"", old.payload_digest
    source = old_header.source or AttachedSource.of_chunk(
        dataset_id, named, old.payload_start, old.payload_length, old.payload_digest
    )
    kept = replace(source, offset=source.offset + start) if source.is_chunk else None
    if kept is not None and kept.chunk[0] != dataset_id and not (is_whole and _has_all(header, length)):
        kept = None
    if not is_whole or kept is None:
        content = store.get_range(dataset_id, named, old.payload_start + start, length)
        check_extents(preamble, header, content, asked.name)
        content = _without_gaps(header, content) if kept is None else content
        digest = digest_of(content)
    header = replace(header, source=kept)
    packed = header.encode()
    preamble = replace(
        preamble,
        header_length=len(packed),
        header_digest=digest_of(packed),
        payload_digest=digest,
        is_attached=kept is not None,
    )
    return (preamble, header), preamble.encode() + packed + (content if kept is None else b"")


def _check(
    preamble: Preamble, header: ChunkHeader, asked: AttachedSource, old: Preamble, old_header: ChunkHeader
) -> None:
    name, start = f"chunk {chunk_name(preamble.chunk_id)}", asked.offset
    if asked.payload_digest != old.payload_digest or start + preamble.payload_length > old.payload_length:
        raise InvalidInput(f"{name}: {asked.name} has another payload")
    is_file, was_file = header.ops == Op.FILE, old_header.ops == Op.FILE
    if not is_file.all() or not _extents(header, is_file, start) <= _extents(old_header, was_file, 0):
        raise InvalidInput(f"{name}: {asked.name} has not all of its extents")


def _has_all(header: ChunkHeader, length: int) -> bool:
    """Whether the extents have all bytes of the payload."""
    offsets, lengths = (column.astype(np.int64) for column in (header.offsets, header.lengths))
    return len(header) > 0 and is_covered(offsets, lengths, length)


def _without_gaps(header: ChunkHeader, content: bytes) -> bytes:
    """What is between the extents belongs to other files, which may be deleted: zeros are there in a copy."""
    copied = bytearray(len(content))
    for start, length in {*zip(header.offsets.tolist(), header.lengths.tolist(), strict=True)}:
        copied[start : start + length] = content[start : start + length]
    return bytes(copied)


def _extents(header: ChunkHeader, is_file: npt.NDArray[np.bool_], start: int) -> set[tuple[int, int, bytes]]:
    columns = header.offsets.astype(np.int64) + start, header.lengths, header.digests
    return {*zip(*(column[is_file].tolist() for column in columns), strict=True)}
