"""What a node has in stock: files put into the page cache before they are read, ahead of plans and for good.

A file reaches the page cache in one of two ways. The chunks that are *kept* are pushed whole and stay: they are the
first that were wanted, as many as the memory holds, and none is ever given up for another. All else streams through
the *window*: only the files that plans want, fetched ahead of the readers and dropped behind them.

The memory of a chunk is let go once its files are pushed, so that a byte is held once. The kernel may take pages back
all the same; then the file is read through the daemon, and a kept chunk is pushed again.
"""

import logging
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import trio

from dieselfs.cache.warmth import Warmth
from dieselfs.errors import DieselfsError, MountError
from dieselfs.limits import FETCHES_AT_ONCE_MAX
from dieselfs.meta.snapshot import Snapshot
from dieselfs.shuffle.plan import Share
from dieselfs_client.ahead.holdings import Holdings
from dieselfs_client.ahead.parcels import Arrived, Parcel, Parcels, PieceSource
from dieselfs_client.ahead.pieces import Pieces, PieceTable
from dieselfs_client.ahead.plan_reads import PlanReads
from dieselfs_client.ahead.pushed_chunks import PushedChunks
from dieselfs_client.ahead.residency import ChunkResidency
from dieselfs_client.ahead.tripwires import Tripwires
from dieselfs_client.ahead.window import PlanWindow, Span
from dieselfs_client.foreground import Foreground
from dieselfs_client.memory import SHELF_TRANSIT_SHARE, Allotment, span_bytes

PARCELS_AT_ONCE_MAX = FETCHES_AT_ONCE_MAX // 2
"""Fetches ahead of readers; the others are left for readers who wait."""
COMMON_SPANS_AHEAD = 2
"""A plan that other nodes read as well is no further ahead of its readers, unless the memory of the job has the room:
what they have not come to yet would have to go.
"""
FINISHED_S = 10.0
"""The last files of a plan stay for so long after its readers were last heard of."""
HEAD_START_S = 2.0
"""The list of a plan is read to its end no later than this: its first files should be in stock by then."""
PLAN_QUIET_S = 120.0
"""When there is a new plan, those whose readers have not been heard of for so long are given up."""
PLAN_ACTIVE_S = 10.0
"""A reader who was heard of no longer ago is read on by; a file may be in the windows of others, too."""
PLAN_END_SHARE = 0.9
"""A plan that is read so far is given up when its reader begins with the next epoch."""
PLANS_MAX = 16
"""For one more, the plan is given up whose readers were heard of longest ago."""

Nodes = npt.NDArray[np.int64]

_log = logging.getLogger(__name__)


class Pages(Protocol):
    """Where files are put: `PageCache`. Methods block, are called from one thread at a time, and raise MountError."""

    def store(self, pieces: Pieces, payload: memoryview, starts: npt.NDArray[np.int64]) -> int: ...

    def drop(self, nodes: npt.NDArray[np.integer]) -> None: ...


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
    """That part of it which was in stock for good already."""
    failed_parcels: int = 0


@dataclass(eq=False, slots=True)
class _Following:
    """A plan that is followed. `is_ahead` is set when the files that its latest reader begins with are in stock."""

    window: PlanWindow
    is_ahead: trio.Event


