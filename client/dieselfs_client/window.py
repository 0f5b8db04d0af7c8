"""The part of a plan that a node holds: what is to be fetched next, and what its readers have done with. No I/O.

The readers of a plan (the ranks of one node) read the same order, each its own share. What they will read is cut into
*spans*, stretches of positions that never reach over the end of a group; while one is read, the next is fetched (double
buffering, as the paper on asynchronous I/O has it, section III).

Reads from the page cache are invisible. So one file in so many of each span is a *tripwire*: it is not pushed, and the
read for it tells how far its reader has come.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dieselfs.shuffle.plan import Plan, Share

Numbers = npt.NDArray[np.int64]

TRIPWIRE_EVERY = 512
"""One file in so many is read through the daemon, which costs as much as reading some ten files from the page cache."""
TRIPWIRES_MIN = 16
"""So many to a span, if it has as many files, for each reader."""
LAG_MAX = 4096
"""Readers in several processes do not read in exact order: what is so many positions behind the furthest, but no more
than a quarter of a span, may still be wanted.
"""
AHEAD_S = 30.0
"""What would be read later than this from now is not fetched yet, beyond two spans: some kernels take back pages that
nobody touched for about a minute."""


@dataclass(frozen=True, eq=False, slots=True)
class Span:
    """Some positions of a plan, the files that the node's readers read at them, and which of these are tripwires."""

    first: int
    end: int
    positions: Numbers
    """Ascending: those that the node's readers read."""
    nodes: Numbers
    """The files at `positions`."""
    tripwires: Numbers


@dataclass(eq=False, slots=True)
class _Reader:
    share: Share
    position: int
    """All before it that is in the share has been read, as far as is known."""
    started_s: float | None = None
    started_at: int = 0
    seen_s: float = 0.0

    def positions(self, first: int, end: int) -> Numbers:
        """What it is still to read of the positions from `first` up to `end`."""
        count_before = self.share.count_before
        return self.share.positions(count_before(max(first, self.position)), count_before(end))


@dataclass(eq=False, slots=True)
class _Wire:
    """Which reader a tripwire belongs to, and at which position."""

    reader: _Reader
    position: int


