"""Runs: pushes the chunks of a large file into the page cache ahead of its reader, without a plan.

In the view `image`, and for ordinary users, the kernel asks the daemon for 128 KiB at most, and each request costs as
much as pushing several times that. So the chunks ahead are pushed whole, except their first bytes: the reads of these
show where the reader is. A reader of parts of files in another order lists the extents that it needs next; these are
pushed whole.

Chunks that are pinned stay. Others take room in the window, and are dropped when later ones need it.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import trio

from dieselfs.arrays import Numbers
from dieselfs.errors import DieselfsError
from dieselfs.limits import CHUNK_TARGET_BYTES, KIB
from dieselfs.prefetch.extent_table import Extents, ExtentTable
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.prefetch.budget import PrefetchBudget

RUN_WIRE_BYTES = 128 * KIB
"""The kernel asks for as many bytes at once, unless root has raised it."""
RUN_HEAD_BYTES = 2 * RUN_WIRE_BYTES
"""The first bytes of a file's part of a chunk are not pushed. Wherever reads begin, one of them is within these bytes,
without the end of the chunk before. In an image, a file may begin anywhere.
"""
RUN_AHEAD_BYTES = 4 * CHUNK_TARGET_BYTES
"""How far ahead of the reader chunks are pushed."""
RUN_FETCHES_AT_ONCE = RUN_AHEAD_BYTES // CHUNK_TARGET_BYTES
RUN_ROOM_BYTES_MIN = 2 * RUN_AHEAD_BYTES
"""With less room in the window, only pinned chunks are pushed: a reader would lose what is ahead of it."""
RUN_ROOM_SHARE = 0.5
"""Chunks of sequential readers take this share of the room. What is listed takes all of it: a group of the chunk-wise
order is read again and again, while the next one is pushed.
"""


class Runs:
    """Used from one trio thread; its tasks run in `nursery`.

    - `put` pushes extents of a payload; `drop` drops the pages of extents
    - `passed` is told of a chunk of which the daemon needs no more
    - `room_bytes`: the window, the most that chunks which are not pinned take
    """

    def __init__(
        self,
        table: ExtentTable,
        budget: PrefetchBudget,
        chunk_cache: ChunkCache,
        nursery: trio.Nursery,
        put: Callable[[Extents, memoryview, Numbers], Awaitable[None]],
        drop: Callable[[Extents], Awaitable[None]],
        passed: Callable[[int], None],
        room_bytes: int,
    ) -> None:
        self._table = table
        self._budget = budget
        self._chunk_cache = chunk_cache
        self._nursery = nursery
        self._put = put
        self._drop = drop
        self._passed = passed
        self._room_bytes = room_bytes
        self._limiter = trio.CapacityLimiter(RUN_FETCHES_AT_ONCE)
        self._turns = trio.CapacityLimiter(RUN_FETCHES_AT_ONCE)  # of what is listed, in its order
        self._in_flight: dict[int, trio.Event] = {}
        self._listed = OrderedDict[int, int]()  # of these, with the file: those that wait for a turn
        self._taken: set[int] = set()  # listed, and no longer waiting
        self._pushed: OrderedDict[int, Extents] = OrderedDict()  # of the window; the oldest first
        self._pushed_bytes = 0
        self._left: set[int] = set()  # were there

    def bring(self, node: int, chunk: int) -> None:
        """Fetch and push a chunk that a sequential reader of a file needs soon, unless that has begun, or the fetches
        in flight would evict chunks in use.
        """
        if chunk in self._in_flight or chunk in self._pushed or self._budget.was_just_pushed(chunk):
            return
        if chunk in self._chunk_cache.damaged or not self._chunk_cache.has_room_ahead(chunk):
            return
        self._chunk_cache.prefetch(chunk)  # in flight from now on: a read of it waits for all of it
        if self._budget.is_pushed(chunk):  # and reclaimed, at least in part
            return
        self._in_flight[chunk] = trio.Event()
        self._nursery.start_soon(self._bring, node, chunk, RUN_HEAD_BYTES, RUN_ROOM_SHARE)

    def read_ahead(self, numbers: list[int]) -> None:
        """Fetch and push the chunks of these extents, which a reader needs next, in their order."""
        for chunk, node in self._table.files_at(numbers):
            is_there = chunk in self._in_flight or chunk in self._pushed or self._budget.is_pushed(chunk)
            if not is_there and chunk not in self._chunk_cache.damaged:
                self._in_flight[chunk] = trio.Event()
                self._listed[chunk] = node
                self._nursery.start_soon(self._bring_listed)

    def has_left(self, chunk: int) -> bool:
        """Whether a chunk was pushed for a run, and dropped from the window."""
        return chunk in self._left and chunk not in self._pushed

    def is_listed(self, chunk: int) -> bool:
        """Whether a chunk will be fetched because a reader has listed it."""
        return chunk in self._listed or chunk in self._taken

    @property
    def is_busy(self) -> bool:
        """Whether any chunk is being fetched or pushed for a run."""
        return bool(self._in_flight)

    def is_coming(self, chunk: int) -> bool:
        """Whether a chunk is being fetched or pushed for a run."""
        return chunk in self._in_flight

    async def arrival(self, chunk: int) -> None:
        """Wait until a chunk is pushed, if it is on its way for a run."""
        event = self._in_flight.get(chunk)
        if event is not None:
            await event.wait()

    async def give_back(self) -> bool:
        """Drop what runs have in the window; False if there is nothing."""
        oldest = self._oldest(self._pushed_bytes)
        if oldest:
            await self._drop(Extents.joined(oldest))
        return bool(oldest)

    async def _bring_listed(self) -> None:
        """Bring the first of those that wait."""
        async with self._turns:
            chunk, node = self._listed.popitem(last=False)
            self._taken.add(chunk)
            try:
                if self._budget.is_pushed(chunk):  # for a reader that did not wait for its turn
                    self._in_flight.pop(chunk).set()
                else:
                    await self._bring(node, chunk, 0, 1.0)
            finally:
                self._taken.discard(chunk)
            if chunk in self._pushed or self._budget.is_pushed(chunk):
                self._passed(chunk)

    async def _bring(self, node: int, chunk: int, head_bytes: int, room_share: float) -> None:
        try:
            extents = self._table.of_chunk(chunk)
            is_pinned = self._budget.pin(chunk)
            if not is_pinned:
                extents = extents[extents.nodes == node]
                if not await self._is_charged(chunk, extents, int(room_share * self._room_bytes)):
                    return
            payload = await self._chunk_cache.fetch(chunk, self._limiter)
            if is_pinned:
                if self._budget.was_just_pushed(chunk):
                    return
                self._budget.push(chunk)
            beheaded = _beheaded(extents, node, head_bytes)
            await self._put(beheaded, payload, beheaded.offsets)
        except DieselfsError:
            pass  # its readers fetch it, and report the error
        finally:
            self._in_flight.pop(chunk).set()

    async def _is_charged(self, chunk: int, extents: Extents, room_bytes: int) -> bool:
        """Take room in the window, in place of the oldest chunks of runs; False if there is none."""
        needed_bytes = extents.page_bytes()
        if room_bytes < RUN_ROOM_BYTES_MIN:
            return False
        oldest = self._oldest(self._pushed_bytes + needed_bytes - room_bytes)
        is_charged = self._budget.has_room(needed_bytes)
        if is_charged:  # before the next checkpoint
            self._budget.charge(self._budget.hold(extents))
            self._pushed[chunk] = extents
            self._pushed_bytes += needed_bytes
        if oldest:
            await self._drop(Extents.joined(oldest))
        return is_charged

    def _oldest(self, least_bytes: int) -> list[Extents]:
        """Release the oldest chunks, at least `least_bytes` of them; returns what of them must be dropped."""
        oldest: list[Extents] = []
        while self._pushed and least_bytes > 0:
            chunk, extents = self._pushed.popitem(last=False)
            self._left.add(chunk)
            self._pushed_bytes -= extents.page_bytes()
            least_bytes -= extents.page_bytes()
            oldest.append(self._budget.release(extents))
        return oldest


def _beheaded(extents: Extents, node: int, head_bytes: int) -> Extents:
    """The extents without the first `head_bytes` of those of a file, together."""
    own = np.flatnonzero(extents.nodes == node)
    order = own[np.argsort(extents.places[own])]
    ends = np.cumsum(extents.lengths[order])
    cut = np.zeros(len(extents), np.int64)
    cut[order] = np.clip(head_bytes - (ends - extents.lengths[order]), 0, extents.lengths[order])
    return replace(
        extents,
        places=extents.places + cut,
        offsets=extents.offsets + cut,
        lengths=extents.lengths - cut,
    )
