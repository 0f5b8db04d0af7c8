"""The part of a plan that a node holds: what is to be fetched next, and what its readers have done with. No I/O.

The readers of a plan (the ranks of one node) read the same order, each its own share. What they will read is cut into
*spans*, stretches of positions that never reach over the end of a group; while one is read, the next is fetched (double
buffering, as the paper on asynchronous I/O has it, section III).

Reads from the page cache are invisible. So one file in so many is a *tripwire*: it never stays in the page cache, and the
read for it tells how far its reader has come. Which files these are depends on the snapshot alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dieselfs.meta.snapshot import Snapshot
from dieselfs.shuffle.order import mix
from dieselfs.shuffle.plan import Plan, Share

Numbers = npt.NDArray[np.int64]

TRIPWIRE_EVERY_MAX = 512
TRIPWIRE_EVERY_MIN = 64
"""One file in so many is read through the daemon, which costs as much as reading some ten files from the page cache."""
TRIPWIRE_CHUNKS = 4
"""Within these bounds, there is one for so many chunks."""
LAG_MAX = 4096
"""Readers in several processes do not read in exact order: what is so many positions behind the furthest, but no more
than a quarter of a span, may still be wanted.
"""
AHEAD_S = 30.0
"""What would be read later than this from now is not fetched yet, beyond two spans: some kernels take back pages that
nobody touched for about a minute."""


@dataclass(frozen=True, eq=False, slots=True)
class Span:
    """Some positions of a plan, and the files that the node's readers read at them."""

    first: int
    end: int
    positions: Numbers
    """Ascending: those that the node's readers read."""
    nodes: Numbers
    """The files at `positions`."""


@dataclass(eq=False, slots=True)
class _Reader:
    share: Share
    position: int
    """All before it that is in the share has been read, as far as is known."""
    started_s: float | None = None
    started_at: int = 0
    seen_s: float = 0.0
    last_wire: int = -1
    """The furthest position that it will be heard of from."""

    def positions(self, first: int, end: int) -> Numbers:
        """What it is still to read of the positions from `first` up to `end`."""
        count_before = self.share.count_before
        return self.share.positions(count_before(max(first, self.position)), count_before(end))


@dataclass(eq=False, slots=True)
class _Wire:
    """Which reader a tripwire belongs to, and at which position."""

    reader: _Reader
    position: int


class Tripwires:
    """Which files of a snapshot are tripwires: about one in `every`, of those that are not empty and lie in one chunk."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._counts = snapshot.column("counts")
        self._sizes = snapshot.column("sizes")
        files_per_chunk = snapshot.header.files // max(snapshot.chunk_count, 1)
        self.every = min(max(TRIPWIRE_CHUNKS * files_per_chunk, TRIPWIRE_EVERY_MIN), TRIPWIRE_EVERY_MAX)

    def among(self, nodes: Numbers) -> npt.NDArray[np.bool_]:
        """Which of some files are tripwires."""
        is_chosen = mix(nodes.astype(np.uint64)) % np.uint64(self.every) == 0
        chosen: npt.NDArray[np.bool_] = is_chosen & (self._counts[nodes] == 1) & (self._sizes[nodes] > 0)
        return chosen


@dataclass(eq=False, slots=True)
class PlanWindow:
    """One plan and its readers on this node. `charge` tells what each of some files takes; `clock` is in seconds."""

    plan: Plan
    tripwires: Tripwires
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
        """No reader will be heard of again: each has come to its last tripwire."""
        return self.ahead >= len(self.plan) and all(
            reader.position > reader.last_wire for reader in self._readers
        )

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
                self._watch(positions, nodes, by_reader)
                self._spans.append(Span(first, end, positions, nodes))
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

    def _watch(self, positions: Numbers, nodes: Numbers, by_reader: list[tuple[_Reader, Numbers]]) -> None:
        """Remember whose progress the tripwires at some positions tell of."""
        places = np.flatnonzero(self.tripwires.among(nodes))
        for reader, of_reader in by_reader:
            for place in places[np.isin(positions[places], of_reader)].tolist():
                self._wires[int(nodes[place])] = _Wire(reader, int(positions[place]))
                reader.last_wire = max(reader.last_wire, int(positions[place]))

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
        return True

    def passed(self) -> list[Numbers]:
        """Files that all readers have done with, and that were not returned before."""
        done: list[Numbers] = []
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
            for node in span.nodes[self.tripwires.among(span.nodes)].tolist():
                self._wires.pop(node, None)
        return done

    def given_up(self) -> list[Numbers]:
        """All that is still held; the window is not to be used afterwards."""
        nodes = [span.nodes[np.searchsorted(span.positions, self.behind) :] for span in self._spans]
        self._spans.clear()
        self._wires.clear()
        return nodes
