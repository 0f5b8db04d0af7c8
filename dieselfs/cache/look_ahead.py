"""The prefetcher of the library: loads what readers of plans need next, ahead of them. This module starts threads.

A chunk of which most is needed, or that another process shares, is held whole by the cache, where readers find it. Of
other chunks, which the readers of a plan have in common, the files themselves are fetched, many in one request, and
wait here until they are read: once in an epoch. A list of extents is of parts of files, which are read several times:
all its chunks are held whole.

A prefetch that fails is no error: the reader fetches the file itself.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition, Event, Thread, current_thread

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers, among
from dieselfs.cache.policy import PREFETCH_WHOLE_SHARE, is_worth_whole
from dieselfs.cache.thread_cache import ThreadCache
from dieselfs.errors import DieselfsError
from dieselfs.forks import renew_after_fork
from dieselfs.limits import FETCHES_AT_ONCE_MAX, MIB
from dieselfs.prefetch.extent_table import Extents, ExtentTable
from dieselfs.prefetch.window import PlanWindow, Span
from dieselfs.shuffle.listed import ListedPlan
from dieselfs.shuffle.plan import Share, ShuffledPaths
from dieselfs.shuffle.spec import ReaderSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import Slices, Wanted
from dieselfs.telemetry.registry import Registry

THREADS = FETCHES_AT_ONCE_MAX // 2
"""Prefetches in flight; as for a mount, waiting readers have the rest."""
PLANS_MAX = 4
"""Limit of plans; one more ends the plan that was silent the longest."""
SPAN_BYTES = 64 * MIB
"""Groups of which this process needs a part are fetched together up to this."""
FLIGHT_WAIT_S = 5.0
"""A reader waits this long for a prefetch of its files, and then fetches them itself."""
JOIN_TIMEOUT_S = 5.0
"""`close` waits this long for the threads. A request that is in flight for longer ends later, without an effect."""
IDLE_S = 60.0
"""Threads without work end after this time."""
FILES_PER_STEP = 64
"""A reader that takes files one by one reports its position, and the room that it freed, after this many files."""
WAKE_SHARE = 16
"""A plan is looked at when its reader has come this fraction (1/16) of the way to its end."""

_log = logging.getLogger(__name__)


class NoTripwires:
    """For readers that tell their position."""

    def usual(self, nodes: Numbers) -> npt.NDArray[np.bool_]:
        return np.zeros(len(nodes), np.bool_)

    could_be = usual


@dataclass(eq=False, slots=True)
class _Following:
    """`is_reader`: this process reads the files. `wake_at`: nothing is to do before this position."""

    share: Share
    window: PlanWindow
    is_reader: bool
    wake_at: int = 0


@dataclass(eq=False, slots=True)
class _Batch:
    """Extents by chunk, of one request. `over` is set when it has arrived, or has failed."""

    following: _Following
    span: Span
    extents: dict[int, Extents]
    is_whole: bool
    over: Event = field(default_factory=Event)


class LookAhead:
    """Thread-safe. Without a plan there are no threads; a forked child has neither plans nor threads."""

    def __init__(
        self,
        snapshot: Snapshot,
        cache: ThreadCache,
        room_bytes: int,
        metrics: Registry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`room_bytes`: limit of what is loaded and not read yet."""
        self._snapshot, self._cache, self._room_bytes, self._clock = snapshot, cache, room_bytes, clock
        self._sizes = snapshot.column("sizes")
        self._table = ExtentTable(snapshot)
        self._fetched = metrics.counter("look_ahead.files", "Files that were fetched ahead of a plan.")
        self._fetched_bytes = metrics.counter("look_ahead.bytes", "Bytes of files fetched ahead of a plan.")
        self._chunks = metrics.counter("look_ahead.chunks", "Chunks that were loaded whole ahead of a plan.")
        self._failed = metrics.counter("look_ahead.failed", "Chunks that could not be fetched ahead.")
        metrics.gauge("look_ahead.waiting_bytes", "Fetched files that wait for readers.", self._waiting)
        self._reset()
        renew_after_fork(self)

    def _reset(self) -> None:
        self._changed = Condition()  # guards all below, but for single accesses of `_contents` and `_coming`
        self._is_closed = False
        self._plans: list[_Following] = []  # the last one to give a sign at the end
        self._threads: set[Thread] = set()
        self._queue: deque[_Batch] = deque()
        self._contents: dict[int, bytes] = {}  # files that wait for readers
        self._coming: dict[int, _Batch] = {}  # by chunk: files of it will be in `_contents`
        self._taken: deque[int] = deque()  # bytes that readers took, and that are not counted yet
        self._waiting_bytes = 0
        self._last: tuple[Share | None, int] = (None, 0)  # whose files were read last, and its next number

    def after_fork(self) -> None:
        self._reset()

    @property
    def fetches(self) -> int:
        """What this process has read that no process of this node had; each a chunk or an extent."""
        return self._cache.fetches

    def _waiting(self) -> int:
        return self._waiting_bytes - sum([*self._taken])

    # -- calls of readers ----------------------------------------------------------------------------------

    def follow(self, share: Share, position: int, is_reader: bool = False) -> None:
        """A reader has taken the positions of its share before `position`: load what follows.

        `is_reader`: this process itself reads the files. Otherwise only memory is used that other processes share.
        Another share of the same reader ends the first one. A share of another snapshot is ignored.
        """
        with self._changed:
            if self._is_closed or share.plan.snapshot is not self._snapshot:
                return
            following = next((each for each in self._plans if each.share is share), None)
            if following is None or (is_reader and not following.is_reader):
                following = self._begin(share, position, is_reader)
                if is_reader and isinstance(share.plan, ListedPlan):
                    # At once: else the reader fetches what will come, and chunks whole because it needs them again.
                    self._plan_more()
            elif following is not self._plans[-1]:
                self._plans.remove(following)
                self._plans.append(following)
            self._settle()
            if position > following.window.position:
                following.window.reached(share, position)
            if position >= following.wake_at:
                self._changed.notify()
            self._start_threads()

    def _start_threads(self) -> None:
        while len(self._threads) < THREADS:
            thread = Thread(target=self._run, name="dieselfs-look-ahead", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _begin(self, share: Share, position: int, is_reader: bool) -> _Following:
        """Follow one more share, in place of that of the same reader in another epoch, or from another start."""
        for each in [*self._plans]:
            if _identity(each.share) == _identity(share):
                self._end(each)
        if len(self._plans) == PLANS_MAX:
            self._end(self._plans[0])
        bytes_of = self._bytes_of_extents if _is_of_extents(share) else self._bytes_of
        window = PlanWindow(share.plan, NoTripwires(), bytes_of, self._clock)
        window.join(share, position)
        following = _Following(share, window, is_reader)
        self._plans.append(following)
        return following

    def _end(self, following: _Following) -> None:
        """Stop following. What is in flight is dropped when it arrives."""
        self._plans.remove(following)
        self._drop(following.window.close())
        for batch in [batch for batch in self._queue if batch.following is following]:
            self._queue.remove(batch)
            self._is_over(batch)

    def along(self, paths: ShuffledPaths) -> Iterator[str]:
        """The same paths; their files are loaded ahead."""
        for first in range(0, len(paths), FILES_PER_STEP):
            part = paths[first : first + FILES_PER_STEP]
            if part.share is not None:
                self.follow(part.share, int(part.share.positions(part.first, part.first + 1)[0]), True)
            yield from part

    def will_read(self, paths: ShuffledPaths) -> None:
        """This process is about to read these files. If it has read those before them, it follows their order."""
        share, first, end = paths.share, paths.first, paths.first + len(paths)
        if share is None or first == end:
            return
        (last, follows_at), self._last = self._last, (share, end)
        if last is share and follows_at == first:
            self.follow(share, int(share.positions(first, first + 1)[0]), is_reader=True)

    def take(self, nodes: list[int]) -> list[bytes] | None:
        """The bytes of these files if all of them wait here. Each is given once."""
        contents = self._contents
        found = [content for node in nodes if (content := contents.get(node)) is not None] if contents else []
        if not found or len(found) < len(nodes):
            return None
        self._forget(nodes)
        return found

    def take_some(self, nodes: Sequence[int]) -> dict[int, bytes]:
        """The files that wait here, by node; waits for files in flight, FLIGHT_WAIT_S at most."""
        if not self._plans or not len(nodes):
            return {}
        chunks, _, _ = self._snapshot.sole_extents(np.asarray(nodes, np.int64))
        until_s = self._clock() + FLIGHT_WAIT_S
        for batch in dict.fromkeys(map(self._coming.get, chunks.tolist())):
            if batch is not None:
                batch.over.wait(max(until_s - self._clock(), 0.0))
        found = {node: content for node in nodes if (content := self._contents.get(node)) is not None}
        self._forget(found)
        return found

    def take_one(self, node: int) -> bytes | None:
        """The bytes of a file if it waits here; given once."""
        content = self._contents.pop(node, None)
        if content is not None:
            self._taken.append(len(content))
            if len(self._taken) >= FILES_PER_STEP:
                with self._changed:
                    self._settle()
        return content

    def _forget(self, nodes: Iterable[int]) -> None:
        pop = self._contents.pop
        self._taken.append(sum([len(pop(node, b"")) for node in nodes]))

    def _settle(self) -> None:
        """Count what was taken. Called with the lock."""
        taken_bytes = 0
        while self._taken:
            taken_bytes += self._taken.popleft()
        self._reserve(-taken_bytes)

    def close(self) -> None:
        """End the threads, and drop what they have loaded. Called by one thread; later calls of others do nothing."""
        with self._changed:
            self._is_closed = True
            while self._plans:
                self._end(self._plans[-1])
            self._changed.notify_all()
            threads = [*self._threads]
        until_s = self._clock() + JOIN_TIMEOUT_S
        for thread in threads:
            thread.join(max(until_s - self._clock(), 0.0))

    # -- the threads ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            try:
                self._fetch(batch)
            except Exception:  # a bug: readers fetch these files themselves
                _log.exception("look-ahead failed")
            finally:
                with self._changed:
                    self._is_over(batch)

    def _next_batch(self) -> _Batch | None:
        """Wait for work; None after `close`, or without any for IDLE_S."""
        with self._changed:
            is_awake = True
            while not self._is_closed and not self._queue and not self._plan_more() and is_awake:
                is_awake = self._changed.wait(IDLE_S)
            if self._queue and not self._is_closed:
                return self._queue.popleft()
            self._threads.discard(current_thread())
            return None

    def _is_over(self, batch: _Batch) -> None:
        """Readers of these chunks wait no longer. Called with the lock."""
        self._cache.expect(batch.extents, False)
        for chunk in batch.extents:
            if self._coming.get(chunk) is batch:
                del self._coming[chunk]
        batch.over.set()

    def _plan_more(self) -> bool:
        """Queue the batches of the next span of a plan; whether there are any. Called with the lock."""
        for following in reversed(self._plans):
            window, share = following.window, following.share
            self._drop(window.passed())
            room_bytes = self._room_bytes // len(self._plans)
            while share.world > 1 and window.gather(min(SPAN_BYTES, room_bytes // 4)):
                pass
            span = None
            if window.held_bytes() <= room_bytes // 2:
                span = window.next_span(max(room_bytes // 2, 1))
            following.wake_at = window.position + (window.ahead - window.position) // WAKE_SHARE
            if span is not None:
                self._enqueue(following, span)
            if self._queue:
                return True
        return False

    def _enqueue(self, following: _Following, span: Span) -> None:
        is_of_extents = _is_of_extents(following.share)
        extents_of = self._table.of_numbers if is_of_extents else self._table.of_files
        by_chunk = dict(extents_of(span.nodes).by_chunk())
        length_of = self._snapshot.chunk_payload_length
        wholes = [
            chunk
            for chunk, of_chunk in by_chunk.items()
            if is_of_extents
            or is_worth_whole(int(of_chunk.lengths.sum()), length_of(chunk), PREFETCH_WHOLE_SHARE)
        ]
        parts = set(by_chunk).difference(wholes)
        if following.is_reader:
            self._cache.expect(wholes, True)
        together = {group[0]: group for group in self._cache.together(sorted(parts))}
        companions = parts.difference(together)
        for chunk in by_chunk:
            if chunk in companions:
                continue
            group = together.get(chunk, [chunk])
            batch = _Batch(following, span, {each: by_chunk[each] for each in group}, chunk not in parts)
            self._queue.append(batch)
            if following.is_reader and chunk in parts:
                self._coming.update(dict.fromkeys(group, batch))
        self._changed.notify(len(self._queue))

    def _fetch(self, batch: _Batch) -> None:
        is_reader, is_shared_plan = batch.following.is_reader, batch.following.share.world > 1
        left: dict[int, Extents] = {}
        for chunk, extents in batch.extents.items():
            try:
                wanted_bytes, is_whole = int(extents.lengths.sum()), batch.is_whole and is_reader
                if self._cache.bring(chunk, wanted_bytes, is_whole, is_shared_plan):
                    self._chunks.value += 1
                elif is_reader and not batch.is_whole:
                    left[chunk] = extents[extents.lengths == extents.sizes]
            except DieselfsError as error:
                self._note(error)
        files = {chunk: extents.extents() for chunk, extents in left.items() if len(extents)}
        if not files:
            return
        for arrival in self._cache.fetch_many(Wanted(files, is_shared_plan)):
            for chunk, result in arrival.items():
                if isinstance(result, Slices):
                    self._keep(batch, left[chunk].nodes, [*map(bytes, result)])
                else:
                    self._note(result)

    def _keep(self, batch: _Batch, nodes: Numbers, contents: list[bytes]) -> None:
        """Keep files until they are read, unless all readers have passed them."""
        following, span = batch.following, batch.span
        with self._changed:
            if following not in self._plans:
                return
            came = dict(zip(nodes.tolist(), contents, strict=True))
            self._fetched.value += len(came)
            self._fetched_bytes.value += sum(map(len, contents))
            if following.window.behind > span.first:
                left = span.nodes[np.searchsorted(span.positions, following.window.behind) :]
                came = {node: came[node] for node in left[among(left, nodes)].tolist()}
            self._contents.update(came)
            self._reserve(sum(map(len, came.values())))

    def _note(self, error: DieselfsError) -> None:
        self._failed.value += 1
        _log.debug("look-ahead failed; readers fetch these files: %s", error)

    def _drop(self, passed: Iterable[Numbers]) -> None:
        """Drop files that were not read. Called with the lock."""
        self._settle()
        for nodes in passed:
            if self._contents:
                pop = self._contents.pop
                self._reserve(-sum([len(pop(node, b"")) for node in nodes.tolist()]))

    def _reserve(self, length_bytes: int) -> None:
        """Count files that wait. Called with the lock."""
        if length_bytes:
            self._waiting_bytes += length_bytes
            self._cache.reserve(length_bytes)

    def _bytes_of(self, nodes: Numbers) -> Numbers:
        sizes: Numbers = self._sizes[nodes].astype(np.int64)
        return sizes

    def _bytes_of_extents(self, numbers: Numbers) -> Numbers:
        lengths: Numbers = self._snapshot.column("extent_lengths")[numbers].astype(np.int64)
        return lengths


def _is_of_extents(share: Share) -> bool:
    return isinstance(share.plan, ListedPlan) and share.plan.is_of_extents


def _identity(share: Share) -> tuple[int, bytes, ReaderSpec]:
    """Identifies a reader in all epochs."""
    return share.plan.spec.seed, share.plan.spec.folder, replace(share.reader, start=0)
