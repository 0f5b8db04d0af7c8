"""What one node asks another for, as bytes: pieces of chunks, or whole payloads. No I/O.

Chunks go by their numbers in the snapshot, which both have.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
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

    def of(self, payload: memoryview) -> list[memoryview]:
        """The pieces of the payload; those that lie one behind the other in it are one."""
        if self.is_whole:
            return [payload]
        starts, ends = self.ranges[:, 0], self.ranges.sum(axis=1)
        is_apart = starts[1:] != ends[:-1]
        starts, ends = starts[np.append(True, is_apart)], ends[np.append(is_apart, True)]
        return [payload[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def decode_wanted(arguments: Any, snapshot: Snapshot) -> list[Asked]:
    """What a peer wants. Raises InvalidInput unless all of it is in the snapshot, and within the limits."""
    if (
        len(arguments.chunks) % 4
        or len(arguments.chunks) != len(arguments.counts)
        or len(arguments.ranges) % 8
    ):
        raise InvalidInput("chunks and counts are as many u32, ranges are pairs of u32")
    chunks, counts, numbers = (
        np.frombuffer(column, U32).astype(np.int64)
        for column in (arguments.chunks, arguments.counts, arguments.ranges)
    )
    ranges = numbers.reshape(-1, 2)
    if not 0 < len(chunks) <= PEER_CHUNKS_MAX or len(ranges) > RANGES_PER_REQUEST_MAX:
        raise InvalidInput(f"{len(ranges)} ranges of {len(chunks)} chunks are not asked for in one request")
    if counts.sum() != len(ranges):
        raise InvalidInput("there must be as many ranges as the counts say")
    if chunks.max() >= snapshot.chunk_count:
        raise InvalidInput(f"the snapshot has no chunk {chunks.max()}")
    payload_lengths = snapshot.column("chunk_payload_lengths")[chunks].astype(np.int64)
    if (ranges.sum(axis=1) > np.repeat(payload_lengths, counts)).any():
        raise InvalidInput("a range ends behind its payload")
    ends = np.cumsum(counts)
    of_ranges = np.concatenate(([0], np.cumsum(ranges[:, 1])))
    lengths = np.where(counts > 0, of_ranges[ends] - of_ranges[ends - counts], payload_lengths)
    if (len(chunks) > 1 and lengths.sum() > PEER_ANSWER_BYTES_MAX) or lengths.max() > PEER_ANSWER_BYTES_MAX:
        raise InvalidInput(f"{lengths.sum()} bytes are asked for, limit {PEER_ANSWER_BYTES_MAX}")
    bounds = zip(chunks.tolist(), lengths.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True)
    is_common = bool(arguments.is_common)
    return [Asked(chunk, length, ranges[first:end], is_common) for chunk, length, first, end in bounds]
