"""Which chunks stay in memory, which are evicted, and how much is fetched for a read. No I/O.

If each chunk is read once in an epoch, no policy gets more hits from the same memory than one that never evicts, not
even with knowledge of the future reads. So the first chunks are *pinned*, as many as fit. The rest is *evictable*: a
group of the chunk-wise order stays until its files were read.

A read with nothing in memory fetches as little as it needs, until its neighbourhood is in use: blocks of a large
extent, or one small extent, and the whole chunk once WHOLE_SHARE of it was requested lately. Each request counts as
some bytes more, because it takes as long as fetching them. A chunk that will be pinned is fetched whole at once, unless
a small part of a large extent is read: then it comes after a few windows of blocks if the whole dataset will be pinned.
A chunk that a plan needs next is fetched whole.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from dieselfs.arrays import Ranges, among
from dieselfs.limits import CHUNK_TARGET_BYTES, KIB

LOOKUP_SHARE = 0.125
"""Share of the memory of a process that is for remembered places of files."""
LOOKUP_BYTES = 128
"""Cost of one remembered place, beside the path: measured for CPython 3.11."""
EVICTABLE_BYTES = 100 * CHUNK_TARGET_BYTES
EVICTABLE_SHARE = 0.75
"""The limit of evictable chunks, even if a group of the chunk-wise order does not fit."""

WHOLE_SHARE = 0.25
"""A payload is fetched whole when this much of it was requested."""
EVICTED_WHOLE_SHARE = 1.0
"""The share that makes a payload worth fetching, for blocks of a chunk that will not stay in memory:
others are read before it is read again.
"""
PREFETCH_WHOLE_SHARE = 0.75
"""The share that makes a payload worth prefetching: there, extents of many chunks share one request."""
REQUEST_BYTES = 64 * KIB
"""The latency of a request, in bytes that could be fetched meanwhile; each request counts as this much more."""
LIBRARY_REQUEST_BYTES = 256 * KIB
"""The latency of a request of a process that reads with the library: its requests follow each other."""
BLOCK_REQUEST_BYTES = 8 * KIB
"""The latency of a request for blocks of large extents. Reads of 16 KiB then fetch at most 7 times what they
read: a chunk comes when a sixth of it was read, and the blocks came before.
"""
LARGE_EXTENT_BYTES = 256 * KIB
"""A small part of an extent of at least this size is fetched in blocks. A smaller one takes as long as its part."""
RECENT_CHUNKS_MAX = 1024
"""Chunks whose recent requests are remembered."""

Key = TypeVar("Key", bound=Hashable)
Held = TypeVar("Held")


@dataclass(frozen=True, slots=True)
class CacheBudget:
    """How the memory of a process for one dataset is split, in bytes."""

    pinned: int
    evictable: int
    lookups: int

    @classmethod
    def of(cls, memory_bytes: int, dataset_bytes: int) -> "CacheBudget":
        """If a dataset of `dataset_bytes` fits, all of it is pinned, and nothing needs to be evictable."""
        lookups = int(memory_bytes * LOOKUP_SHARE)
        rest = memory_bytes - lookups
        if dataset_bytes <= rest:
            return cls(rest, 0, lookups)
        evictable = min(EVICTABLE_BYTES, int(rest * EVICTABLE_SHARE))
        return cls(rest - evictable, evictable, lookups)


class CachePolicy(Generic[Key, Held]):
    """Held values by their keys, within a budget of pinned and one of evictable bytes.

    Keys that were handed out completely are evicted first, as they are not read again in this epoch; then the least
    recently used. The newest stays, even if it is larger than the budget. Used by one thread at a time; only `pinned`
    may be read from any other.
    """

    def __init__(
        self,
        length_bytes: Callable[[Key], int],
        pinned_max_bytes: int,
        evictable_max_bytes: int,
        live_bytes: Callable[[Key], int] | None = None,
        reserves_in_flight: bool = False,
    ) -> None:
        """`live_bytes`: the bytes of a chunk that can be handed out, by default all. `reserves_in_flight`: a fetch
        takes room of the evictable budget from its beginning.
        """
        self.pinned: dict[Key, Held] = {}
        self.pinned_bytes = 0
        self.pinned_max_bytes = pinned_max_bytes
        self.evictable_bytes = 0
        self.evictable_max_bytes = evictable_max_bytes
        self.reserved_bytes = 0
        """In flight, or outside of chunks; of the evictable budget."""
        self._length_bytes = length_bytes
        self._live_bytes = live_bytes or length_bytes
        self._reserves_in_flight = reserves_in_flight
        self._in_flight: dict[Key, bool] = {}  # whether it will be pinned
        self._promised_bytes = 0  # in flight, and will be pinned
        self._evictable: OrderedDict[Key, Held] = OrderedDict()  # the last used at the end
        self._handed_out: dict[Key, Ranges] = {}  # in this epoch
        self._finished: dict[Key, None] = {}  # handed out completely, in that order
        self._kept: set[Key] = set()  # pinned, but not in `pinned_bytes`

    def __contains__(self, key: Key) -> bool:
        return key in self.pinned or key in self._evictable

    def __len__(self) -> int:
        return len(self.pinned) + len(self._evictable)

    def __iter__(self) -> Iterator[Key]:
        """The keys of all that is held. Do not change it meanwhile."""
        yield from self.pinned
        yield from self._evictable

    def get(self, key: Key) -> Held | None:
        """The value of a key, None if it is not held; counts as a use."""
        held = self.pinned.get(key)
        if held is None and (held := self._evictable.get(key)) is not None:
            self._evictable.move_to_end(key)
        return held

    def get_evictable(self, key: Key) -> Held | None:
        """As `get`, faster, for a cache that pins nothing."""
        held = self._evictable.get(key)
        if held is not None:
            self._evictable.move_to_end(key)
        return held

    def would_pin(self, key: Key) -> bool:
        """Whether one more would be pinned, beside those in flight that will be."""
        taken_bytes = self.pinned_bytes + self._promised_bytes
        return (
            self._in_flight.get(key, False) or taken_bytes + self._length_bytes(key) <= self.pinned_max_bytes
        )

    def has_room(self, key: Key) -> bool:
        """Whether it can be held at all."""
        return self.would_pin(key) or self._length_bytes(key) <= self.evictable_max_bytes

    def begin(self, key: Key) -> None:
        """A fetch begins, which takes its room from now on."""
        is_pinned = self._in_flight[key] = self.would_pin(key)
        if is_pinned:
            self._promised_bytes += self._length_bytes(key)
        elif self._reserves_in_flight:
            self.reserved_bytes += self._length_bytes(key)
            self._evict()

    def end(self, key: Key) -> None:
        """A fetch is over, if one had begun. The result is added before."""
        is_pinned = self._in_flight.pop(key, None)
        if is_pinned:
            self._promised_bytes -= self._length_bytes(key)
        elif is_pinned is not None and self._reserves_in_flight:
            self.reserved_bytes -= self._length_bytes(key)

    def reserve(self, length_bytes: int) -> None:
        """Take room of the evictable budget for bytes that are not held here; less than 0: give it back."""
        self.reserved_bytes += length_bytes
        self._evict()

    def add(self, key: Key, held: Held) -> bool:
        """Hold one that is not held, whether its fetch was announced or not; returns whether it is pinned."""
        is_pinned = self.would_pin(key)
        self.end(key)
        if is_pinned:
            self.pinned[key] = held
            self.pinned_bytes += self._length_bytes(key)
        else:
            self._evictable[key] = held
            self.evictable_bytes += self._length_bytes(key)
            self._evict()
        return is_pinned

    def keep(self, key: Key, held: Held) -> None:
        """Hold one that takes no memory of this process, as another one keeps it: pinned, outside of the budget."""
        self._take(key)
        self.pinned[key] = held
        self._kept.add(key)

    def pin(self, key: Key) -> Held | None:
        """Pin an evictable one if there is room; returns it if it was."""
        held = self._take(key) if self.would_pin(key) else None
        if held is not None:
            self.add(key, held)
        return held

    def drop(self, key: Key) -> bool:
        """Stop holding it; returns whether it was pinned."""
        self._take(key)
        if self.pinned.pop(key, None) is None:
            return False
        if key in self._kept:
            self._kept.remove(key)
        else:
            self.pinned_bytes -= self._length_bytes(key)
        return True

    def handed_out(self, key: Key, ranges: Ranges) -> None:
        """A reader got ranges of an evictable one, which no other reader needs in this epoch. A range that is handed
        out twice belongs to the next epoch, and the count starts again.
        """
        if key not in self._evictable:
            return
        before = self._handed_out.get(key, ranges[:0])
        is_next_epoch = bool(among(ranges[:, 0], before[:, 0]).any())
        handed = self._handed_out[key] = ranges if is_next_epoch else np.concatenate((before, ranges))
        self._finished.pop(key, None)
        if handed[:, 1].sum() >= self._live_bytes(key):
            self._finished[key] = None

    def resize_evictable(self, evictable_max_bytes: int) -> None:
        """Change the budget of what is not pinned."""
        self.evictable_max_bytes = evictable_max_bytes
        self._evict()

    def clear(self) -> None:
        """Drop everything, and accept nothing more."""
        self.pinned_max_bytes = self.evictable_max_bytes = 0
        for of_key in (self.pinned, self._kept, self._evictable, self._handed_out, self._finished):
            of_key.clear()
        self.pinned_bytes = self.evictable_bytes = 0

    def _evict(self) -> None:
        while (
            self.evictable_bytes + self.reserved_bytes > self.evictable_max_bytes and len(self._evictable) > 1
        ):
            self._take(next(iter(self._finished or self._evictable)))

    def _take(self, key: Key) -> Held | None:
        held = self._evictable.pop(key, None)
        if held is not None:
            self.evictable_bytes -= self._length_bytes(key)
            self._handed_out.pop(key, None)
            self._finished.pop(key, None)
        return held


def is_worth_whole(wanted_bytes: int, payload_bytes: int, share: float = WHOLE_SHARE) -> bool:
    """Whether to fetch a whole payload for `wanted_bytes` of it."""
    return wanted_bytes >= share * payload_bytes


def is_small_part(wanted_bytes: int, extent_bytes: int, share: float = WHOLE_SHARE) -> bool:
    """Whether a request is for so small a part of a large extent that blocks are fetched, until many were requested."""
    return extent_bytes >= LARGE_EXTENT_BYTES and not is_worth_whole(wanted_bytes, extent_bytes, share)


class RecentRequests:
    """Bytes requested lately of chunks that are not in memory: small requests add up to a whole chunk."""

    def __init__(self, request_bytes: int = REQUEST_BYTES) -> None:
        """`request_bytes`: added for each request."""
        self._request_bytes = request_bytes
        # The chunk requested last is at the end.
        self._requested_bytes: OrderedDict[Hashable, int] = OrderedDict()

    def __contains__(self, chunk: Hashable) -> bool:
        return chunk in self._requested_bytes

    def forget(self, chunk: Hashable) -> None:
        self._requested_bytes.pop(chunk, None)

    def is_worth_whole(
        self,
        chunk: Hashable,
        wanted_bytes: int,
        payload_bytes: int,
        chunks_max: int = RECENT_CHUNKS_MAX,
        share: float = WHOLE_SHARE,
    ) -> bool:
        """Note a request; whether it makes the whole chunk worth fetching. No more than `chunks_max` are remembered."""
        if is_worth_whole(self.requested_bytes(chunk, wanted_bytes), payload_bytes, share):
            self.forget(chunk)
            return True
        self.note(chunk, wanted_bytes, chunks_max)
        return False

    def requested_bytes(self, chunk: Hashable, wanted_bytes: int, together: int = 1) -> int:
        """Bytes requested lately of a chunk, with a request for `wanted_bytes`, which is for `together` chunks."""
        return self._requested_bytes.get(chunk, 0) + self._request_bytes // together + wanted_bytes

    def note(self, chunk: Hashable, wanted_bytes: int, chunks_max: int, together: int = 1) -> None:
        """Count a request, as the last one. No more than `chunks_max` chunks are remembered."""
        requested_bytes = self.requested_bytes(chunk, wanted_bytes, together)
        self.forget(chunk)
        self._requested_bytes[chunk] = requested_bytes
        while len(self._requested_bytes) > chunks_max:
            self._requested_bytes.popitem(last=False)
