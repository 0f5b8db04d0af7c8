"""The prefetcher of a node: stores files in the page cache before they are read.

A file reaches the page cache in one of two ways. *Pinned* chunks are pushed whole and stay: the first chunks that were
needed, as many as fit. The files of other chunks go through the *window*: only those that plans need, fetched ahead of
the readers and dropped behind them. Of orders by importance, important files stay (`KeptFiles`).

The memory of a chunk is released once its files are pushed, so each byte is held once. The kernel may reclaim pages:
some are looked at when a plan comes to them, and when a file that was stored is read through the daemon. What is gone
is fetched again.
"""

import logging
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import trio

from dieselfs.arrays import Numbers, among, distinct
from dieselfs.errors import DieselfsError, MountError
from dieselfs.limits import FETCHES_AT_ONCE_MAX
from dieselfs.prefetch.extent_table import Extents, ExtentTable, Pages
from dieselfs.prefetch.window import PlanWindow, Span
from dieselfs.shuffle.plan import Share
from dieselfs.shuffle.policies import IMPORTANCE
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import Source
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import LATENCY_BOUNDS_S, Registry
from dieselfs.telemetry.stalls import METER
from dieselfs_client.memory.budget import NODE_CACHE_EVICTABLE_SHARE, WINDOW_BYTES, Allotment, span_bytes
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.memory.trio_cache import Foreground
from dieselfs_client.prefetch.batches import Arrived, Batch, FetchBatches
from dieselfs_client.prefetch.budget import CHUNKS_AT_ONCE, LOOK_AGAIN_S, PrefetchBudget, sampled, spread
from dieselfs_client.prefetch.kept_files import KeptFiles
from dieselfs_client.prefetch.lending import Lending
from dieselfs_client.prefetch.runs import Runs
from dieselfs_client.prefetch.tripwires import HitRate, Tripwires

BATCHES_AT_ONCE_MAX = FETCHES_AT_ONCE_MAX // 2
"""Limit of prefetches in flight; the rest of FETCHES_AT_ONCE_MAX is for waiting readers."""
COMMON_SPANS_AHEAD = 2
"""A shared plan is prefetched no further than this, unless the memory of the job has room: chunks that other nodes have
not read yet would be evicted.
"""
FINISHED_S = 10.0
"""The last files of a plan stay for this time after the last sign of its readers."""
HEAD_START_S = 2.0
"""The end of the list of a plan can be read after this time at most, or when the first files are stored."""
PLAN_QUIET_S = 120.0
"""A new plan ends plans whose readers gave no sign for this time."""
PLAN_ACTIVE_S = 10.0
"""A reader is active for this time after its last sign; a file may be in the windows of several."""
PLAN_END_SHARE = 0.9
"""A plan of which this share has been read ends when its reader begins the next epoch."""
PLANS_MAX = 16
"""Limit of plans; one more ends the plan whose readers were silent the longest."""


_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Following:
    """A plan in progress. `is_ahead` is set when the first files of its latest reader are stored."""

    window: PlanWindow
    is_ahead: trio.Event


