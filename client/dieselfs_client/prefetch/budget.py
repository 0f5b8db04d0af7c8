"""The prefetch budget: which extents are stored in the page cache, for which reason, and their memory. No I/O.

An extent is stored for one of two reasons: its chunk is *pinned*, or plans *hold* it for a while. Never for both.
*Kept* files stay, too, in the memory for pinned chunks, of which there are then none.
The kernel reclaims pages without notice: a look at the page cache, or a read for a file that was stored, shows it. It
takes the oldest first, so the pages of one push go together, and a few extents tell of all that were pushed with them.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers, among, distinct
from dieselfs.cluster.warmth import Warmth
from dieselfs.prefetch.extent_table import Extents, ExtentTable
from dieselfs_client.memory.budget import Allotment

PUSHED_AGAIN_S = 1.0
PUSHED_AGAIN_MAX_S = 60.0
"""The first and the longest pause before a chunk is fetched to be pushed again. The pause doubles each time: if the
kernel reclaims pages at once, pushes have no benefit. A chunk of which much is requested is fetched sooner.
"""
SAMPLES_PER_CHUNK = 4
"""Extents of a chunk that are looked at: the first, the last, and some between. Each takes about 15 us."""
CHUNKS_AT_ONCE = 256
"""Chunks that are looked at with one order. If nothing is lost in as many, spread over the memory, others are not
looked at.
"""
LOOK_AGAIN_S = 1.0
"""The shortest time between two looks without a new plan."""


@dataclass(frozen=True, slots=True)
class _Push:
    """The time of the last push of a pinned chunk, and the pause until the next one."""

    at_s: float
    again_after_s: float


class PrefetchBudget:
    """Bytes are counted in whole pages, as the page cache takes them; `clock` is in seconds. `changed` is called when
    `window_bytes` has changed.
    """

    def __init__(
        self,
        table: ExtentTable,
        allotment: Allotment,
        clock: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        chunks, extents = table.snapshot.chunk_count, len(table.snapshot.column("extent_chunks"))
        self.pinned_bytes = 0
        self.kept_bytes = 0
        self.window_bytes = 0
        self._table = table
        self._allotment = allotment
        self._clock = clock
        self._changed = changed
        self._dataset_page_bytes = table.total_page_bytes
        self._is_pinned = np.zeros(chunks, np.bool_)
        self._is_pushed = np.zeros(chunks, np.bool_)  # by this daemon or an earlier one
        self._pushes: dict[int, _Push] = {}  # of this daemon
        self._is_stored = np.zeros(extents, np.bool_)
        self._is_charged = np.zeros(extents, np.bool_)
        self._is_kept = np.zeros(extents, np.bool_)
        self._has_kept = False  # so no chunk is pinned any more
        self._holders = np.zeros(extents, np.uint16)

    # -- pinned chunks -------------------------------------------------------------------------------------

    def is_pinned(self, chunk: int) -> bool:
        return bool(self._is_pinned[chunk])

    def pinned(self) -> list[int]:
        """The pinned chunks."""
        chunks: list[int] = np.flatnonzero(self._is_pinned).tolist()
        return chunks

    def can_pin(self, chunk: int) -> bool:
        """Whether `pin` would take it."""
        if self._is_pinned[chunk] or self._has_kept or self.pinned_bytes >= self._allotment.pinned:
            return bool(self._is_pinned[chunk])
        return self.pinned_bytes + int(self._table.chunk_page_bytes[chunk]) <= self._allotment.pinned

    def pin(self, chunk: int) -> bool:
        """Pin a chunk if there is room; returns whether it is pinned now."""
        if self._is_pinned[chunk]:
            return True
        if not self.can_pin(chunk):
            return False
        extents = self._table.of_chunk(chunk)
        self.pinned_bytes += extents.page_bytes()
        self._uncharge(extents)
        self._holders[extents.numbers] = 0
        self._is_pinned[chunk] = True
        return True

    # -- kept files ----------------------------------------------------------------------------------------

    def unpin(self, chunks: list[int], kept: Extents) -> Extents:
        """Pin no chunk from now on, and these, which are all that were, no longer. Keep those of their extents that are
        in `kept`; returns the others, to be dropped.
        """
        self._has_kept, self.pinned_bytes = True, 0
        self._is_pinned[chunks] = self._is_pushed[chunks] = False
        if not chunks:
            return self._table.of_numbers(np.empty(0, np.int64))
        extents = Extents.joined([*map(self._table.of_chunk, chunks)])
        is_kept = among(extents.numbers, kept.numbers)
        self.keep(extents[is_kept])
        others = extents[~is_kept]
        others = others[self._is_stored[others.numbers]]
        self._is_stored[others.numbers] = False
        return others

    def keep(self, extents: Extents) -> None:
        """Keep extents, given once each, whether or not plans hold them."""
        extents = extents[~self._is_kept[extents.numbers]]
        self._uncharge(extents)
        self._is_kept[extents.numbers] = True
        self.kept_bytes += extents.page_bytes()

    def restore_stored(self, extents: Extents) -> None:
        """Note that an earlier daemon has stored kept extents."""
        self._is_stored[extents.numbers] = True

    def unkeep(self, extents: Extents) -> Extents:
        """Keep extents, given once each, no longer; returns those to drop, which no plan holds."""
        extents = extents[self._is_kept[extents.numbers]]
        self._is_kept[extents.numbers] = False
        self.kept_bytes -= extents.page_bytes()
        extents = extents[self._is_stored[extents.numbers]]
        is_held = self._holders[extents.numbers] > 0
        held, others = extents[is_held], extents[~is_held]
        self._is_charged[held.numbers] = True
        self.window_bytes += held.page_bytes()
        self._changed()
        self._is_stored[others.numbers] = False
        return others

    # -- pushes of pinned chunks ---------------------------------------------------------------------------

    def pushed(self) -> Numbers:
        """The chunks that were pushed, by this daemon or an earlier one, and not lost."""
        return np.flatnonzero(self._is_pushed)

    def is_pushed(self, chunk: int) -> bool:
        """Whether a chunk was pushed, by this daemon or an earlier one, and not lost."""
        return bool(self._is_pushed[chunk])

    def is_due(self, chunk: int) -> bool:
        """Whether to fetch and push all of a chunk because a reader waits for a file of it."""
        push = self._pushes.get(chunk)
        return push is None or self._clock() >= push.at_s + push.again_after_s

    def was_pushed(self, chunk: int) -> bool:
        """Whether this daemon has pushed a chunk."""
        return chunk in self._pushes

    def will_stay(self, chunk: int) -> bool:
        """Whether all of a chunk is worth having for a few small parts of it: the whole dataset will be pinned, and the
        kernel has not just reclaimed the chunk.
        """
        return self._allotment.pinned >= self._dataset_page_bytes and self.is_due(chunk)

    def was_just_pushed(self, chunk: int) -> bool:
        """Whether it is too soon to push a chunk that was fetched for a reader."""
        push = self._pushes.get(chunk)
        return push is not None and self._clock() < push.at_s + PUSHED_AGAIN_S

    def push(self, chunk: int) -> bool:
        """Note a push; returns whether this daemon pushed the chunk before, so that the kernel has reclaimed pages."""
        before = self._pushes.get(chunk)
        again_after_s = min(2 * before.again_after_s, PUSHED_AGAIN_MAX_S) if before else PUSHED_AGAIN_S
        self._pushes[chunk] = _Push(self._clock(), again_after_s)
        self._is_pushed[chunk] = True
        return before is not None

    def restore(self, chunk: int) -> None:
        """Note that an earlier daemon pushed a chunk, at an unknown time."""
        self._is_pushed[chunk] = True

    def warmth(self, damaged: Collection[int]) -> Warmth:
        """The pushed part of the bytes that can be pinned."""
        page_bytes = self._table.chunk_page_bytes
        is_missing = ~self._is_pushed
        is_missing[np.fromiter(damaged, np.int64)] = False
        pushed_bytes = int(page_bytes[self._is_pushed].sum())
        most_bytes = 0 if self._has_kept else self._allotment.pinned
        return Warmth.of(pushed_bytes, most_bytes, page_bytes[is_missing], len(damaged))

    # -- for plans ---------------------------------------------------------------------------------------

    def hit_bytes(self, extents: Extents) -> int:
        """The bytes of these extents that are pinned or kept, and stored."""
        stays = self._is_pinned[extents.chunks] | self._is_kept[extents.numbers]
        return extents[stays & self._is_stored[extents.numbers]].page_bytes()

    def hold(self, extents: Extents) -> Extents:
        """One more plan holds extents, as often as they are given; returns those that are neither stored nor in flight
        for another plan.
        """
        np.add.at(self._holders, extents.numbers[~self._is_pinned[extents.chunks]], 1)
        return self.missing(extents)

    def missing(self, extents: Extents) -> Extents:
        """The extents that are neither stored nor in flight, each once."""
        extents = extents[self._is_missing(extents)]
        return extents[_counted(extents)[0]]

    def _is_missing(self, extents: Extents) -> npt.NDArray[np.bool_]:
        is_there: npt.NDArray[np.bool_] = self._is_charged[extents.numbers] | self._is_stored[extents.numbers]
        return ~is_there

    def has_room(self, page_bytes: int) -> bool:
        """Whether the window has room for this; an empty window always has."""
        return not self.window_bytes or self.window_bytes + page_bytes <= self._allotment.window

    def charge(self, extents: Extents) -> Extents:
        """Count extents that a plan is about to fetch. Returns them without those that were released, and those that
        another plan has begun to fetch since they were held.
        """
        extents = extents[(self._holders[extents.numbers] > 0) & self._is_missing(extents)]
        charged = extents[~self._is_kept[extents.numbers]]  # the memory of others is counted
        self._is_charged[charged.numbers] = True
        self.window_bytes += charged.page_bytes()
        self._changed()
        return extents

    def release(self, extents: Extents) -> Extents:
        """A plan no longer needs these extents, as often as they are given; returns those to drop, which no plan holds,
        each once.
        """
        extents = extents[self._holders[extents.numbers] > 0]
        firsts, counts = _counted(extents)
        extents = extents[firsts]
        self._holders[extents.numbers] -= np.minimum(counts, self._holders[extents.numbers]).astype(np.uint16)
        extents = extents[(self._holders[extents.numbers] == 0) & ~self._is_kept[extents.numbers]]
        self._uncharge(extents)
        extents = extents[self._is_stored[extents.numbers]]
        self._is_stored[extents.numbers] = False
        return extents

    def _uncharge(self, extents: Extents) -> None:
        extents = extents[self._is_charged[extents.numbers]]
        self._is_charged[extents.numbers] = False
        self.window_bytes -= extents.page_bytes()
        self._changed()

    # -- stored extents ------------------------------------------------------------------------------------

    def is_wanted(self, extents: Extents) -> npt.NDArray[np.bool_]:
        """Which of these extents are pinned, kept, or held by a plan."""
        is_wanted: npt.NDArray[np.bool_] = (
            self._is_pinned[extents.chunks]
            | self._is_kept[extents.numbers]
            | (self._holders[extents.numbers] > 0)
        )
        return is_wanted

    def put(self, extents: Extents) -> npt.NDArray[np.bool_]:
        """Note extents that have arrived; returns which of them to store: those that are wanted and not stored yet."""
        is_new: npt.NDArray[np.bool_] = self.is_wanted(extents) & ~self._is_stored[extents.numbers]
        self._is_stored[extents.numbers[is_new]] = True
        return is_new

    def is_stored(self, extents: Extents) -> npt.NDArray[np.bool_]:
        """Which of these extents were stored, and not dropped."""
        return self._is_stored[extents.numbers]

    def has_first(self, node: int) -> bool:
        """Whether the first extent of a file was stored, and not dropped."""
        numbers = self._table.numbers(node)
        return bool(numbers) and bool(self._is_stored[numbers.start])

    def lose(self, extents: Extents) -> None:
        """The kernel has reclaimed the pages of extents, which are about to be stored again."""
        self._is_stored[extents.numbers] = False

    def reclaim(self, extents: Extents) -> None:
        """The kernel has reclaimed the pages of extents. Of a pinned chunk, all are lost, and it is not pushed."""
        pinned = distinct(extents.chunks[self._is_pinned[extents.chunks]])
        extents = Extents.joined([extents, *map(self._table.of_chunk, pinned.tolist())])
        extents = extents[self._is_stored[extents.numbers]]
        self._uncharge(extents)
        self._is_stored[extents.numbers] = False
        self._is_pushed[pinned] = False


def _counted(extents: Extents) -> tuple[Numbers, Numbers]:
    """The places at which each extent comes first, ascending, and how often it comes."""
    _, firsts, counts = np.unique(extents.numbers, return_index=True, return_counts=True)
    order = np.argsort(firsts)
    return firsts[order], counts[order]


def sampled(extents: Extents) -> Extents:
    """Up to SAMPLES_PER_CHUNK extents of each chunk, at equal distances: those to look at for reclaimed pages."""
    order = np.lexsort((extents.offsets, extents.chunks))
    firsts = np.flatnonzero(np.diff(extents.chunks[order], prepend=-1))
    lasts = np.append(firsts[1:], len(order))[: len(firsts)] - 1
    steps = np.arange(SAMPLES_PER_CHUNK)[:, None]
    places = firsts + (lasts - firsts) * steps // (SAMPLES_PER_CHUNK - 1)
    return extents[order[distinct(places)]]


def spread(chunks: Numbers, turn: int) -> Numbers:
    """CHUNKS_AT_ONCE of these chunks at equal distances; others at the next `turn`."""
    step = -(-len(chunks) // CHUNKS_AT_ONCE)
    return chunks[turn % step :: step] if step else chunks
