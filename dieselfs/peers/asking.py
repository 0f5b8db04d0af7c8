"""What one node asks another for, as bytes: pieces of chunks, or whole payloads. No I/O.

Chunks go by their numbers in the snapshot, which both have.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.columns import U32
from dieselfs.errors import InvalidInput
from dieselfs.limits import PEER_ANSWER_BYTES_MAX, PEER_CHUNKS_MAX, RANGES_PER_REQUEST_MAX
from dieselfs.meta.snapshot import ExtentRef, Snapshot


class State(IntEnum):
    """What becomes of a chunk that a node was asked for; numbers on the wire."""

    HERE = 0
    LATER = 1
    """Not yet: ask again."""
    ELSEWHERE = 2
    """Not to be had from this node: ask a server."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Pieces of one chunk, in the order in which they are to come; without `extents`, its whole payload. `is_common`:
    others will soon want the rest of it.
    """

    chunk: int
    length_bytes: int
    extents: Sequence[ExtentRef] = ()
    is_common: bool = False
    destination: memoryview | None = field(default=None, compare=False)
    """Memory of this length, where it is to go if it comes over a network; without it, to new memory."""

    @classmethod
    def whole(cls, snapshot: Snapshot, chunk: int, destination: memoryview | None = None) -> "Wanted":
        return cls(chunk, snapshot.chunk_payload_length(chunk), destination=destination)

    @classmethod
    def pieces(cls, chunk: int, extents: Sequence[ExtentRef], is_common: bool = False) -> "Wanted":
        """At least one, and all of this chunk."""
        return cls(chunk, sum([extent.length for extent in extents]), extents, is_common)


def encode_wanted(wanted: Sequence[Wanted]) -> dict[str, object]:
    """The arguments of `get_pieces`, but for the digest."""
    extents = chain.from_iterable(each.extents for each in wanted)
    ranges = [*chain.from_iterable(map(_range_of, extents))]
    return {
        "chunks": np.array([each.chunk for each in wanted], U32).tobytes(),
        "counts": np.array([len(each.extents) for each in wanted], U32).tobytes(),
        "ranges": struct.pack(f"<{len(ranges)}I", *ranges),
        "is_common": any(each.is_common for each in wanted),
    }


_range_of = attrgetter("offset", "length")


@dataclass(frozen=True, slots=True)
class Asked:
    """As `Wanted`, on the other side: `ranges` are pairs of offset and length within the payload."""

    chunk: int
    length_bytes: int
    ranges: npt.NDArray[np.int64]
    is_common: bool

    @property
    def is_whole(self) -> bool:
        return not len(self.ranges)

    def of(self, payload: memoryview) -> Iterator[memoryview]:
        """The pieces of the payload; those that lie one behind the other in it are one."""
        start, end = 0, len(payload) if self.is_whole else 0
        for offset, length in self.ranges.tolist():
            if offset != end:
                if start < end:
                    yield payload[start:end]
                start = offset
            end = offset + length
        yield payload[start:end]


def decode_wanted(arguments: Any, snapshot: Snapshot) -> list[Asked]:
    """What a peer wants. Raises InvalidInput unless all of it is in the snapshot, and within the limits."""
    if (
        len(arguments.chunks) % 4
        or len(arguments.chunks) != len(arguments.counts)
        or len(arguments.ranges) % 8
    ):
        raise InvalidInput("chunks and counts are as many u32, ranges are pairs of u32")
    # Most often this is one range of one chunk, for which NumPy's columns would cost more than all else.
    chunks, counts = (
        struct.unpack(f"<{len(column) // 4}I", column) for column in (arguments.chunks, arguments.counts)
    )
    ranges = np.frombuffer(arguments.ranges, U32).astype(np.int64).reshape(-1, 2)
    if not 0 < len(chunks) <= PEER_CHUNKS_MAX or len(ranges) > RANGES_PER_REQUEST_MAX:
        raise InvalidInput(f"{len(ranges)} ranges of {len(chunks)} chunks are not asked for in one request")
    if sum(counts) != len(ranges):
        raise InvalidInput("there must be as many ranges as the counts say")
    if max(chunks) >= snapshot.chunk_count:
        raise InvalidInput(f"the snapshot has no chunk {max(chunks)}")
    payload_lengths = [*map(snapshot.chunk_payload_length, chunks)]
    if (ranges.sum(axis=1) > np.repeat(payload_lengths, counts)).any():
        raise InvalidInput("a range ends behind its payload")
    bytes_before = [0, *accumulate(ranges[:, 1].tolist())]
    is_common = bool(arguments.is_common)
    asked = []
    first = 0
    for chunk, count, payload_bytes in zip(chunks, counts, payload_lengths, strict=True):
        end = first + count
        length_bytes = bytes_before[end] - bytes_before[first] if count else payload_bytes
        asked.append(Asked(chunk, length_bytes, ranges[first:end], is_common))
        first = end
    total_bytes = sum([each.length_bytes for each in asked])
    if total_bytes > PEER_ANSWER_BYTES_MAX:
        raise InvalidInput(f"{total_bytes} bytes are asked for, limit {PEER_ANSWER_BYTES_MAX}")
    return asked
