"""What a node has in stock: files put into the page cache before they are read, ahead of plans and for good.

A file reaches the page cache in one of two ways. The chunks that are *kept* are pushed whole and stay: they are the
first that were wanted, as many as the memory holds, and none is ever given up for another. All else streams through
the *window*: only the files that plans want, fetched ahead of the readers and dropped behind them.

The memory of a chunk is let go once its files are pushed, so that a byte is held once. The kernel may take pages back
all the same; then the file is read through the daemon, and a kept chunk is pushed again.
"""

import logging
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import trio

from dieselfs.errors import DieselfsError, MountError
from dieselfs.limits import FETCHES_AT_ONCE_MAX
from dieselfs.meta.snapshot import ExtentRef, Snapshot
from dieselfs.shuffle.plan import Share
from dieselfs_client.memory import Allotment
from dieselfs_client.pieces import Pieces, PieceTable
from dieselfs_client.residency import ChunkResidency
from dieselfs_client.window import PlanWindow, Span, Tripwires

WHOLE_SHARE = 0.75
"""A chunk of whose payload this much is wanted is fetched whole: one checksum instead of many."""
PARCELS_AT_ONCE_MAX = FETCHES_AT_ONCE_MAX // 2
"""Fetches ahead of readers; the others are left for readers who wait."""
PUSHED_AGAIN_S = 10.0
"""A kept chunk is pushed again no sooner: pages that the kernel takes back at once are not worth it."""
FINISHED_S = 10.0
"""The last files of a plan stay for so long after its readers were last heard of."""
HEAD_START_S = 2.0
PLAN_QUIET_S = 600.0
"""The window of a plan whose readers have not been heard of for so long is given to the others."""

_log = logging.getLogger(__name__)


class Pages(Protocol):
    """Where files are put: `PageCache`. Both methods block and are called from one thread at a time."""

    def store(self, pieces: Pieces, payload: memoryview, starts: npt.NDArray[np.int64]) -> int: ...

    def drop(self, nodes: npt.NDArray[np.integer]) -> None: ...


class RangeSource(Protocol):
    """Where pieces come from that are fetched without the rest of their chunk. Blocks; raises DieselfsError."""

    def fetch_extents(self, chunk: int, extents: list[ExtentRef]) -> list[bytes]: ...


@dataclass(slots=True)
class StockFigures:
    """Counts since the start."""

    pushed_files: int = 0
    pushed_bytes: int = 0
    dropped_files: int = 0
    pushed_again_chunks: int = 0
    planned_bytes: int = 0
    """What plans wanted, in pages."""
    planned_hit_bytes: int = 0
    """That part of it which was in stock already."""
    failed_parcels: int = 0