@dataclass(eq=False, slots=True)
class PlanWindow:
    """One plan and its readers on this node. `charge` tells what each of some files takes; `clock` is in seconds."""

    plan: Plan
    charge: Callable[[Numbers], Numbers]
    clock: Callable[[], float]
    ahead: int = 0
    """Spans up to here have been handed out."""
    behind: int = 0
    """All before it has been given back."""
    _readers: list[_Reader] = field(default_factory=list)
    _wires: dict[int, _Wire] = field(default_factory=dict)
    _spans: list[Span] = field(default_factory=list)

    def join(self, share: Share) -> None:
        """Another reader. What it wants of spans that were handed out already is handed out once more."""
        start = share.start
        if not self._readers:
            self.ahead = self.behind = start
        while self._spans and self._spans[-1].end > start:
            self.ahead = self._spans.pop().first
        self.ahead = min(self.ahead, start)
        self.behind = min(self.behind, self.ahead)
        self._readers.append(_Reader(share, start, seen_s=self.clock()))

    @property
    def is_finished(self) -> bool:
        """Every reader has come to the end."""
        return all(reader.position >= len(self.plan) for reader in self._readers)

    @property
    def position(self) -> int:
        """Where the slowest reader is, as far as is known."""
        return min(reader.position for reader in self._readers)

    @property
    def quiet_since_s(self) -> float:
        """When a reader was last heard of."""
        return max(reader.seen_s for reader in self._readers)

    def positions(self) -> Iterator[tuple[Share, int]]:
        """Each reader's share, and how far it is known to be."""
        for reader in self._readers:
            yield reader.share, reader.position

    # -- ahead of the readers ------------------------------------------------------------------------------

    def next_span(self, bytes_max: int) -> Span | None:
        """The next positions to fetch, with at most `bytes_max` of files; None for now if that is far enough ahead."""
        while self.ahead < len(self.plan) and not self._is_far_enough():
            first = self.ahead
            end = int(self.plan.group_bounds()[self.plan.group_of(first) + 1])
            by_reader = [(reader, reader.positions(first, end)) for reader in self._readers]
            positions = np.unique(np.concatenate([positions for _, positions in by_reader]))
            if len(positions):
                nodes = self.plan.nodes_at(positions).astype(np.int64)
                charges = np.cumsum(self.charge(nodes))
                if charges[-1] > bytes_max:
                    # Equal parts, rather than a large one and a rest.
                    parts = -(-int(charges[-1]) // max(bytes_max, 1))
                    count = max(int(np.searchsorted(charges, charges[-1] / parts, side="right")), 1)
                    if count < len(positions):
                        end = int(positions[count])
                        positions, nodes = positions[:count], nodes[:count]
                tripwires = self._set_tripwires(positions, nodes, by_reader)
                self._spans.append(Span(first, end, positions, nodes, tripwires))
                self.ahead = end
                return self._spans[-1]
            self.ahead = end
        return None

    def _is_far_enough(self) -> bool:
        held = [span for span in self._spans if span.end > self.position]
        if len(held) < 2:
            return False
        rate = self.rate()
        return rate is None or (self.ahead - self.position) > rate * AHEAD_S

    def _set_tripwires(
        self, positions: Numbers, nodes: Numbers, by_reader: list[tuple[_Reader, Numbers]]
    ) -> Numbers:
        found: list[int] = []
        for reader, of_reader in by_reader:
            places = np.searchsorted(positions, of_reader[of_reader <= positions[-1]])
            if len(places):
                every = min(max(len(places) // TRIPWIRES_MIN, 1), TRIPWIRE_EVERY)
                for place in {*places[::every].tolist(), int(places[-1])}:
                    self._wires[int(nodes[place])] = _Wire(reader, int(positions[place]))
                    found.append(int(nodes[place]))
        return np.array(sorted(found), np.int64)

    def rate(self) -> float | None:
        """Positions per second that the fastest reader moves on, None as long as nobody knows."""
        rates = [
            (reader.position - reader.started_at) / (reader.seen_s - reader.started_s)
            for reader in self._readers
            if reader.started_s is not None and reader.seen_s > reader.started_s
        ]
        return max(rates, default=None)

    # -- behind the readers --------------------------------------------------------------------------------

    def noticed(self, node: int) -> bool:
        """A file was read through the daemon. True if it is a tripwire that tells of progress."""
        wire = self._wires.get(node)
        if wire is None:
            return False
        reader = wire.reader
        reader.seen_s = self.clock()
        if reader.started_s is None:
            reader.started_s, reader.started_at = reader.seen_s, wire.position
        if wire.position < reader.position:
            return False
        reader.position = wire.position + 1
        if reader.share.count_before(reader.position) == len(reader.share):
            reader.position = len(self.plan)
        return True

    def passed(self) -> list[Numbers]:
        """Files that all readers have done with, and that were not returned before."""
        done: list[Numbers] = []
        limit = self.position
        while self._spans and self._spans[0].first < limit:
            span = self._spans[0]
            edge = min(limit - min(LAG_MAX, (span.end - span.first) // 4), span.end)
            if self.is_finished:
                edge = span.end
            since, until = np.searchsorted(span.positions, (self.behind, edge)).tolist()
            if until > since:
                done.append(span.nodes[since:until])
            self.behind = max(self.behind, edge)
            if edge < span.end:
                break
            self._spans.pop(0)
            for node in span.tripwires.tolist():
                self._wires.pop(node, None)
        return done

    def given_up(self) -> list[Numbers]:
        """All that is still held; the window is not to be used afterwards."""
        nodes = [span.nodes[np.searchsorted(span.positions, self.behind) :] for span in self._spans]
        self._spans.clear()
        self._wires.clear()
        return nodes