class Stock:
    """Used from one trio thread. What it starts runs in `nursery`; when that is cancelled, what was pushed stays."""

    def __init__(
        self,
        snapshot: Snapshot,
        residency: ChunkResidency,
        source: PieceSource,
        pages: Pages,
        allotment: Allotment,
        nursery: trio.Nursery,
        clock: Callable[[], float] = trio.current_time,
        foreground: Foreground | None = None,
    ) -> None:
        self.figures = StockFigures()
        self.table = PieceTable(snapshot)
        self.holdings = Holdings(
            self.table, len(snapshot.column("extent_chunks")), snapshot.chunk_count, allotment
        )
        self.tripwires = Tripwires(snapshot)
        self.plan_reads = PlanReads(len(snapshot))
        self._snapshot = snapshot
        self._residency = residency
        self._parcels = Parcels(snapshot, residency, source)
        self._pages = pages
        self._allotment = allotment
        self._nursery = nursery
        self._clock = clock
        self._foreground = foreground or Foreground()
        self._is_over = False  # the mount is gone
        self._plans: dict[Hashable, _Following] = {}
        self._pushed = PushedChunks(snapshot.chunk_count, clock)  # of those that are kept
        self._expected: set[int] = set()
        self._moved = trio.Event()  # set, and made anew, when a reader moves on or memory becomes free
        self._fetching = trio.CapacityLimiter(PARCELS_AT_ONCE_MAX)
        self._pushing = trio.CapacityLimiter(1)

    # -- what readers ask --------------------------------------------------------------------------------

    def held(self, node: int) -> memoryview | None:
        """All bytes of a file that is in memory to tell of its reader, and is not in the page cache."""
        return self.tripwires.held(node)

    def noticed(self, node: int) -> None:
        """A file was read through the daemon."""
        self.tripwires.spring(node)
        self.plan_reads.asked(node)
        # Several plans may have the file in their windows. It was read by the one that expected it soonest.
        since_s = self._clock() - PLAN_ACTIVE_S
        found = [
            (window.quiet_since_s < since_s, advance, index)
            for index, window in enumerate(self.windows)
            if (advance := window.advance(node)) is not None
        ]
        if found:
            self.windows[min(found)[2]].noticed(node)
        elif not any(window.is_overtaken(node) for window in self.windows):
            return
        for window in self.windows:
            for reader, nodes in window.newly_read():
                self.plan_reads.passed(reader, nodes)
        self._wake()

    def is_outrun(self, node: int) -> bool:
        """Whether the reader of a tripwire would come to files next that are still on their way."""
        return self.is_busy and any(window.is_outrun(node) for window in self.windows)

    @property
    def moved(self) -> trio.Event:
        """Set, and made anew, when more is in stock, or a reader moves on."""
        return self._moved

    def keeps(self, chunk: int) -> bool:
        """Whether a chunk that a reader waits for is to be fetched whole at once, because it is kept."""
        return self._pushed.is_due(chunk) and self.holdings.keep(chunk)

    def expects(self, chunk: int) -> bool:
        """Whether much of a chunk is on its way, or about to be: a reader who waits for one of its files joins in."""
        return chunk in self._expected

    def landed(self, chunk: int, payload: memoryview) -> None:
        """A chunk was fetched for a reader: push it if it is kept, and if that was not just done for another reader."""
        if self._is_over or not self.holdings.is_kept(chunk) or self._pushed.was_just_pushed(chunk):
            return
        pieces = self.table.of_chunk(chunk)
        if self._pushed.push(chunk):
            self.figures.pushed_again_chunks += 1
            self.holdings.lose(pieces)
        self._nursery.start_soon(self._put, pieces, payload, pieces.offsets)

    def restore(self, chunks: Iterable[int]) -> None:
        """These are in the page cache since an earlier daemon kept them; but the bytes of tripwires went with it."""
        for chunk in chunks:
            if self.holdings.keep(chunk):
                self._pushed.restore(chunk)
                pieces = self.table.of_chunk(chunk)
                self.holdings.put(pieces[~self.tripwires.among(pieces.nodes)])

    def declare(self, share: Share, position: int = 0) -> None:
        """A reader is about to read its share of a plan, of which it may have read all before `position`."""
        self._retire(share)
        key = _key(share)
        following = self._plans.get(key)
        if following is None:
            window = PlanWindow(share.plan, self.tripwires, self.table.page_bytes_each, self._clock)
            following = self._plans[key] = _Following(window, trio.Event())
            self._nursery.start_soon(self._follow, following)
        following.is_ahead.set()  # whoever waits for it waits for the new one from now on
        following.is_ahead = trio.Event()
        following.window.join(share, position, self.plan_reads.begin())
        self._wake()

    async def ahead_of(self, share: Share) -> None:
        """Wait until the first files of a share that was declared are in stock, or HEAD_START_S have gone by.

        A reader who runs into files that are just being pushed is slower, and slows the pushing.
        """
        following = self._plans.get(_key(share))
        if following is not None:
            with trio.move_on_after(HEAD_START_S):
                while not following.is_ahead.is_set():
                    await following.is_ahead.wait()

    # -- what it tells -----------------------------------------------------------------------------------

    @property
    def windows(self) -> list[PlanWindow]:
        return [plan.window for plan in self._plans.values()]

    @property
    def is_busy(self) -> bool:
        """Whether anything is being fetched, pushed or dropped."""
        return self._fetching.borrowed_tokens + self._pushing.borrowed_tokens > 0

    # -- for good, before anybody asks: `warming.Warmable` --------------------------------------------------

    def lacks(self, chunk: int) -> bool:
        """Whether a chunk is not kept in the page cache, and not known to be damaged."""
        return not self._pushed.is_here(chunk) and chunk not in self._residency.damaged

    def has_room(self, chunk: int) -> bool:
        """Whether a chunk would be kept."""
        return not self._is_over and self.holdings.can_keep(chunk)

    async def bring(self, chunk: int, lane: trio.CapacityLimiter) -> None:
        """Fetch a chunk and push it, to be kept; for the `lane` see `Flights.wait`. Raises what fetching raises."""
        if not self._is_over and self.holdings.keep(chunk):
            payload = await self._residency.fetch(chunk, lane)
            pieces = self.table.of_chunk(chunk)
            self._pushed.push(chunk)
            await self._put(pieces, payload, pieces.offsets)

    def warmth(self) -> Warmth:
        """How much is kept in the page cache, of what can be."""
        page_bytes = self.table.chunk_page_bytes()
        return self._pushed.warmth(page_bytes, self._allotment.kept, self._residency.damaged)

    # -- ahead of plans ----------------------------------------------------------------------------------

    async def _follow(self, plan: _Following) -> None:
        """Fetch span after span ahead of the readers of one plan, until all of them are through."""
        window = plan.window
        while self._is_followed(plan):
            moved = self._moved
            if passed := window.passed():  # what comes next does not wait for it
                self._nursery.start_soon(self._drop, passed)
            if window.is_finished:
                # What was read last may lag behind the last tripwire; and a reader may begin anew.
                with trio.move_on_after(FINISHED_S):
                    while self._is_followed(plan) and window.is_finished:
                        await self._moved.wait()
                if window.is_finished:
                    break
                continue
            is_enough = self._has_its_part(window) or self._is_ahead_of_others(window)
            span = None if is_enough else await self._next_span(window)
            if span is None:
                plan.is_ahead.set()
                await moved.wait()
            else:
                await self._bring_span(plan, span)
        self._forget(plan)
        await self._drop(window.given_up())

    def _is_followed(self, plan: _Following) -> bool:
        return not self._is_over and plan in self._plans.values()

    def _forget(self, plan: _Following) -> None:
        self._plans = {key: other for key, other in self._plans.items() if other is not plan}
        plan.is_ahead.set()
        self._wake()

    def _retire(self, new: Share) -> None:
        """Give up plans whose readers have gone away, or go on to the next epoch with the new one."""
        quiet_s = self._clock() - PLAN_QUIET_S
        for plan in list(self._plans.values()):
            window = plan.window
            is_at_end = window.position >= PLAN_END_SHARE * len(window.plan)
            if window.quiet_since_s < quiet_s or (is_at_end and window.plan.epoch < new.plan.epoch):
                self._forget(plan)
        if len(self._plans) >= PLANS_MAX and _key(new) not in self._plans:
            self._forget(min(self._plans.values(), key=lambda plan: plan.window.quiet_since_s))

    async def _next_span(self, window: PlanWindow) -> Span | None:
        """What to fetch next; groups are worked out one by one, and others have their turn in between."""
        while window.gather(self._together_bytes(window)):
            await trio.lowlevel.checkpoint()
        return window.next_span(self._span_bytes())

    def _together_bytes(self, window: PlanWindow) -> int:
        """How much several groups may have that are fetched together."""
        return span_bytes(self._allotment, len(self._plans)) if window.is_common else 0

    def _span_bytes(self) -> int:
        """Half of the window, which the plans share; if all can be kept there is no window, and nothing to save."""
        room = self._allotment.window or self._allotment.kept
        return max(room // 2 // max(len(self._plans), 1), 1)

    def _has_its_part(self, window: PlanWindow) -> bool:
        """Whether a plan holds as much of the window as it may beside others."""
        plans = len(self._plans)
        return plans > 1 and window.held_bytes() * plans >= self._allotment.window > 0

    def _is_ahead_of_others(self, window: PlanWindow) -> bool:
        """Whether a plan that other nodes read as well is far enough ahead. As each of them holds its share of a group,
        what this one holds says how many groups pass through the memory of all. And what is fetched together is begun
        when there is room for all of it: little by little, it would be many requests again.
        """
        if not window.is_common or window.spans_ahead() < COMMON_SPANS_AHEAD:
            return False
        if not self.holdings.has_room(self._together_bytes(window)):
            return True
        return window.held_bytes() >= self._allotment.shelf * SHELF_TRANSIT_SHARE / 2

    async def _bring_span(self, plan: _Following, span: Span) -> None:
        """Start to fetch all of a span that is not in stock, as memory becomes free."""
        is_ahead = plan.is_ahead
        pieces = self.table.of_files(span.nodes)
        self.figures.planned_bytes += pieces.page_bytes()
        self.figures.planned_hit_bytes += self.holdings.hit_bytes(pieces)
        wanted = self.holdings.hold(pieces)
        self.tripwires.add(np.intersect1d(span.extra_tripwires, wanted.nodes))
        waiting = dict(wanted.by_chunk())
        self._expected.update(
            chunk for chunk, of_chunk in waiting.items() if self._parcels.is_whole(chunk, of_chunk)
        )
        underway, is_common = set(waiting), plan.window.is_common

        def done(chunks: Iterable[int]) -> None:
            self._expected.difference_update(chunks)
            underway.difference_update(chunks)
            if not underway:
                is_ahead.set()
                plan.window.stocked(span)

        async def bring(parcel: Parcel, token: object) -> None:
            async def arrived(came: Arrived) -> None:
                await self._arrived(parcel, came)
                done(came)

            try:
                with self._foreground.waiting():
                    if any(self.holdings.is_wanted(pieces).any() for pieces in parcel.values()):
                        await self._parcels.fetch(parcel, is_common, arrived)
            finally:
                self._fetching.release_on_behalf_of(token)
                done(parcel)
                self._wake()

        while waiting:
            before = set(waiting)
            due = await self._due(plan, span, waiting)
            done(before.difference(due, waiting))
            for parcel in self._parcels.packed(due):
                token = object()
                await self._fetching.acquire_on_behalf_of(token)
                self._nursery.start_soon(bring, parcel, token)
        done(())

    async def _due(self, plan: _Following, span: Span, waiting: Parcel) -> Parcel:
        """Wait until the window may take the first of some pieces, and take out of them as many as it may now, counted;
        or all, if they are not wanted any more.
        """
        window, due = plan.window, Parcel()
        while window.holds(span) and self._is_followed(plan):
            for chunk, pieces in list(waiting.items()):
                if self.holdings.keep(chunk):
                    due[chunk] = self.table.of_chunk(chunk)
                elif not self.holdings.has_room(pieces.page_bytes()):
                    break
                elif len(charged := self.holdings.charge(pieces)):
                    due[chunk] = charged
                del waiting[chunk]
            if due or not waiting:
                return due
            moved = self._moved
            if not await self._drop(window.passed()) and not await self._take_back(window):
                await moved.wait()
        waiting.clear()
        return due

    async def _take_back(self, needy: PlanWindow) -> bool:
        """Take what was recalled, or what is furthest ahead of a plan that has its part; False if there is none."""
        for window in self.windows:
            nodes = window.forgo()
            if not len(nodes) and window is not needy and self._has_its_part(window):
                nodes = window.retreat()
            if len(nodes):
                return await self._drop([nodes])
        return False

    # -- what arrives ------------------------------------------------------------------------------------

    async def _arrived(self, parcel: Parcel, came: Arrived) -> None:
        """Push pieces of chunks. What failed is left to those who read it."""
        for chunk, content in came.items():
            if isinstance(content, DieselfsError):
                self.figures.failed_parcels += 1
                _log.warning("files fetched ahead of their readers: %s", content)
            elif self.holdings.is_kept(chunk):
                self._pushed.push(chunk)
        for pieces, (payload, starts) in self._parcels.joined(parcel, came):
            await self._put(pieces, payload, starts)

    async def _put(self, pieces: Pieces, payload: memoryview, starts: npt.NDArray[np.int64]) -> None:
        """Put what is wanted and not in stock yet into the page cache, but for the tripwires, whose bytes stay here.

        It is done in a thread of its own: the kernel may make it wait for a reader.
        """
        is_new = self.holdings.put(pieces)
        pieces, starts = pieces[is_new], starts[is_new]
        is_wire = self.tripwires.among(pieces.nodes) & (pieces.places == 0)
        self.tripwires.hold(pieces[is_wire], payload, starts[is_wire])
        pieces, starts = pieces[~is_wire], starts[~is_wire]
        try:
            taken = await trio.to_thread.run_sync(
                self._pages.store, pieces, payload, starts, limiter=self._pushing
            )
        except MountError:
            self._is_over = True
            return
        self.figures.pushed_files += len(pieces)
        self.figures.pushed_bytes += taken

    async def _drop(self, passed: Iterable[Nodes]) -> bool:
        """Drop files that a plan has done with, unless others need them; False if it did not have any.

        Tripwires that are in the page cache by now are dropped as well, so that they work again.
        """
        nodes = np.concatenate([np.empty(0, np.int64), *passed])
        pieces = self.holdings.release(self.table.of_files(nodes))
        self.tripwires.let_go(pieces.nodes)
        dropped = np.union1d(pieces.nodes, self.tripwires.sprung())
        if len(dropped) and not self._is_over:
            try:
                await trio.to_thread.run_sync(self._pages.drop, dropped, limiter=self._pushing)
            except MountError:
                self._is_over = True
            self.figures.dropped_files += len(pieces)
        if len(nodes):
            self._wake()
        return bool(len(nodes))

    def _wake(self) -> None:
        self._moved.set()
        self._moved = trio.Event()


def _key(share: Share) -> Hashable:
    plan = share.plan
    return plan.folder, plan.seed, plan.epoch, plan.group_chunks, plan.skips
