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
from dieselfs_client.window import PlanWindow, Span

WHOLE_SHARE = 0.75
"""A chunk of whose payload this much is wanted is fetched whole: one checksum instead of many."""
PARCELS_AT_ONCE_MAX = FETCHES_AT_ONCE_MAX // 2
"""Fetches ahead of readers; the others are left for readers who wait."""
PUSHED_AGAIN_S = 10.0
"""A kept chunk is pushed again no sooner: pages that the kernel takes back at once are not worth it."""
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
        self._dataset_bytes = self.table.total_page_bytes()
        self._kept: dict[int, float] = {}  # chunks, and when they were pushed
        self._kept_bytes = 0
        self._window_bytes = 0
        extents = len(snapshot.column("extent_chunks"))
        self._in_pages = np.zeros(extents, np.bool_)
        self._in_window = np.zeros(extents, np.bool_)
        self._wires: dict[int, memoryview] = {}
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
            self.figures.pushed_again_chunks += pushed_s > -math.inf
            self._kept[chunk] = self._clock()
            pieces = self.table.of_chunk(chunk)
            self._nursery.start_soon(self._push, pieces, payload, pieces.offsets)

    def declare(self, share: Share) -> None:
        """A reader is about to read its share of a plan."""
        self._retire()
        plan = share.plan
        key = (plan.seed, plan.epoch, plan.group_chunks, plan.skips)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = PlanWindow(plan, self.table.page_bytes_each, self._clock)
            window.join(share)
            self._nursery.start_soon(self._follow, key, window)
        else:
            window.join(share)
        self._wake()

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
            await self._give_back(window.passed())
            if window.is_finished:
                break
            span = window.next_span(self._span_bytes())
            if span is None:
                await moved.wait()
                continue
            await self._bring_span(window, span)
        if self._windows.get(key) is window:
            del self._windows[key]
        await self._give_back(window.given_up())

    def _span_bytes(self) -> int:
        """Half of the window, which the plans share; if all can be kept there is no window, and nothing to save."""
        room = self._allotment.window or self._allotment.kept
        return max(room // 2 // max(len(self._windows), 1), 1)

    async def _bring_span(self, window: PlanWindow, span: Span) -> None:
        """Start to fetch all of a span that is not in stock, as memory becomes free."""
        pieces = self.table.of_files(span.nodes)
        tripwires = span.tripwires
        has = self._in_pages[pieces.numbers]
        self.figures.planned_bytes += pieces.page_bytes()
        self.figures.planned_hit_bytes += pieces[has].page_bytes()
        parcels = list(pieces[~has].by_chunk())
        self._expected.update(chunk for chunk, wanted in parcels if self._is_worth_whole(chunk, wanted))
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
            self._nursery.start_soon(self._bring_parcel, chunk, wanted, tripwires, token)

    async def _room(self, window: PlanWindow, length_bytes: int) -> None:
        """Wait until the window may take so much more; an empty one takes anything."""
        while self._window_bytes and self._window_bytes + length_bytes > self._allotment.window:
            moved = self._moved
            passed = window.passed()
            if passed:
                await self._give_back(passed)
            else:
                await moved.wait()

    async def _bring_parcel(
        self, chunk: int, pieces: Pieces, tripwires: npt.NDArray[np.int64], token: object
    ) -> None:
        try:
            await self._bring(chunk, pieces, tripwires)
        finally:
            self._expected.discard(chunk)
            self._fetching.release_on_behalf_of(token)
            self._wake()

    async def _bring(
        self, chunk: int, pieces: Pieces, tripwires: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Fetch pieces of a chunk, and push them. What fails is left to those who read it."""
        try:
            payload, starts = await self._fetch(chunk, pieces)
        except DieselfsError as error:
            self.figures.failed_parcels += 1
            _log.warning("files fetched ahead of their readers: %s", error)
            return
        if tripwires is not None and len(tripwires):
            is_wire = np.isin(pieces.nodes, tripwires) & (pieces.lengths == pieces.sizes)
            for node, start, length in zip(
                pieces.nodes[is_wire].tolist(),
                starts[is_wire].tolist(),
                pieces.lengths[is_wire].tolist(),
                strict=True,
            ):
                self._wires[node] = memoryview(bytes(payload[start : start + length]))
            pieces, starts = pieces[~is_wire], starts[~is_wire]
        if chunk in self._kept:
            self._kept[chunk] = self._clock()
        await self._push(pieces, payload, starts)

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

    async def _push(self, pieces: Pieces, payload: memoryview, starts: npt.NDArray[np.int64]) -> None:
        """Put pieces into the page cache, from a thread of its own: the kernel may make it wait for a reader."""
        try:
            taken = await trio.to_thread.run_sync(
                self._pages.store, pieces, payload, starts, limiter=self._pushing
            )
        except MountError:
            self._is_over = True
            return
        self._in_pages[pieces.numbers] = True
        self.figures.pushed_files += len(pieces)
        self.figures.pushed_bytes += taken

    async def _give_back(self, passed: list[npt.NDArray[np.int64]]) -> None:
        """Drop files that readers have done with, unless they are kept."""
        for nodes in passed:
            for node in nodes[np.isin(nodes, np.fromiter(self._wires, np.int64, len(self._wires)))].tolist():
                del self._wires[node]
            pieces = self.table.of_files(nodes)
            pieces = pieces[self._in_window[pieces.numbers]]
            if not len(pieces) or self._is_over:
                continue
            try:
                await trio.to_thread.run_sync(
                    self._pages.drop, np.unique(pieces.nodes), limiter=self._pushing
                )
            except MountError:
                self._is_over = True
                return
            self._in_window[pieces.numbers] = False
            self._in_pages[pieces.numbers] = False
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
                self._wake()