class Stock:
    """Used from one trio thread; `run` does the work. If it is cancelled, what was pushed stays pushed."""

    def __init__(
        self,
        snapshot: Snapshot,
        residency: ChunkResidency,
        source: RangeSource,
        pages: Pages,
        allotment: Allotment,
        nursery: trio.Nursery,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self.figures = StockFigures()
        self.table = PieceTable(snapshot)
        self._snapshot = snapshot
        self._residency = residency
        self._source = source
        self._pages = pages
        self._allotment = allotment
        self._nursery = nursery
        self._clock = clock
        self._is_over = False
        self._windows: dict[Hashable, PlanWindow] = {}
        self._stocked: dict[
            Hashable, trio.Event
        ] = {}  # set when the first files of a plan's reader are in stock
        self._dataset_bytes = self.table.total_page_bytes()
        self._kept: dict[int, float] = {}  # chunks, and when they were pushed
        self._kept_bytes = 0
        self._window_bytes = 0
        extents = len(snapshot.column("extent_chunks"))
        self._in_stock = np.zeros(extents, np.bool_)
        self._in_window = np.zeros(extents, np.bool_)
        self._tripwires = Tripwires(snapshot)
        self._wires: dict[int, memoryview] = {}
        self._sprung: set[int] = set()  # tripwires that the kernel has put into the page cache since
        self._expected: set[int] = set()
        self._moved = trio.Event()  # set, and made anew, when a window moves or memory becomes free
        self._fetching = trio.CapacityLimiter(PARCELS_AT_ONCE_MAX)
        self._pushing = trio.CapacityLimiter(1)

    # -- what readers ask --------------------------------------------------------------------------------

    def held(self, node: int) -> memoryview | None:
        """All bytes of a file that is in memory to tell of its reader, and is not in the page cache."""
        return self._wires.get(node)

    def noticed(self, node: int) -> None:
        """A file was read through the daemon."""
        for window in self._windows.values():
            if window.noticed(node):
                self._wake()
        if node in self._wires:
            self._sprung.add(node)

    def keeps(self, chunk: int) -> bool:
        """Whether a chunk that a reader waits for is to be kept: fetched whole, with `landed` to follow."""
        pushed_s = self._kept.get(chunk)
        if pushed_s is not None:
            return self._clock() - pushed_s >= PUSHED_AGAIN_S
        return self._admit(chunk)

    def expects(self, chunk: int) -> bool:
        """Whether much of a chunk is on its way, or about to be: a reader who waits for one of its files joins in."""
        return chunk in self._expected

    def landed(self, chunk: int, payload: memoryview) -> None:
        """A chunk that is kept was fetched for a reader: push it, if that was not just done for another reader."""
        pushed_s = self._kept[chunk]
        if not self._is_over and self._clock() - pushed_s >= PUSHED_AGAIN_S:
            self._kept[chunk] = self._clock()
            pieces = self.table.of_chunk(chunk)
            if pushed_s > -math.inf:  # the kernel has taken pages back
                self.figures.pushed_again_chunks += 1
                self._in_stock[pieces.numbers] = False
            self._nursery.start_soon(self._put, pieces, payload, pieces.offsets)

    def declare(self, share: Share) -> None:
        """A reader is about to read its share of a plan."""
        self._retire()
        key = _key(share)
        window = self._windows.get(key)
        self._stocked[key] = trio.Event()
        if window is None:
            window = self._windows[key] = PlanWindow(
                share.plan, self._tripwires, self.table.page_bytes_each, self._clock
            )
            window.join(share)
            self._nursery.start_soon(self._follow, key, window)
        else:
            window.join(share)
        self._wake()

    async def ahead_of(self, share: Share) -> None:
        """Wait until the first files of a share that was declared are in stock, or HEAD_START_S have gone by.

        A reader who runs into files that are just being pushed is slower, and slows the pushing.
        """
        stocked = self._stocked.get(_key(share))
        if stocked is not None:
            with trio.move_on_after(HEAD_START_S):
                await stocked.wait()

    @property
    def windows(self) -> dict[Hashable, PlanWindow]:
        return self._windows

    @property
    def dataset_bytes(self) -> int:
        """What all files would take in the page cache."""
        return self._dataset_bytes

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    @property
    def window_bytes(self) -> int:
        return self._window_bytes

    @property
    def wire_bytes(self) -> int:
        return sum(map(len, self._wires.values()))

    # -- kept for good -----------------------------------------------------------------------------------

    def _admit(self, chunk: int) -> bool:
        """Take a chunk among the kept ones, if there is room."""
        if chunk in self._kept:
            return True
        if self._kept_bytes >= self._allotment.kept:
            return False
        charge = self.table.of_chunk(chunk).page_bytes()
        if self._kept_bytes + charge > self._allotment.kept:
            return False
        self._kept_bytes += charge
        self._kept[chunk] = -math.inf
        return True

    async def warm(self) -> None:
        """Fetch what can be kept, chunk after chunk, whenever nobody waits for anything else (policy oneshot)."""
        for chunk in range(self._snapshot.chunk_count):
            while self._fetching.borrowed_tokens:
                await self._moved.wait()
            if self._is_over:
                return
            if chunk not in self._kept and self._admit(chunk):
                pieces = self.table.of_chunk(chunk)
                async with self._fetching:
                    await self._bring(chunk, pieces)

    # -- ahead of plans ----------------------------------------------------------------------------------

    async def _follow(self, key: Hashable, window: PlanWindow) -> None:
        """Fetch span after span ahead of the readers of one plan, until all of them are through."""
        while self._windows.get(key) is window and not self._is_over:
            moved = self._moved
            await self._drop_passed(window)
            if window.is_finished:
                # What was read last may lag behind the last tripwire.
                with trio.move_on_after(FINISHED_S):
                    while self._windows.get(key) is window and window.is_finished:
                        await self._moved.wait()
                if window.is_finished:
                    break
                continue
            span = window.next_span(self._span_bytes())
            if span is None:
                self._stocked[key].set()
                await moved.wait()
            else:
                await self._bring_span(window, span, self._stocked[key])
        if self._windows.get(key) is window:
            del self._windows[key]
            self._stocked.pop(key).set()
        await self._drop(window.given_up())

    def _span_bytes(self) -> int:
        """Half of the window, which the plans share; if all can be kept there is no window, and nothing to save."""
        room = self._allotment.window or self._allotment.kept
        return max(room // 2 // max(len(self._windows), 1), 1)

    async def _bring_span(self, window: PlanWindow, span: Span, stocked: trio.Event) -> None:
        """Start to fetch all of a span that is not in stock, as memory becomes free; `stocked` is set at the end."""
        pieces = self.table.of_files(span.nodes)
        has = self._in_stock[pieces.numbers]
        self.figures.planned_bytes += pieces.page_bytes()
        self.figures.planned_hit_bytes += pieces[has].page_bytes()
        parcels = list(pieces[~has].by_chunk())
        self._expected.update(chunk for chunk, wanted in parcels if self._is_worth_whole(chunk, wanted))
        missing = {chunk for chunk, _ in parcels}
        if not missing:
            stocked.set()

        async def bring(chunk: int, pieces: Pieces, token: object) -> None:
            try:
                await self._bring(chunk, pieces)
            finally:
                self._expected.discard(chunk)
                self._fetching.release_on_behalf_of(token)
                self._wake()
                missing.discard(chunk)
                if not missing:
                    stocked.set()

        for chunk, wanted in parcels:
            if self._admit(chunk):
                charged = None
                wanted = self.table.of_chunk(chunk)
            else:
                charged = wanted.page_bytes()
                await self._room(window, charged)
                self._window_bytes += charged
                self._in_window[wanted.numbers] = True
            await self._fetching.acquire_on_behalf_of(token := object())
            self._nursery.start_soon(bring, chunk, wanted, token)

    async def _room(self, window: PlanWindow, length_bytes: int) -> None:
        """Wait until the window may take so much more; an empty one takes anything."""
        while self._window_bytes and self._window_bytes + length_bytes > self._allotment.window:
            moved = self._moved
            if not await self._drop_passed(window):
                await moved.wait()

    async def _bring(self, chunk: int, pieces: Pieces) -> None:
        """Fetch pieces of a chunk, and push them. What fails is left to those who read it."""
        try:
            payload, starts = await self._fetch(chunk, pieces)
        except DieselfsError as error:
            self.figures.failed_parcels += 1
            _log.warning("files fetched ahead of their readers: %s", error)
            return
        if chunk in self._kept:
            self._kept[chunk] = self._clock()
        await self._put(pieces, payload, starts)

    async def _fetch(self, chunk: int, pieces: Pieces) -> tuple[memoryview, npt.NDArray[np.int64]]:
        """The bytes of pieces, and where each begins in them."""
        if self._is_worth_whole(chunk, pieces):
            return await self._residency.fetch(chunk), pieces.offsets
        extents = pieces.extents()
        joined = await trio.to_thread.run_sync(
            lambda: b"".join(self._source.fetch_extents(chunk, extents)), abandon_on_cancel=True
        )
        ends = np.cumsum(pieces.lengths)
        return memoryview(joined), ends - pieces.lengths

    def _is_worth_whole(self, chunk: int, pieces: Pieces) -> bool:
        return bool(pieces.lengths.sum() >= WHOLE_SHARE * self._snapshot.chunk_payload_length(chunk))

    # -- the page cache ----------------------------------------------------------------------------------

    async def _put(self, pieces: Pieces, payload: memoryview, starts: npt.NDArray[np.int64]) -> None:
        """Put what is not in stock yet into the page cache, but for the tripwires, whose bytes stay here.

        It is done in a thread of its own: the kernel may make it wait for a reader.
        """
        is_new = ~self._in_stock[pieces.numbers]
        pieces, starts = pieces[is_new], starts[is_new]
        self._in_stock[pieces.numbers] = True
        is_wire = self._tripwires.among(pieces.nodes)
        spans = zip(starts[is_wire].tolist(), pieces.lengths[is_wire].tolist(), strict=True)
        for node, (start, length) in zip(pieces.nodes[is_wire].tolist(), spans, strict=True):
            self._wires[node] = memoryview(bytes(payload[start : start + length]))
        pushed, starts = pieces[~is_wire], starts[~is_wire]
        try:
            taken = await trio.to_thread.run_sync(
                self._pages.store, pushed, payload, starts, limiter=self._pushing
            )
        except MountError:
            self._is_over = True
            return
        self.figures.pushed_files += len(pushed)
        self.figures.pushed_bytes += taken

    async def _drop_passed(self, window: PlanWindow) -> bool:
        """Drop what the readers of a window have done with; False if that is nothing."""
        passed = window.passed()
        await self._drop(passed)
        return bool(passed)

    async def _drop(self, passed: list[npt.NDArray[np.int64]]) -> None:
        """Drop files, unless they are kept; and tripwires that are in the page cache now, so that they work again."""
        pieces = self.table.of_files(np.concatenate([np.empty(0, np.int64), *passed]))
        pieces = pieces[self._in_window[pieces.numbers]]
        sprung, self._sprung = self._sprung, set()
        nodes = np.union1d(pieces.nodes, np.fromiter(sprung, np.int64, len(sprung)))
        if not len(nodes) or self._is_over:
            return
        for node in pieces.nodes[self._tripwires.among(pieces.nodes)].tolist():
            self._wires.pop(node, None)
        try:
            await trio.to_thread.run_sync(self._pages.drop, nodes, limiter=self._pushing)
        except MountError:
            self._is_over = True
            return
        self._in_window[pieces.numbers] = False
        self._in_stock[pieces.numbers] = False
        self._window_bytes -= pieces.page_bytes()
        self.figures.dropped_files += len(pieces)
        self._wake()

    # -- moving on ---------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    def _retire(self) -> None:
        """Give up the windows of plans whose readers have gone away."""
        quiet_s = self._clock() - PLAN_QUIET_S
        for key, window in list(self._windows.items()):
            if window.quiet_since_s < quiet_s:
                del self._windows[key]
                self._stocked.pop(key).set()
                self._wake()


def _key(share: Share) -> Hashable:
    plan = share.plan
    return plan.folder, plan.seed, plan.epoch, plan.group_chunks, plan.skips
