"""Requests between nodes, as bytes: extents of chunks, or whole payloads. No I/O.

Chunks are identified by their numbers in the snapshot, which both nodes have.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from operator import add, attrgetter
from typing import Any, NamedTuple

import numpy as np

from dieselfs.arrays import Ranges
from dieselfs.columns import U32
from dieselfs.errors import InvalidInput
from dieselfs.limits import PEER_ANSWER_BYTES_MAX, PEER_CHUNKS_MAX, RANGES_PER_REQUEST_MAX
from dieselfs.snapshot.reader import ExtentRef, Snapshot


class ChunkAvailability(IntEnum):
    """The state of a requested chunk; numbers on the wire."""

    HERE = 0
    LATER = 1
    """In flight: request it again."""
    ELSEWHERE = 2
    """This node does not fetch it: request it from a server."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """Extents of one chunk, in the order of the reply; without `extents`, its whole payload.

    `is_shared_plan`: other readers will soon request the rest of it.
    """

    chunk: int
    length_bytes: int
    extents: Sequence[ExtentRef] = ()
    is_shared_plan: bool = False
    destination: memoryview | None = field(default=None, compare=False)
    """A buffer of `length_bytes` for bytes from the network; None: a new one."""

    @classmethod
    def whole(cls, snapshot: Snapshot, chunk: int, destination: memoryview | None = None) -> "PeerRequest":
        return cls(chunk, snapshot.chunk_payload_length(chunk), destination=destination)

    @classmethod
    def of_extents(
        cls, chunk: int, extents: Sequence[ExtentRef], is_shared_plan: bool = False
    ) -> "PeerRequest":
        """`extents`: at least one, all of this chunk."""
        return cls(chunk, sum([extent.length for extent in extents]), extents, is_shared_plan)


def encode_requests(requests: Sequence[PeerRequest]) -> dict[str, object]:
    """The arguments of `get_extents`, without the digest."""
    extents = chain.from_iterable(each.extents for each in requests)
    ranges = [*chain.from_iterable(map(_range_of, extents))]
    return {
        "chunks": np.array([each.chunk for each in requests], U32).tobytes(),
        "counts": np.array([len(each.extents) for each in requests], U32).tobytes(),
        "ranges": struct.pack(f"<{len(ranges)}I", *ranges),
        "is_shared_plan": any(each.is_shared_plan for each in requests),
    }


_range_of = attrgetter("offset", "length")


class ReceivedRequest(NamedTuple):
    """As `PeerRequest`, on the owner. `starts` and `ends`: of the ranges in the payload, none for all of it.
    `wanted_bytes`: of the chunk, with what other readers of a shared plan will soon request.
    """

    chunk: int
    length_bytes: int
    starts: Sequence[int]
    ends: Sequence[int]
    wanted_bytes: int

    @property
    def ranges(self) -> Ranges:
        """Offset and length of each range."""
        starts = np.array(self.starts, np.int64)
        return np.column_stack((starts, np.array(self.ends, np.int64) - starts))

    def of(self, payload: memoryview) -> list[memoryview]:
        """The ranges of the payload; adjacent ones are joined."""
        if not self.starts:
            return [payload]
        parts: list[memoryview] = []
        start = end = self.starts[0]
        for next_start, next_end in zip(self.starts, self.ends, strict=True):
            if next_start != end:
                parts.append(payload[start:end])
                start = next_start
            end = next_end
        parts.append(payload[start:end])
        return parts


def decode_requests(arguments: Any, snapshot: Snapshot) -> list[ReceivedRequest]:
    """The requests of a peer. Raises InvalidInput unless all are in the snapshot, and within the limits."""
    if (
        len(arguments.chunks) % 4
        or len(arguments.chunks) != len(arguments.counts)
        or len(arguments.ranges) % 8
    ):
        raise InvalidInput(
            "malformed request: chunks and counts must be equally many u32, ranges pairs of u32"
        )
    # A request has some dozen ranges: starting NumPy takes longer than these loops.
    chunks, counts, numbers = (
        struct.unpack(f"<{len(column) // 4}I", column)
        for column in (arguments.chunks, arguments.counts, arguments.ranges)
    )
    starts, lengths = numbers[::2], numbers[1::2]
    if not 0 < len(chunks) <= PEER_CHUNKS_MAX or len(starts) > RANGES_PER_REQUEST_MAX:
        raise InvalidInput(f"{len(starts)} ranges of {len(chunks)} chunks exceed the limits of a request")
    if sum(counts) != len(starts):
        raise InvalidInput(f"malformed request: {len(starts)} ranges, {sum(counts)} in the counts")
    if max(chunks) >= snapshot.chunk_count:
        raise InvalidInput(f"the snapshot has no chunk {max(chunks)}")
    ends = tuple(map(add, starts, lengths))
    requests = []
    first = 0
    for chunk, count in zip(chunks, counts, strict=True):
        payload_bytes = length_bytes = snapshot.chunk_payload_length(chunk)
        here = slice(first, first + count)
        if count:
            length_bytes = sum(lengths[here])
            if max(ends[here]) > payload_bytes:
                raise InvalidInput("malformed request: a range ends after the end of its payload")
        wanted_bytes = payload_bytes if arguments.is_shared_plan else length_bytes
        requests.append(ReceivedRequest(chunk, length_bytes, starts[here], ends[here], wanted_bytes))
        first += count
    total_bytes = sum([each.length_bytes for each in requests])
    if total_bytes > PEER_ANSWER_BYTES_MAX:
        raise InvalidInput(f"{total_bytes} bytes requested, limit {PEER_ANSWER_BYTES_MAX}")
    return requests
