"""Requests between nodes, as bytes: extents of chunks, or whole payloads. No I/O.

Chunks are identified by their numbers in the snapshot, which both nodes have.
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


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """As `PeerRequest`, on the owner. `ranges`: shape (n, 2), offset and length in the payload. `wanted_bytes`: of the
    chunk, with what other readers of a shared plan will soon request.
    """

    chunk: int
    length_bytes: int
    ranges: npt.NDArray[np.int64]
    wanted_bytes: int

    @property
    def is_whole(self) -> bool:
        return not len(self.ranges)

    def of(self, payload: memoryview) -> Iterator[memoryview]:
        """The ranges of the payload; adjacent ones are joined."""
        start, end = 0, len(payload) if self.is_whole else 0
        for offset, length in self.ranges.tolist():
            if offset != end:
                if start < end:
                    yield payload[start:end]
                start = offset
            end = offset + length
        yield payload[start:end]


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
    # Most requests are one range of one chunk, for which NumPy columns would dominate the cost.
    chunks, counts = (
        struct.unpack(f"<{len(column) // 4}I", column) for column in (arguments.chunks, arguments.counts)
    )
    ranges = np.frombuffer(arguments.ranges, U32).astype(np.int64).reshape(-1, 2)
    if not 0 < len(chunks) <= PEER_CHUNKS_MAX or len(ranges) > RANGES_PER_REQUEST_MAX:
        raise InvalidInput(f"{len(ranges)} ranges of {len(chunks)} chunks exceed the limits of a request")
    if sum(counts) != len(ranges):
        raise InvalidInput(f"malformed request: {len(ranges)} ranges, {sum(counts)} in the counts")
    if max(chunks) >= snapshot.chunk_count:
        raise InvalidInput(f"the snapshot has no chunk {max(chunks)}")
    payload_lengths = [*map(snapshot.chunk_payload_length, chunks)]
    if (ranges.sum(axis=1) > np.repeat(payload_lengths, counts)).any():
        raise InvalidInput("malformed request: a range ends after the end of its payload")
    bytes_before = [0, *accumulate(ranges[:, 1].tolist())]
    requests = []
    first = 0
    for chunk, count, payload_bytes in zip(chunks, counts, payload_lengths, strict=True):
        end = first + count
        length_bytes = bytes_before[end] - bytes_before[first] if count else payload_bytes
        wanted_bytes = payload_bytes if arguments.is_shared_plan else length_bytes
        requests.append(ReceivedRequest(chunk, length_bytes, ranges[first:end], wanted_bytes))
        first = end
    total_bytes = sum([each.length_bytes for each in requests])
    if total_bytes > PEER_ANSWER_BYTES_MAX:
        raise InvalidInput(f"{total_bytes} bytes requested, limit {PEER_ANSWER_BYTES_MAX}")
    return requests