class Prefetcher:
    """Used from one trio thread. Its tasks run in `nursery`; pushed files stay when that is cancelled."""

    def __init__(
        self,
        snapshot: Snapshot,
        chunk_cache: ChunkCache,
        source: Source,
        pages: Pages,
        allotment: Allotment,
        nursery: trio.Nursery,
        clock: Callable[[], float] = trio.current_time,
        foreground: Foreground | None = None,
        metrics: Registry | None = None,
        workers: int = 1,
    ) -> None:
        """`workers`: of the mount; as many chunks are pushed at once."""
        self.metrics = metrics = metrics or Registry()
        self._pushed_files = metrics.counter("prefetch.pushed_files", "Files put into the page cache.")
        self._pushed_bytes = metrics.declare(catalogue.PREFETCH_PUSHED_BYTES)
        self._push_s = metrics.histogram(
            "prefetch.push_s", "Time of a push, with its wait.", LATENCY_BOUNDS_S
        )
        self._dropped_files = metrics.counter("prefetch.dropped_files", "Files dropped behind their readers.")
        self._pushed_again = metrics.counter("prefetch.pushed_again_chunks", "Pinned chunks pushed again.")
        self.planned = metrics.counter("prefetch.planned_bytes", "Pages that plans wanted.")
        self.planned_hits = metrics.counter("prefetch.planned_hit_bytes", "Planned and pinned pages.")
        self._reclaimed = metrics.declare(catalogue.PREFETCH_RECLAIMED_CHUNKS)
        self._failed = metrics.counter("prefetch.failed_chunks", "Chunks whose prefetch failed.")
        self.table = ExtentTable(snapshot)
        self.budget = PrefetchBudget(self.table, allotment, clock, self._lend_window)
        self.tripwires = Tripwires(snapshot)
        self.kept = KeptFiles(self.table, self.budget, self.tripwires, allotment)
        self._hit_rate = HitRate(snapshot.column("sizes"), metrics)
        self._chunk_cache = chunk_cache
        self._batches = FetchBatches(snapshot, chunk_cache, source)
        self._pages = pages
        self._allotment = allotment
        self._nursery = nursery
        self._is_preparing = False
        self._clock = clock
        self._foreground = foreground or Foreground()
        self._lending = Lending(chunk_cache, snapshot.chunk_payload_length, allotment.pinned, nursery, clock)
        self.runs = Runs(
            self.table,
            self.budget,
            chunk_cache,
            nursery,
            self._put,
            self._drop_parts,
            self.note_passed,
            allotment.window,
        )
        self._is_over = False  # the mount has ended
        self._looked_s, self._looks = -np.inf, 0
        self._plans: dict[Hashable, _Following] = {}
        self._expected: set[int] = set()
        self.used = trio.Event()
        """Set once a reader has asked the daemon for a file, or a plan was declared."""
        self.moved = trio.Event()
        """Set and replaced when files were stored, a reader advances, or memory becomes free."""
        self._fetching = trio.CapacityLimiter(max(BATCHES_AT_ONCE_MAX, workers))
        self.pushing = trio.CapacityLimiter(workers)
        """Held while the page cache is used."""
        self._lend_window()

    # -- for readers -------------------------------------------------------------------------------------

    def note_read(self, node: int) -> None:
        """Note that a reader asks for a file."""
        self.used.set()
        self._lending.note_read()
        self.tripwires.spring(node)
        self._hit_rate.requested(node)
        if self._plans and self.budget.has_first(node) and not self.tripwires.is_set(node):
            self._suspect(node)
        # Several plans may have the file in their windows: active ones first, then the smallest advance.
        since_s = self._clock() - PLAN_ACTIVE_S
        found = [
            (window.quiet_since_s < since_s, advance, index)
            for index, window in enumerate(self.windows)
            if (advance := window.advance(node)) is not None
        ]
        if found:
            self.windows[min(found)[2]].note_read(node)
        elif not any(window.is_overtaken(node) for window in self.windows):
            return
        for window in self.windows:
            for reader, nodes in window.newly_read():
                self._hit_rate.passed(reader, nodes)
        self._wake()

    def note_passed(self, chunk: int) -> None:
        """Note that the kernel has all bytes of a chunk: a sequential reader has it behind it, or it is pushed whole.
        The next chunks take its place in memory, which saves page faults of new memory.
        """
        if chunk not in self._lending and not self.runs.is_coming(chunk):
            self._chunk_cache.policy.drop(chunk)

    def note_read_ahead(self, node: int) -> None:
        """Note that the kernel asks for a file for which no reader asks yet."""
        self.tripwires.spring(node)

    def held(self, node: int) -> memoryview | None:
        """All bytes of a file, if it is a tripwire that was fetched."""
        return self.tripwires.held(node)

    def is_starved(self, node: int) -> bool:
        """Whether the next files of the reader of this tripwire are in flight."""
        return self.is_busy and any(window.is_starved(node) for window in self.windows)

    def keeps(self, chunk: int) -> bool:
        """Whether to fetch a chunk whole for a waiting reader, because it is pinned. One that was pushed before has
        been reclaimed, so it then stays in memory.
        """
        if not self.budget.pin(chunk):
            return False
        is_due = self.budget.is_due(chunk)
        if is_due and self.budget.was_pushed(chunk):
            self._lending.lend(chunk)
        return is_due or chunk in self._lending

    def expects(self, chunk: int) -> bool:
        """Whether a chunk is in flight or will be soon, so that a reader of one of its files waits for it."""
        return chunk in self._expected or self.runs.is_listed(chunk)

    def stays(self, chunk: int) -> bool:
        """Whether a chunk will stay in memory, because all chunks of the dataset will."""
        return self.budget.will_stay(chunk)

    def note_fetched(self, chunk: int, payload: memoryview) -> None:
        """Push a chunk that was fetched for a reader, if it is pinned, and was not just pushed for another reader."""
        if self._is_over or not self.budget.is_pinned(chunk) or self.budget.was_just_pushed(chunk):
            return
        extents = self.table.of_chunk(chunk)
        if self.budget.push(chunk):
            self._pushed_again.value += 1
            self.budget.lose(extents)
        self._nursery.start_soon(self._put, extents, payload, extents.offsets)

    def restore(self, chunks: Iterable[int]) -> None:
        """Pin chunks that an earlier daemon pinned and pushed. The bytes of their tripwires are lost."""
        for chunk in chunks:
            if self.budget.pin(chunk):
                self.budget.restore(chunk)
                extents = self.table.of_chunk(chunk)
                self.budget.put(extents[~self.tripwires.among(extents.nodes)])

    def declare(self, share: Share, position: int = 0) -> None:
        """Prefetch for a reader that is about to read its share of a plan, from `position` on."""
        self.used.set()
        self._retire(share)
        key = share.plan.spec
        if key.policy == IMPORTANCE:
            self.begin_keeping()
        following = self._plans.get(key)
        if following is None:
            ahead_bytes = min(self._room_bytes, WINDOW_BYTES) // 2
            window = PlanWindow(share.plan, self.tripwires, self.table.page_bytes, self._clock, ahead_bytes)
            following = self._plans[key] = _Following(window, trio.Event())
            self._lend_window()
            self._nursery.start_soon(self._follow, following)
        following.is_ahead.set()  # its waiters now wait for the new event
        following.is_ahead = trio.Event()
        following.window.join(share, position, self._hit_rate.begin())
        self._wake()

    def expect_plan(self) -> None:
        """A plan is being computed: prepare for it meanwhile. The end of the daemon does not wait for the table."""
        self._nursery.start_soon(trio.to_thread.run_sync, self._pages.prepare)
        if not self._is_preparing:
            self._is_preparing = True
            prepare = partial(trio.to_thread.run_sync, self.table.prepare, abandon_on_cancel=True)
            self._nursery.start_soon(prepare)

    def begin_keeping(self) -> None:
        """Make room for important files."""
        if len(dropped := self.kept.begin()):
            self._nursery.start_soon(self._drop, [], dropped)

    async def ahead_of(self, share: Share) -> None:
        """Wait until the first files of a declared share are stored, HEAD_START_S at most.

        A reader of files that are being pushed is slow, and slows the push.
        """
        following = self._plans.get(share.plan.spec)
        if following is not None:
            with trio.move_on_after(HEAD_START_S):
                while not following.is_ahead.is_set():
                    await following.is_ahead.wait()

    def read_ahead(self, numbers: list[int]) -> None:
        """Push the chunks of these extents, which a reader of parts of files needs next, in their order."""
        self._nursery.start_soon(self._read_ahead, numbers)

    async def _read_ahead(self, numbers: list[int]) -> None:
        """Those that are pinned may have been reclaimed since they were pushed. Of those that have left the window, an
        image may still have the pages that were read.
        """
        chunks = [chunk for chunk, _ in self.table.files_at(numbers)]
        pushed = [self.table.of_chunk(chunk) for chunk in {*chunks} if self.budget.is_pushed(chunk)]
        if pushed:
            await self._look_at(Extents.joined(pushed))
        left = {number for chunk, number in zip(chunks, numbers, strict=True) if self.runs.has_left(chunk)}
        there = await self._read_before(left) if left else left
        self.runs.read_ahead([number for number in numbers if number not in there])

    async def _read_before(self, numbers: set[int]) -> set[int]:
        """Which of these extents programs find in the page cache of the file that they read."""
        chunks = {chunk for chunk, _ in self.table.files_at([*numbers])}
        extents = Extents.joined([*map(self.table.of_chunk, chunks)])
        extents = extents[among(extents.numbers, [*numbers])]
        with suppress(MountError):  # the next push notes that the mount has ended
            is_gone = await trio.to_thread.run_sync(
                self._pages.reclaimed, extents, True, limiter=self.pushing
            )
            return {*extents.numbers[~is_gone].tolist()}
        return set()

    # -- state -------------------------------------------------------------------------------------------

    @property
    def windows(self) -> list[PlanWindow]:
        return [plan.window for plan in self._plans.values()]

    @property
    def is_starting(self) -> bool:
        """Whether the first files of a plan are on their way."""
        return any(not plan.is_ahead.is_set() for plan in self._plans.values())

    @property
    def is_busy(self) -> bool:
        """Whether anything is being fetched, pushed or dropped."""
        return self._fetching.borrowed_tokens + self.pushing.borrowed_tokens > 0

    # -- warming: `warming.Warmable` -----------------------------------------------------------------------

    def lacks(self, chunk: int) -> bool:
        return not self.budget.is_pushed(chunk) and chunk not in self._chunk_cache.damaged

    def has_room(self, chunk: int) -> bool:
        return not self._is_over and self.budget.can_pin(chunk)

    async def bring(self, chunk: int, limiter: trio.CapacityLimiter) -> None:
        if not self._is_over and self.budget.pin(chunk):
            payload = await self._chunk_cache.fetch(chunk, limiter)
            extents = self.table.of_chunk(chunk)
            self.budget.push(chunk)
            await self._put(extents, payload, extents.offsets)

    # -- ahead of plans ----------------------------------------------------------------------------------

    async def _follow(self, plan: _Following) -> None:
        """Fetch spans ahead of the readers of one plan, until all of them have finished."""
        window = plan.window
        await self._drop([])  # the tripwires that were read without a plan
        while self._is_followed(plan):
            moved = self.moved
            if passed := window.passed():  # the next span does not wait for the drop
                self._nursery.start_soon(self._drop, passed, self._passed(window, passed))
            if window.is_finished:
                plan.is_ahead.set()  # it was declared at its end
                # Reads may lag behind the last tripwire, and a reader may begin again.
                with trio.move_on_after(FINISHED_S):
                    while self._is_followed(plan) and window.is_finished:
                        await self.moved.wait()
                if window.is_finished:
                    break
                continue
            is_enough = self._has_its_part(window) or self._is_ahead_of_others(window)
            # Other tasks run between the computations of two groups.
            while not is_enough and window.gather(self._together_bytes(window)):
                await trio.lowlevel.checkpoint()
            span = None if is_enough else window.next_span(self._span_bytes())
            if span is None:
                plan.is_ahead.set()
                await moved.wait()
            else:
                await self._bring_span(plan, span)
        self._forget(plan)
        rest = window.close()
        await self._drop(rest, self._passed(window, rest) if window.is_finished else None)

    def _passed(self, window: PlanWindow, files: list[Numbers]) -> Extents | None:
        """Keep important ones of files that were read; returns extents to drop for them."""
        if window.plan.spec.policy != IMPORTANCE or not files:
            return None
        return self.kept.passed(np.concatenate(files))

    def _is_followed(self, plan: _Following) -> bool:
        return not self._is_over and plan in self._plans.values()

    def _forget(self, plan: _Following) -> None:
        self._plans = {key: other for key, other in self._plans.items() if other is not plan}
        plan.is_ahead.set()
        self._lend_window()
        self._wake()

    def _lend_window(self) -> None:
        """Let the chunk cache use what is free of the window while there is no plan."""
        free_bytes = self._allotment.window - self.budget.window_bytes
        self._lending.lend_window(0 if self._plans else max(free_bytes, 0))

    def _retire(self, new: Share) -> None:
        """End plans whose readers have ended, or begin the next epoch with the new plan."""
        quiet_s = self._clock() - PLAN_QUIET_S
        for plan in list(self._plans.values()):
            window = plan.window
            is_at_end = window.position >= PLAN_END_SHARE * len(window.plan)
            if window.quiet_since_s < quiet_s or (is_at_end and window.plan.spec.epoch < new.plan.spec.epoch):
                self._forget(plan)
        if len(self._plans) >= PLANS_MAX and new.plan.spec not in self._plans:
            self._forget(min(self._plans.values(), key=lambda plan: plan.window.quiet_since_s))

    def _together_bytes(self, window: PlanWindow) -> int:
        """The most bytes of several groups that are fetched together."""
        return span_bytes(self._allotment, len(self._plans)) if window.is_shared_plan else 0

    @property
    def _room_bytes(self) -> int:
        """The window; if the whole dataset is pinned, there is none, and its memory is the room."""
        return self._allotment.window or self._allotment.pinned

    def _span_bytes(self) -> int:
        """Half of a plan's part of the room."""
        return max(self._room_bytes // 2 // max(len(self._plans), 1), 1)

    def _has_its_part(self, window: PlanWindow) -> bool:
        """Whether a plan holds its part of the window, of which each of several plans has the same."""
        plans = len(self._plans)
        return plans > 1 and window.held_bytes() * plans >= self._allotment.window > 0

    def _is_ahead_of_others(self, window: PlanWindow) -> bool:
        """Whether a shared plan is far enough ahead of other nodes. Each node holds its share of a group, so the bytes
        on this node show how many groups pass through the memory of the job. Groups that are fetched together wait
        until there is room for all of them: in parts, they would take many requests.
        """
        if not window.is_shared_plan or window.spans_ahead() < COMMON_SPANS_AHEAD:
            return False
        if not self.budget.has_room(self._together_bytes(window)):
            return True
        return window.held_bytes() >= self._allotment.node_cache * NODE_CACHE_EVICTABLE_SHARE / 2

    async def _bring_span(self, plan: _Following, span: Span) -> None:
        """Start to fetch the missing files of a span, as memory becomes free."""
        is_ahead = plan.is_ahead
        extents = self.table.of_files(span.nodes)
        wanted = self.budget.hold(extents)
        if await self._look_at(extents):
            wanted = self.budget.missing(extents)
        self.planned.value += extents.page_bytes()
        self.planned_hits.value += self.budget.hit_bytes(extents)
        self.tripwires.add(span.extra_tripwires[among(span.extra_tripwires, wanted.nodes)])
        waiting = dict(wanted.by_chunk())
        self._expected.update(
            chunk for chunk, of_chunk in waiting.items() if self._batches.is_whole(chunk, of_chunk)
        )
        underway = set(waiting)

        def done(chunks: Iterable[int]) -> None:
            self._expected.difference_update(chunks)
            underway.difference_update(chunks)
            if not underway:
                is_ahead.set()
                plan.window.complete(span)

        async def bring(batch: Batch, token: object) -> None:
            async def arrived(came: Arrived) -> None:
                await self._arrived(batch, came)
                done(came)

            try:
                with self._foreground.waiting():
                    if any(self.budget.is_wanted(extents).any() for extents in batch.values()):
                        await self._batches.fetch(batch, arrived)
            finally:
                self._fetching.release_on_behalf_of(token)
                done(batch)
                self._wake()

        while waiting:
            before = set(waiting)
            due = await self._due(plan, span, waiting)
            if self.kept.job is not None and plan.window.plan.spec.policy == IMPORTANCE:
                due = await self._without_found(due)
            done(before.difference(due, waiting))
            for batch in self._batches.batched(due):
                token = object()
                await self._fetching.acquire_on_behalf_of(token)
                self._nursery.start_soon(bring, batch, token)
        done(())

    async def _due(self, plan: _Following, span: Span, waiting: dict[int, Extents]) -> Batch:
        """Wait until the window has room for the first of `waiting`. Remove as many as it has room for, count and
        return them; remove all if the span is not wanted any more.
        """
        window = plan.window
        # Files drawn from all of the dataset: others do not request the rest of their chunks soon.
        is_drawn = window.plan.spec.policy == IMPORTANCE
        due = Batch(is_shared_plan=window.is_shared_plan and not is_drawn)
        while window.holds(span) and self._is_followed(plan):
            for chunk, extents in list(waiting.items()):
                if self.budget.pin(chunk):
                    due[chunk] = self.table.of_chunk(chunk)
                elif not self.budget.has_room(extents.page_bytes()):
                    break
                elif len(charged := self.budget.charge(extents)):
                    due[chunk] = charged
                del waiting[chunk]
            if due or not waiting:
                return due
            moved = self.moved
            passed = window.passed()
            is_dropped = await self._drop(passed, self._passed(window, passed))
            if not is_dropped and not await self._take_back(window):
                await moved.wait()
        waiting.clear()
        return due

    async def _without_found(self, due: Batch) -> Batch:
        """Store what the job keeps of a batch; returns the rest."""
        found, came = await self.kept.found(due)
        await self._arrived(found, came)
        self.planned_hits.value += sum(extents.page_bytes() for extents in found.values())
        rest = {
            chunk: extents[~among(extents.numbers, found[chunk].numbers)] if chunk in found else extents
            for chunk, extents in due.items()
        }
        return Batch({chunk: extents for chunk, extents in rest.items() if len(extents)}, due.is_shared_plan)

    async def _take_back(self, needy: PlanWindow) -> bool:
        """Release what runs have, recalled spans, or the last span of another plan that holds its part; False if there
        are none.
        """
        if await self.runs.give_back():
            return True
        for window in self.windows:
            nodes = window.release_recalled()
            if not len(nodes) and window is not needy and self._has_its_part(window):
                nodes = window.shrink()
            if len(nodes):
                return await self._drop([nodes])
        return False

    # -- reclaimed pages ---------------------------------------------------------------------------------

    async def look_at_pinned(self) -> None:
        """Note which pinned chunks the kernel has reclaimed. Looks at some, and at all if any of them is lost."""
        chunks = self.budget.pushed()
        if self._is_too_soon() or not len(chunks):
            return
        self._looks += 1
        if not await self._look_at(self._of_chunks(spread(chunks, self._looks))):
            return
        for first in range(0, len(chunks), CHUNKS_AT_ONCE):
            await self._look_at(self._of_chunks(chunks[first : first + CHUNKS_AT_ONCE]))

    def _of_chunks(self, chunks: Numbers) -> Extents:
        return Extents.joined([*map(self.table.of_chunk, chunks.tolist())])

    def _is_too_soon(self) -> bool:
        """Whether the last look was a moment ago; if not, another begins."""
        if self._clock() < self._looked_s + LOOK_AGAIN_S:
            return True
        self._looked_s = self._clock()
        return False

    def _suspect(self, node: int) -> None:
        """A file that was stored was read through the daemon: look whether its chunk, and others, are reclaimed."""
        if not self._is_over and not self._is_too_soon():
            self._nursery.start_soon(self._look_ahead, node)

    async def _look_ahead(self, node: int) -> None:
        """If the chunk of a file is reclaimed, fetch again what readers of plans need of all that is."""
        (first, *_) = self.table.of_files(np.array([node])).chunks.tolist()
        if not await self._look_at(self.table.of_chunk(first)):
            return
        for window in self.windows:
            await self._look_at(self.table.of_files(window.unread()))
            window.issue_again()
        self._wake()

    async def _look_at(self, extents: Extents) -> bool:
        """Note which of these extents are stored no longer; False if none was reclaimed."""
        stored = extents[self.budget.is_stored(extents)]
        stored = stored[~self.tripwires.among(stored.nodes)]
        if not len(stored) or self._is_over:
            return False
        samples = sampled(stored)
        try:
            is_reclaimed = await trio.to_thread.run_sync(self._pages.reclaimed, samples, limiter=self.pushing)
        except MountError:
            self._is_over = True
            return False
        lost = distinct(samples.chunks[is_reclaimed])
        self._reclaimed.value += len(lost)
        self.budget.reclaim(stored[among(stored.chunks, lost)])
        return bool(len(lost))

    # -- arrivals ----------------------------------------------------------------------------------------

    async def _arrived(self, batch: Batch, came: Arrived) -> None:
        """Push extents that have arrived. Readers fetch those that failed."""
        for chunk, content in came.items():
            if isinstance(content, DieselfsError):
                self._failed.value += 1
                _log.warning("prefetch failed; readers fetch these files: %s", content)
            elif self.budget.is_pinned(chunk):
                self.budget.push(chunk)
        for extents, (payload, starts) in self._batches.joined(batch, came):
            await self._put(extents, payload, starts)
            if self.kept.job is not None and (wanted := self.kept.wanted(extents, payload, starts)):
                await trio.to_thread.run_sync(self.kept.job.give, wanted, abandon_on_cancel=True)

    async def _put(self, extents: Extents, payload: memoryview, starts: npt.NDArray[np.int64]) -> None:
        """Store extents that are wanted and not stored yet in the page cache, except tripwires, whose bytes stay here.

        The store runs in a worker thread, because the kernel may make it wait for a reader.
        """
        is_new = self.budget.put(extents)
        extents, starts = extents[is_new], starts[is_new]
        is_wire = self.tripwires.among(extents.nodes) & (extents.places == 0)
        wires = extents.nodes[is_wire]
        self.tripwires.hold(extents[is_wire], payload, starts[is_wire])
        extents, starts = extents[~is_wire], starts[~is_wire]
        has_plans = bool(self._plans)
        if not has_plans:  # a reader may have them in the page cache; the next plan drops them
            for wire in wires.tolist():
                self.tripwires.spring(wire)

        def store() -> int:
            with METER.timed("push"):
                if has_plans:
                    self._pages.uncover(wires)  # they may have been read without a plan
                return self._pages.store(extents, payload, starts)

        began_s = self._clock()
        try:
            taken = await trio.to_thread.run_sync(store, limiter=self.pushing)
        except MountError:
            self._is_over = True
            return
        self._pushed_files.value += len(extents)
        self._pushed_bytes.value += taken
        self._push_s.observe(self._clock() - began_s)

    async def _drop(self, passed: Iterable[Numbers], others: Extents | None = None) -> bool:
        """Drop files that a plan no longer needs, unless others do, and the extents `others`; False if the plan had
        none.

        Tripwires that have entered the page cache are dropped as well, so that they work again.
        """
        nodes = np.concatenate([np.empty(0, np.int64), *passed])
        extents = self.budget.release(self.table.of_files(nodes))
        extents = extents if others is None else Extents.joined([extents, others])
        self.tripwires.release(extents.nodes)
        sprung = self.tripwires.sprung()
        if (len(extents) or len(sprung)) and not self._is_over:
            dropped = distinct(extents.nodes[~among(extents.nodes, sprung)])

            def drop() -> None:
                self._pages.drop(dropped)
                self._pages.uncover(sprung)

            try:
                await trio.to_thread.run_sync(drop, limiter=self.pushing)
            except MountError:
                self._is_over = True
            self._dropped_files.value += len(extents)
        if len(nodes):
            self._wake()
        return bool(len(nodes))

    async def _drop_parts(self, extents: Extents) -> None:
        with suppress(MountError):  # the next push notes that the mount has ended
            await trio.to_thread.run_sync(self._pages.drop_parts, extents, limiter=self.pushing)
        self._wake()

    def _wake(self) -> None:
        self.moved.set()
        self.moved = trio.Event()
