"""The prefetch window: the files of a plan to fetch next, and those that all readers of the node have read. No I/O.

The readers of a plan (the ranks of one node) read the same order, each its own share. The positions of the plan are
divided into *spans*: a group, a part of a group, or several groups if the node's shares of them are small. While one
span is read, the next is fetched (double buffering, as in section III of the paper on asynchronous I/O).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers, among, distinct
from dieselfs.shuffle.plan import Plan, Share

LAG_MAX = 4096
"""The processes of a reader do not read in exact order. Files this many positions behind the furthest, but no more than
a quarter of a span, may still be needed.
"""
READER_QUIET_S = 60.0
"""The window ignores a reader whose last sign is this much older than another's: it may have read only the list."""
OVERTAKEN_S = 2.0
"""For this time after a tripwire, other reads do not show the position of its reader."""
AHEAD_S = 30.0
"""Beyond two spans, files that will be read later than this are not fetched yet: some kernels reclaim pages that were
not used for about a minute.
"""
READS_MIN = 16
"""Reads of this many files in about the order of the plan are no coincidence."""
LAG_SHARE = 16
"""A process of a reader may lag behind another by this fraction (1/16) of the files of two groups."""

_NONE = np.empty(0, np.int64)


class Tripwires(Protocol):
    """Which files show the position of their reader when they are read."""

    def usual(self, nodes: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these files do so in every epoch."""

    def could_be(self, nodes: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these files can do so."""


@dataclass(frozen=True, eq=False, slots=True)
class Span:
    """A range of positions of a plan, and the files that the node's readers read in it."""

    first: int
    end: int
    positions: Numbers
    """The positions that the node's readers read, ascending."""
    nodes: Numbers
    """The files at `positions`."""
    extra_tripwires: Numbers
    """Additional tripwires in this span, for readers without a usual one."""


@dataclass(eq=False, slots=True)
class WindowMiss:
    """Detects a reader that has overtaken its window, from the files that it reads through the daemon. It reads no
    tripwires, as there are none beyond the window, but later files of the plan, in about the order of the plan. Covers
    the group of position `ahead`, and the next one.
    """

    plan: Plan
    _ahead: int = -1
    _nodes: Numbers = field(default_factory=lambda: _NONE)
    _positions: Numbers = field(default_factory=lambda: _NONE)
    _furthest: int = -1
    _reads: int = 0

    def reset(self) -> None:
        """Note that the reader has read a tripwire."""
        self._reads = 0

    def note_read(self, node: int, ahead: int) -> int | None:
        """Note a read through the daemon, while the window ends at `ahead`. Returns the position of the reader after
        READS_MIN such reads.
        """
        if ahead >= len(self.plan):
            return None
        if ahead != self._ahead:
            self._look_ahead(ahead)
        place = int(np.searchsorted(self._nodes, node))
        if place == len(self._nodes) or self._nodes[place] != node:
            return None
        position = int(self._positions[place])
        self._reads = self._reads + 1 if position + len(self._nodes) // LAG_SHARE >= self._furthest else 1
        self._furthest = max(position, self._furthest) if self._reads > 1 else position
        return position if self._reads >= READS_MIN else None

    def _look_ahead(self, ahead: int) -> None:
        bounds = self.plan.group_bounds()
        group = self.plan.group_of(ahead)
        end = int(bounds[min(group + 2, len(bounds) - 1)])
        nodes = self.plan.nodes(ahead, end).astype(np.int64)
        order = np.argsort(nodes)
        self._ahead, self._nodes, self._positions = ahead, nodes[order], ahead + order
        self._reads = 0


@dataclass(eq=False, slots=True)
class _Reader:
    share: Share
    position: int
    """All positions of the share before this one are known to be read."""
    started_s: float | None = None
    started_at: int = 0
    seen_s: float = 0.0
    last_wire: int = -1
    """The position of its last tripwire."""
    number: int = 0
    """Its number in `HitRate`."""
    reported: int = 0
    """`newly_read` has returned the positions before this one."""

    window_miss: WindowMiss = field(init=False)

    def __post_init__(self) -> None:
        self.window_miss = WindowMiss(self.share.plan)

    def positions(self, first: int, end: int) -> Numbers:
        """The positions from `first` up to `end` that it has not read yet."""
        return self.share.between(max(first, self.position), end)


@dataclass(frozen=True, eq=False, slots=True)
class _Stretch:
    """Positions from `first` up to `end`, and which of them the node's readers read."""

    first: int
    end: int
    by_reader: list[tuple[_Reader, Numbers]]
    positions: Numbers
    nodes: Numbers
    length_bytes: int

    def joined(self, other: "_Stretch") -> "_Stretch":
        """This one and the next one, joined."""
        pairs = zip(self.by_reader, other.by_reader, strict=True)
        return _Stretch(
            self.first,
            other.end,
            [(reader, np.concatenate((before, after))) for (reader, before), (_, after) in pairs],
            np.concatenate((self.positions, other.positions)),
            np.concatenate((self.nodes, other.nodes)),
            self.length_bytes + other.length_bytes,
        )


@dataclass(eq=False, slots=True)
class _Wire:
    """The reader of a tripwire, and the position."""

    reader: _Reader
    position: int


@dataclass(eq=False, slots=True)
class PlanWindow:
    """One plan and its readers on this node. `charge`: the bytes that each of the files takes; `clock`: in seconds;
    `ahead_bytes`: two spans are enough only if they have as much, as the first spans of a plan are small.
    """

    plan: Plan
    tripwires: Tripwires
    charge: Callable[[Numbers], Numbers]
    clock: Callable[[], float]
    ahead_bytes: int = 0
    ahead: int = 0
    """The end of the issued spans: those that `next_span` returned."""
    behind: int = 0
    """All files before this position have been released."""
    _readers: list[_Reader] = field(default_factory=list)
    _wires: dict[int, _Wire] = field(default_factory=dict)
    _spans: list[Span] = field(default_factory=list)
    _incomplete: set[Span] = field(default_factory=set)  # issued, and not stored yet
    _gathered: _Stretch | None = None  # groups for the next span, from `ahead` on
    # Spans to issue again, with the files of them that are still held; then, files that are held twice.
    _recalled: list[tuple[Span, Numbers]] = field(default_factory=list)
    _surplus: list[Numbers] = field(default_factory=list)
    _has_shrunk: bool = False  # since the last sign of a reader

    def join(self, share: Share, position: int = 0, number: int = 0) -> None:
        """Add a reader, or restart a known one, at `position` or the start of its share. Issued spans that it needs are
        recalled: they are issued again, and stay stored until then. `number`: its number in `newly_read`.
        """
        start = max(share.start, position)
        if not self._readers:
            self.ahead = self.behind = start
        self._readers = [reader for reader in self._readers if _identity(reader.share) != _identity(share)]
        self._recall(start)
        self._readers.append(_Reader(share, start, seen_s=self.clock(), number=number, reported=start))
        self._has_shrunk = False

    def issue_again(self) -> None:
        """Issue the spans again that readers need: files of them are not stored any more."""
        self._recall(self.position)
        self._has_shrunk = False

    def _recall(self, start: int) -> None:
        """Issue the spans again that reach beyond the position `start`."""
        self._settle_recalled()
        while self._spans and self._spans[-1].end > start:
            span = self._spans.pop()
            self._recalled.append((span, self._held_of(span)))
            self.ahead = span.first
        self._go_to(min(self.ahead, start))
        self.behind = min(self.behind, self.ahead)

    @property
    def is_finished(self) -> bool:
        """Whether each reader has passed its last tripwire."""
        return self.ahead >= len(self.plan) and all(
            reader.position > reader.last_wire for reader in self._alive()
        )

    @property
    def is_shared_plan(self) -> bool:
        """Whether the plan has more readers, which may be on other nodes."""
        return any(reader.share.world > 1 for reader in self._readers)

    @property
    def position(self) -> int:
        """The last known position of the slowest reader."""
        return min(reader.position for reader in self._alive())

    def _alive(self) -> list[_Reader]:
        """The readers without those that are silent while others read."""
        since_s = self.quiet_since_s - READER_QUIET_S
        return [reader for reader in self._readers if reader.seen_s >= since_s]

    @property
    def quiet_since_s(self) -> float:
        """The time of the last sign of a reader."""
        return max(reader.seen_s for reader in self._readers)

    def positions(self) -> Iterator[tuple[Share, int]]:
        """The share and the last known position of each reader."""
        for reader in self._readers:
            yield reader.share, reader.position

    # -- ahead of the readers ------------------------------------------------------------------------------

    def gather(self, bytes_max: int) -> bool:
        """Compute one more group of the next span; False if it has all. A span has several groups with at most
        `bytes_max` of files together, or one group. The first span has one, for readers that have just begun. A group
        of a large job takes some milliseconds, so other tasks should run between two calls.
        """
        gathered = self._gathered
        first = gathered.end if gathered else self.ahead
        is_full = gathered and (gathered.length_bytes >= bytes_max or not self._spans)
        if is_full or first >= len(self.plan) or self._has_shrunk or self._is_far_enough():
            return False
        group = self._group_from(first)
        if gathered and gathered.length_bytes + group.length_bytes > bytes_max:
            return False
        self._gathered = gathered.joined(group) if gathered else group
        return True

    def next_span(self, bytes_max: int) -> Span | None:
        """Issue the next span, with at most `bytes_max` of files: of the groups that were gathered, or of the next one.
        None if the window is far enough ahead for now.
        """
        while self.ahead < len(self.plan) and not self._has_shrunk and not self._is_far_enough():
            stretch = self._gathered or self._group_from(self.ahead)
            end, positions, nodes = stretch.end, stretch.positions, stretch.nodes
            if stretch.length_bytes > bytes_max:
                charges = np.cumsum(self.charge(nodes))
                # Equal parts instead of large ones and a small rest.
                parts = -(-stretch.length_bytes // max(bytes_max, 1))
                count = max(int(np.searchsorted(charges, stretch.length_bytes / parts, side="right")), 1)
                if count < len(positions):
                    end = int(positions[count])
                    positions, nodes = positions[:count], nodes[:count]
            self._go_to(end)
            if len(positions):
                extra = self._watch(positions, nodes, stretch.by_reader)
                span = Span(stretch.first, end, positions, nodes, extra)
                self._spans.append(span)
                self._incomplete.add(span)
                return span
        return None

    def _group_from(self, first: int) -> _Stretch:
        """The rest of a group from a position on."""
        group = self.plan.group_of(first)
        end = int(self.plan.group_bounds()[group + 1])
        by_reader = [(reader, reader.positions(first, end)) for reader in self._readers]
        positions = distinct(np.concatenate([positions for _, positions in by_reader]))
        nodes = self.plan.nodes_of(group, positions).astype(np.int64)
        return _Stretch(first, end, by_reader, positions, nodes, int(self.charge(nodes).sum()))

    def _go_to(self, position: int) -> None:
        """Start the next span at this position."""
        self.ahead = position
        self._gathered = None

    def complete(self, span: Span) -> None:
        """Note that a span is stored, except for files that cannot be fetched."""
        self._incomplete.discard(span)

    def spans_ahead(self) -> int:
        """How many issued spans have not been read, as far as is known."""
        # A span whose tripwires are all extra may show no reads: its files may be in the page cache.
        return sum(span.end > self.position and not len(span.extra_tripwires) for span in self._spans)

    def _is_far_enough(self) -> bool:
        if self.spans_ahead() < 2 or self._bytes_ahead() < self.ahead_bytes:
            return False
        rate = self.rate()
        return rate is None or (self.ahead - self.position) > rate * AHEAD_S

    def _bytes_ahead(self) -> int:
        unread = (span.nodes for span in self._spans if span.end > self.position)
        return sum(int(self.charge(nodes).sum()) for nodes in unread)

    def _watch(self, positions: Numbers, nodes: Numbers, by_reader: list[tuple[_Reader, Numbers]]) -> Numbers:
        """Enter the tripwires at these positions with their readers; returns the additional tripwires."""
        is_single = self.plan.is_single(nodes)  # a file that is read several times shows no position
        is_wire = self.tripwires.usual(nodes) & is_single
        can_be = self.tripwires.could_be(nodes) & is_single
        extra = []
        for reader, of_reader in by_reader:
            is_own = among(positions, of_reader)
            places = np.flatnonzero(is_own & is_wire).tolist()
            if not places:
                places = np.flatnonzero(is_own & can_be)[-1:].tolist()
                extra += places
            for place in places:
                self._wires[int(nodes[place])] = _Wire(reader, int(positions[place]))
                reader.last_wire = max(reader.last_wire, int(positions[place]))
        return nodes[extra]

    def rate(self) -> float | None:
        """Positions per second of the fastest reader; None while it is unknown."""
        rates = [
            (reader.position - reader.started_at) / (reader.seen_s - reader.started_s)
            for reader in self._readers
            if reader.started_s is not None and reader.seen_s > reader.started_s
        ]
        return max(rates, default=None)

    # -- behind the readers --------------------------------------------------------------------------------

    def advance(self, node: int) -> int | None:
        """How many positions its reader advances if it has just read this file. None if the file is no tripwire, or if
        its reader has passed it.
        """
        wire = self._wires.get(node)
        if wire is None or wire.position < wire.reader.position:
            return None
        return wire.position + 1 - wire.reader.position

    def note_read(self, node: int) -> None:
        """Note that the reader of a tripwire has read it."""
        wire = self._wires[node]
        self._reached(wire.reader, wire.position + 1)
        wire.reader.window_miss.reset()

    def reached(self, share: Share, position: int) -> None:
        """Note that a reader has read its positions before `position`."""
        for reader in self._readers:
            if _identity(reader.share) == _identity(share):
                self._reached(reader, position)

    def _reached(self, reader: _Reader, position: int) -> None:
        reader.seen_s = self.clock()
        self._has_shrunk = False
        if reader.started_s is None:
            reader.started_s, reader.started_at = reader.seen_s, position - 1
        reader.position = max(reader.position, position)

    def is_starved(self, node: int) -> bool:
        """Whether files between this tripwire, which was just read, and its reader's next one are not stored yet."""
        wire = self._wires.get(node)
        if wire is None or wire.reader.position != wire.position + 1:
            return False
        others = (other.position for other in self._wires.values() if other.reader is wire.reader)
        end = min((position for position in others if position > wire.position), default=len(self.plan))
        is_missing = any(wire.position < span.end and span.first < end for span in self._incomplete)
        return is_missing or self.ahead < end

    def is_overtaken(self, node: int) -> bool:
        """Note a read through the daemon of a file that is no tripwire. True if its reader has overtaken the issued
        spans, and gave no sign for OVERTAKEN_S; the window then continues at its position.
        """
        now_s = self.clock()
        for reader in self._readers:
            if now_s - reader.seen_s < OVERTAKEN_S:
                continue
            position = reader.window_miss.note_read(node, self.ahead)
            if position is not None and len(reader.share.between(position, position + 1)):
                reader.position, reader.seen_s = position, now_s
                reader.window_miss.reset()
                self._go_to(max(self.ahead, self.position))
                self._has_shrunk = False
                return True
        return False

    def newly_read(self) -> Iterator[tuple[int, Numbers]]:
        """The files that each reader, by its number, has read since the last call, as far as is known."""
        for reader in self._readers:
            if reader.position > reader.reported:
                read = reader.share.between(reader.reported, reader.position)
                reader.reported = reader.position
                yield reader.number, self._nodes_at(read)

    def _nodes_at(self, positions: Numbers) -> Numbers:
        """The files at these positions; those of issued spans are not computed again."""
        found = [positions[:0]]
        for span in self._spans:
            within = positions[slice(*np.searchsorted(positions, (span.first, span.end)))]
            places = np.searchsorted(span.positions, within)
            if len(within) and places[-1] < len(span.positions) and (span.positions[places] == within).all():
                found.append(span.nodes[places])
        if sum(map(len, found)) < len(positions):
            return self.plan.nodes_at(positions).astype(np.int64)
        return np.concatenate(found)

    def passed(self) -> list[Numbers]:
        """Files that all readers have read, each returned once."""
        self._settle_recalled()
        done, self._surplus = self._surplus, []
        limit = self.position
        while self._spans and self._spans[0].first < limit:
            span = self._spans[0]
            edge = min(limit - min(LAG_MAX, (span.end - span.first) // 4), span.end)
            since, until = np.searchsorted(span.positions, (self.behind, edge)).tolist()
            if until > since:
                done.append(span.nodes[since:until])
            self.behind = max(self.behind, edge)
            if edge < span.end:
                break
            self._spans.pop(0)
            is_wire = self.tripwires.usual(span.nodes)
            for node in [*span.nodes[is_wire].tolist(), *span.extra_tripwires.tolist()]:
                self._wires.pop(node, None)
        return done

    def _settle_recalled(self) -> None:
        """Move recalled spans that were issued again to the surplus: they are held twice."""
        self._surplus += [nodes for span, nodes in self._recalled if span.end <= self.ahead]
        self._recalled = [(span, nodes) for span, nodes in self._recalled if span.end > self.ahead]

    def holds(self, span: Span) -> bool:
        """Whether an issued span is still wanted."""
        return span in self._spans or any(span is recalled for recalled, _ in self._recalled)

    def held_bytes(self) -> int:
        """The bytes of issued files that are still wanted."""
        return sum(int(self.charge(nodes).sum()) for nodes in self._held())

    def unread(self) -> Numbers:
        """The issued files that a reader needs, as far as is known."""
        limit = self.position
        return np.concatenate(
            [_NONE, *(span.nodes[np.searchsorted(span.positions, limit) :] for span in self._spans)]
        )

    def release_recalled(self) -> Numbers:
        """Release the furthest recalled span: files that are read earlier need the memory."""
        if not self._recalled:
            return _NONE
        furthest = max(range(len(self._recalled)), key=lambda place: self._recalled[place][0].first)
        return self._recalled.pop(furthest)[1]

    def shrink(self) -> Numbers:
        """Release the last span, unless it may be in use already, for a plan that needs the memory more.

        It is issued again when a reader has advanced; otherwise two plans would take the same memory in turns.
        """
        if len(self._spans) < 2 or self._spans[-1].first <= self.position:
            return _NONE
        self._has_shrunk = True
        span = self._spans.pop()
        self._go_to(span.first)
        return span.nodes

    def _held(self) -> list[Numbers]:
        recalled = [nodes for _, nodes in self._recalled]
        return [*map(self._held_of, self._spans), *recalled, *self._surplus]

    def _held_of(self, span: Span) -> Numbers:
        return span.nodes[np.searchsorted(span.positions, self.behind) :]

    def close(self) -> list[Numbers]:
        """Release and return all files that are still held; the window must not be used afterwards."""
        nodes = self._held()
        self._spans.clear()
        self._recalled.clear()
        self._surplus.clear()
        self._wires.clear()
        return nodes


def _identity(share: Share) -> tuple[int, ...]:
    """Identifies a reader of a plan."""
    return share.rank, share.world, share.batch, share.reader.worker, share.reader.workers
