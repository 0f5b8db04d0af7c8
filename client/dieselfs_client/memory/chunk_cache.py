"""The chunks that a mount holds for its readers: all evictable, the least recently used first.

In a job, the chunks that this node owns are not held twice: they are read in place, in the segments of the node cache,
which runs in the same thread.

Of a large extent, blocks may be held: parts that were read without the rest.

A damaged chunk is not held. Its extents are fetched one at a time and compared with their own checksums, so that only
the damaged files fail.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import trio

from dieselfs.cache.policy import CachePolicy
from dieselfs.chunk.blocks import BLOCK_BYTES, bytes_of
from dieselfs.chunk.ids import chunk_name
from dieselfs.limits import FETCHES_AT_ONCE_MAX, READ_TIMEOUT_S
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.sources.interface import Source, fetch_extent
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.memory.node_cache import NodeCache
from dieselfs_client.memory.trio_cache import Foreground, TrioCache

EXTENT_BYTES = 700
"""Cost of an extent in memory, beside its bytes: measured for CPython 3.11."""


class Blocks(NamedTuple):
    """Blocks of a chunk, from number `first` up to `end`. Several are fetched together, and held one by one."""

    chunk: int
    first: int
    end: int


Key = int | ExtentRef | Blocks
"""A chunk (its index), or an extent or blocks that are fetched without their chunk."""


class ChunkCache(TrioCache[Key, memoryview]):
    """Used from one trio thread. `held` and `start` are for keys that are not in the node cache."""

    def __init__(
        self,
        snapshot: Snapshot,
        source: Source,
        memory_bytes: int,
        nursery: trio.Nursery,
        timeout_s: float = READ_TIMEOUT_S,
        fetches_at_once: int = FETCHES_AT_ONCE_MAX,
        buffer_pool: BufferPool | None = None,
        foreground: Foreground | None = None,
        node_cache: Callable[[], NodeCache | None] = lambda: None,
    ) -> None:
        """Payloads are stored in the `buffer_pool` while it has room. `node_cache`: that of this process, or None."""

        def name(key: Key) -> str:
            return f"chunk {chunk_name(snapshot.chunk_id(key if isinstance(key, int) else key.chunk))}"

        self._snapshot = snapshot
        self._source = source
        self._memory_bytes = memory_bytes
        self._buffer_pool = buffer_pool
        self.node_cache = node_cache
        policy = CachePolicy[Key, memoryview](self._length_bytes, 0, memory_bytes, reserves_in_flight=True)
        super().__init__(policy, self._fetch, name, nursery, timeout_s, fetches_at_once, foreground)

    def lend(self, length_bytes: int) -> None:
        """Have this much room in addition to the budget. What was lent before is taken back."""
        self.policy.resize_evictable(self._memory_bytes + length_bytes)
        if self._buffer_pool is not None:
            self._buffer_pool.keep_spare(length_bytes)

    def held_extent(self, extent: ExtentRef, start: int, length: int) -> memoryview | None:
        """`length` bytes at `start` of an extent, if they are in memory; counts as a use."""
        first = extent.offset + start
        payload = self.held(extent.chunk)
        if payload is not None:
            return payload[first : first + length]
        node_cache = self.node_cache()
        view = None if node_cache is None else node_cache.view(extent.chunk, first, length)
        if view is None and (payload := self.held(extent)) is not None:
            return payload[start : start + length]
        return view

    def held_blocks(self, chunk: int, first: int, end: int) -> memoryview | None:
        """Blocks of a chunk, if all are in memory; counts as a use."""
        found = []
        for number in range(first, end):
            block = self.held(Blocks(chunk, number, number + 1))
            if block is None:
                return None
            found.append(block)
        return found[0] if len(found) == 1 else memoryview(b"".join(found))

    def is_coming(self, chunk: int) -> bool:
        """Whether a chunk is in memory or in flight as a whole."""
        return chunk in self.policy or chunk in self._in_flight

    def prefetch(self, chunk: int) -> None:
        """As `start`, but chunks in flight take at most half of the budget, so that they do not evict chunks in use. A
        chunk of this node is fetched by the node cache.
        """
        if chunk in self.policy:
            return
        node_cache = self.node_cache()
        if node_cache is not None and node_cache.owns(chunk):
            node_cache.start(chunk)
        elif self.has_room_ahead(chunk):
            self.start(chunk)

    def has_room_ahead(self, chunk: int) -> bool:
        """Whether chunks in flight leave half of the budget to chunks in use, with this one."""
        return 2 * (self.policy.reserved_bytes + self._length_bytes(chunk)) <= self._memory_bytes

    async def fetch(self, key: Key, limiter: trio.CapacityLimiter | None = None) -> memoryview:
        """As `TrioCache.fetch`, for a chunk of this node through the node cache. If that does not have it in time, or
        has no room, the source fetches it.
        """
        payload = self.held(key)
        if payload is None and not isinstance(key, Blocks) and (node_cache := self.node_cache()) is not None:
            payload = await self._fetch_from_node(node_cache, key, limiter)
        return await super().fetch(key, limiter) if payload is None else payload

    async def _fetch_from_node(
        self, node_cache: NodeCache, key: int | ExtentRef, limiter: trio.CapacityLimiter | None
    ) -> memoryview | None:
        if isinstance(key, int):
            return await node_cache.read(key, limiter=limiter)
        ranges = np.array([[key.offset, key.length]])
        payload = await node_cache.read(key.chunk, ranges, limiter=limiter)
        return None if payload is None else payload[key.offset : key.offset + key.length]

    def _length_bytes(self, key: Key) -> int:
        if isinstance(key, Blocks):
            return bytes_of(key.first, key.end, self._snapshot.chunk_payload_length(key.chunk))[1]
        return self._snapshot.chunk_payload_length(key) if isinstance(key, int) else key.length + EXTENT_BYTES

    def _hold(self, key: Key, held: memoryview) -> bool:
        if not isinstance(key, Blocks):
            return super()._hold(key, held)
        self.policy.end(key)
        for number in range(key.first, key.end):
            block = Blocks(key.chunk, number, number + 1)
            if block not in self.policy:
                start = (number - key.first) * BLOCK_BYTES
                self.policy.add(block, held[start : start + BLOCK_BYTES])
        return False

    def _fetch(self, key: Key) -> memoryview:
        if isinstance(key, Blocks):
            return self._source.fetch_blocks(*key)
        if not isinstance(key, int):
            return fetch_extent(self._source, key)
        buffer = None if self._buffer_pool is None else self._buffer_pool.take(self._length_bytes(key))
        if buffer is None:
            return memoryview(self._source.fetch_chunk(key))
        self._source.fetch_chunk_into(key, buffer)
        return buffer
