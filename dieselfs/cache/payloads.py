"""The payloads that one process holds in memory: what comes first stays, all else passes through. No I/O.

What is read once in an epoch is best kept by never letting it go: no policy, not even one that knows the future, gets
more hits out of the same memory. So memory has a part that is *kept*, and what does not fit there is in *transit*: a
group of the chunk-wise order stays there until its files have been read, the least recently used goes first.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

from dieselfs.cache.segment import Memory
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.shuffle.order import DEFAULT_GROUP_CHUNKS

LOOKUP_SHARE = 8
"""One part in so many of the memory is for knowing where files lie."""
LOOKUP_BYTES = 128
"""What it costs to know where one file lies, beside the path: measured for CPython 3.11."""
TRANSIT_BYTES = DEFAULT_GROUP_CHUNKS * CHUNK_TARGET_BYTES
TRANSIT_SHARE = 0.75
"""What passes through takes no more of the memory, even if a group of the chunk-wise order does not fit then."""


@dataclass(frozen=True, slots=True)
class Room:
    """How the memory for one dataset is split, in bytes."""

    kept: int
    transit: int
    lookups: int

    @classmethod
    def of(cls, memory_bytes: int, dataset_bytes: int) -> "Room":
        """If a dataset of `dataset_bytes` fits, all of it is kept, and nothing needs to pass through."""
        lookups = memory_bytes // LOOKUP_SHARE
        rest = memory_bytes - lookups
        if dataset_bytes <= rest:
            return cls(rest, 0, lookups)
        transit = min(TRANSIT_BYTES, int(rest * TRANSIT_SHARE))
        return cls(rest - transit, transit, lookups)


class Payload(NamedTuple):
    """One verified payload. A slice of `memory` is `bytes`; a slice of `view` is read-only and no copy."""

    memory: Memory
    view: memoryview
    slot: int = -1
    """Its place in `Payloads.memories` and `Payloads.views`, if it is kept."""

    @classmethod
    def of(cls, memory: Memory) -> "Payload":
        buffer: Any = memory  # which `Memory` cannot say before Python 3.12
        return cls(memory, memoryview(buffer).cast("B").toreadonly())


class Payloads:
    """Payloads by the number of their chunk.

    Whoever shares one between threads guards all but looking into `kept`, `memories` and `views`.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self.kept: dict[int, Payload] = {}
        self.memories: list[Memory] = []
        self.views: list[memoryview] = []
        self.kept_bytes = 0
        self.transit_bytes = 0
        self._transit: OrderedDict[int, Payload] = OrderedDict()

    def get(self, chunk: int) -> Payload | None:
        """The payload of a chunk, if it is here; counts as a use."""
        payload = self.kept.get(chunk)
        if payload is None and (payload := self._transit.get(chunk)) is not None:
            self._transit.move_to_end(chunk)
        return payload

    def would_keep(self, length_bytes: int) -> bool:
        return self.kept_bytes + length_bytes <= self.room.kept

    def has_room(self, length_bytes: int) -> bool:
        """Whether a payload of this length can be held at all."""
        return self.would_keep(length_bytes) or length_bytes <= self.room.transit

    def add(self, chunk: int, payload: Payload) -> None:
        """Hold the payload of a chunk that is not here: for good if there is room, else for a while."""
        length_bytes = len(payload.view)
        if self.would_keep(length_bytes):
            slot = len(self.memories)
            self.memories.append(payload.memory)
            self.views.append(payload.view)
            self.kept[chunk] = payload._replace(slot=slot)
            self.kept_bytes += length_bytes
            return
        self._transit[chunk] = payload
        self.transit_bytes += length_bytes
        while self.transit_bytes > self.room.transit:
            _, gone = self._transit.popitem(last=False)
            self.transit_bytes -= len(gone.view)

    def clear(self) -> None:
        """Let go of everything, for good: there is no room for anything any more, so that no slot is used again."""
        self.room = Room(0, 0, 0)
        for held in (self.kept, self.memories, self.views, self._transit):
            held.clear()
        self.kept_bytes = self.transit_bytes = 0
