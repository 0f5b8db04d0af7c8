"""The chunks that this node holds in memory, within a budget of bytes; the least recently used goes first.

`resident` looks, `fetch` brings, each chunk once however many readers want it.

A chunk whose payload is damaged is not kept. Its files are then fetched one extent at a time, each against its own
checksum, so that the damage touches only the file that it lies in.
"""

import logging
from collections import OrderedDict
from collections.abc import Set

import trio

from dieselfs.chunk.ids import chunk_name
from dieselfs.chunk_source import ChunkSource
from dieselfs.errors import Damaged, DieselfsError
from dieselfs.limits import FETCHES_AT_ONCE_MAX, READ_TIMEOUT_S
from dieselfs.meta.snapshot import ExtentRef, Snapshot
from dieselfs_client.arena import Arena
from dieselfs_client.flights import Flights
from dieselfs_client.foreground import Foreground

_log = logging.getLogger(__name__)


Key = int | ExtentRef
"""What a flight carries: a chunk (its index), or an extent of a chunk that is damaged."""


class ChunkResidency:
    """Used from one trio thread. `nursery` runs the flights: cancelling it abandons them, with their threads."""

    def __init__(
        self,
        snapshot: Snapshot,
        source: ChunkSource,
        memory_bytes: int,
        nursery: trio.Nursery,
        fetch_timeout_s: float = READ_TIMEOUT_S,
        fetches_at_once: int = FETCHES_AT_ONCE_MAX,
        arena: Arena | None = None,
        foreground: Foreground | None = None,
    ) -> None:
        """Chunks are put into the `arena` as long as it has room."""
        self._snapshot = snapshot
        self._source = source
        self._memory_bytes = memory_bytes
        self._arena = arena
        self._flights = Flights(
            self._bring,
            self._depart,
            self._land,
            self._name,
            nursery,
            fetch_timeout_s,
            fetches_at_once,
            foreground,
        )
        # All below change only between checkpoints.
        self._payloads: OrderedDict[Key, memoryview] = OrderedDict()
        self._resident_bytes = 0
        self._flying_bytes = 0
        self._damaged: set[int] = set()

    @property
    def resident_bytes(self) -> int:
        return self._resident_bytes

    @property
    def damaged(self) -> Set[int]:
        """The chunks that are known to be damaged."""
        return self._damaged

    def resident(self, key: Key) -> memoryview | None:
        """The payload of a chunk (or an extent that was fetched by itself) if it is in memory; counts as a use."""
        payload = self._payloads.get(key)
        if payload is not None:
            self._payloads.move_to_end(key)
        return payload

    def resident_piece(self, extent: ExtentRef, start: int, length: int) -> memoryview | None:
        """`length` bytes at `start` of an extent, if they are in memory; counts as a use."""
        payload = self.resident(extent.chunk)
        if payload is not None:
            first = extent.offset + start
            return payload[first : first + length]
        payload = self.resident(extent)
        return None if payload is None else payload[start : start + length]

    def prefetch(self, chunk: int) -> None:
        """Start to fetch a chunk, unless it is in memory, on its way, or known to be damaged.

        What is on its way never takes more than half of the budget, so that it cannot push out what is being read.
        """
        if chunk in self._payloads or chunk in self._damaged:
            return
        if 2 * (self._flying_bytes + self._length_bytes(chunk)) <= self._memory_bytes:
            self._flights.start(chunk)

    async def fetch(self, chunk: int, lane: trio.CapacityLimiter | None = None) -> memoryview:
        """The payload of a chunk, from memory or from the source; for the `lane` see `Flights.wait`.

        Raises what the source raises; Damaged at once for a chunk that was found damaged before; Unavailable if the
        chunk is longer on its way than the limit, also when another reader had asked for it. If cancelled, the
        fetch goes on and what it brings is kept.
        """
        payload = self.resident(chunk)
        if payload is not None:
            return payload
        if chunk in self._damaged:
            raise Damaged(f"{self._name(chunk)} is damaged")
        return await self._flights.wait(chunk, lane)

    async def fetch_piece(self, extent: ExtentRef, start: int, length: int) -> memoryview:
        """`length` bytes at `start` of an extent: from its chunk, or by itself where the chunk is damaged.

        Raises and behaves as `fetch`; Damaged only if it is this extent that is damaged.
        """
        try:
            payload = await self.fetch(extent.chunk)
        except Damaged:
            return await self.fetch_alone(extent, start, length)
        first = extent.offset + start
        return payload[first : first + length]

    async def fetch_alone(self, extent: ExtentRef, start: int, length: int) -> memoryview:
        """As `fetch_piece`, without the rest of the chunk."""
        payload = self.resident(extent)
        if payload is None:
            payload = await self._flights.wait(extent)
        return payload[start : start + length]

    # -- flights -----------------------------------------------------------------------------------------

    def _name(self, key: Key) -> str:
        chunk = key if isinstance(key, int) else key.chunk
        return f"chunk {chunk_name(self._snapshot.chunk_id(chunk))}"

    def _length_bytes(self, key: Key) -> int:
        return self._snapshot.chunk_payload_length(key) if isinstance(key, int) else key.length

    def _bring(self, key: Key) -> memoryview:
        if not isinstance(key, int):
            return memoryview(self._source.fetch_extent(key))
        room = None if self._arena is None else self._arena.take(self._length_bytes(key))
        if room is None:
            return memoryview(self._source.fetch_chunk(key))
        self._source.fetch_chunk_into(key, room)
        return room

    def _depart(self, key: Key) -> None:
        self._flying_bytes += self._length_bytes(key)
        self._make_room()

    def _land(self, key: Key, payload: memoryview | None, error: DieselfsError | None) -> bool:
        self._flying_bytes -= self._length_bytes(key)
        if payload is not None:
            self._payloads[key] = payload
            self._resident_bytes += len(payload)
            self._make_room()
        elif isinstance(error, Damaged) and isinstance(key, int):
            self._damaged.add(key)
            _log.error("%s; its files are now fetched one at a time", error)
        else:
            return True
        return False

    def _make_room(self) -> None:
        """Drop what was used longest ago until all that is held or on its way fits the budget; keep the newest."""
        while self._resident_bytes + self._flying_bytes > self._memory_bytes and len(self._payloads) > 1:
            _, payload = self._payloads.popitem(last=False)
            self._resident_bytes -= len(payload)
