"""A model of the books: sets of files for each plan, against arrays of extents."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dieselfs.cluster.warmth import Warmth
from dieselfs.prefetch.extent_table import ExtentTable
from dieselfs_client.memory.budget import Allotment
from dieselfs_client.prefetch.budget import PUSHED_AGAIN_MAX_S, PUSHED_AGAIN_S, PrefetchBudget
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries

FILES = 24
FILES_PER_CHUNK = 4
CHUNKS = FILES // FILES_PER_CHUNK
PAGE = 4096
PLANS = 3
KEPT_CHUNKS = 2
WINDOW_FILES = 9


def packed() -> PackedDataset:
    entries = [TreeEntry(b"%02d" % n, 0o100644, 0, bytes(PAGE)) for n in range(FILES)]
    return pack_entries(entries, chunk_bytes=FILES_PER_CHUNK * PAGE)


SNAPSHOT = packed().snapshot
TABLE = ExtentTable(SNAPSHOT)
FIRST = SNAPSHOT.require(b"00")
FILE_SETS = st.sets(st.integers(0, FILES - 1), min_size=1, max_size=8)


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def budget(clock: Clock | None = None) -> PrefetchBudget:
    allotment = Allotment(0, 0, 0, WINDOW_FILES * PAGE, KEPT_CHUNKS * FILES_PER_CHUNK * PAGE)
    return PrefetchBudget(TABLE, allotment, clock or Clock())


def nodes(files: set[int]) -> np.ndarray:
    return np.array(sorted(files), np.int64) + FIRST


class Books(RuleBasedStateMachine):
    """Plans hold and release files; what is to be fetched arrives at once, later, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.books = budget()
        self.held: list[set[int]] = [set() for _ in range(PLANS)]
        self.pinned: set[int] = set()
        self.prefetcher: set[int] = set()
        self.on_their_way: set[int] = set()

    def by_plans(self) -> set[int]:
        return set().union(*self.held)

    @rule(plan=st.integers(0, PLANS - 1), files=FILE_SETS)
    def hold(self, plan: int, files: set[int]) -> None:
        files = files - self.held[plan]
        if not files:
            return
        fetched = self.books.hold(TABLE.of_files(nodes(files)))
        expected = {f for f in files if f not in self.by_plans() and f not in self.prefetcher}
        assert set((fetched.nodes - FIRST).tolist()) == expected
        self.held[plan] |= {f for f in files if f // FILES_PER_CHUNK not in self.pinned}
        self.books.charge(fetched[~np.isin(fetched.chunks, list(self.pinned))])
        self.on_their_way |= expected

    @rule(plan=st.integers(0, PLANS - 1), files=FILE_SETS)
    def release(self, plan: int, files: set[int]) -> None:
        files = files & self.held[plan]
        dropped = self.books.release(TABLE.of_files(nodes(files)))
        self.held[plan] -= files
        expected = (files - self.by_plans()) & self.prefetcher
        assert set((dropped.nodes - FIRST).tolist()) == expected
        self.prefetcher -= expected

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        if self.on_their_way:
            files = data.draw(st.sets(st.sampled_from(sorted(self.on_their_way)), min_size=1))
            self.on_their_way -= files
            extents = TABLE.of_files(nodes(files))
            new = extents[self.books.put(extents)]
            wanted = {f for f in files if f in self.by_plans() or f // FILES_PER_CHUNK in self.pinned}
            assert set((new.nodes - FIRST).tolist()) == wanted - self.prefetcher
            self.prefetcher |= wanted

    @rule(chunk=st.integers(0, CHUNKS - 1))
    def keep(self, chunk: int) -> None:
        has_room = chunk in self.pinned or len(self.pinned) < KEPT_CHUNKS
        assert self.books.pin(chunk) == has_room
        if has_room:
            self.pinned.add(chunk)
            files = set(range(chunk * FILES_PER_CHUNK, (chunk + 1) * FILES_PER_CHUNK))
            for held in self.held:
                held -= files

    @invariant()
    def memory_adds_up(self) -> None:
        assert self.books.pinned_bytes == len(self.pinned) * FILES_PER_CHUNK * PAGE
        assert 0 <= self.books.window_bytes <= len(self.by_plans()) * PAGE
        assert self.books.window_bytes >= len(self.prefetcher & self.by_plans()) * PAGE
        assert self.books.has_room(PAGE) == (
            not self.books.window_bytes or self.books.window_bytes + PAGE <= WINDOW_FILES * PAGE
        )


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=40)


def test_what_a_plan_has_done_with_is_not_counted_nor_fetched() -> None:
    books = budget()
    wanted = books.hold(TABLE.of_files(nodes({0, 1, 2})))
    books.release(TABLE.of_files(nodes({0})))
    assert (books.charge(wanted).nodes - FIRST).tolist() == [1, 2]
    assert books.window_bytes == 2 * PAGE


def test_what_another_plan_waits_for_room_for_is_fetched_by_who_is_first() -> None:
    books, extents = budget(), TABLE.of_files(nodes({0, 1}))
    first, second = books.hold(extents), books.hold(extents)
    assert len(books.charge(second)) == 2 and not len(books.charge(first))
    assert not len(books.hold(extents)), "it is on its way"


def test_a_file_that_is_held_twice_is_fetched_once_and_dropped_at_the_second_release() -> None:
    books = budget()
    first, second = TABLE.of_files(np.array([5, 5, 6]) + FIRST), TABLE.of_files(np.array([5]) + FIRST)
    wanted = books.hold(first)
    assert wanted.nodes.tolist() == [5 + FIRST, 6 + FIRST]
    books.put(books.charge(wanted))
    assert books.window_bytes == 2 * PAGE
    assert not len(books.hold(second))
    assert not len(books.release(second))
    assert books.release(first).nodes.tolist() == [5 + FIRST, 6 + FIRST]
    assert books.window_bytes == 0


def test_what_the_kernel_took_back_is_fetched_again() -> None:
    books, files = budget(), nodes({0, 1})
    extents = TABLE.of_files(files)
    books.hold(extents)
    assert books.put(extents).all() and not books.put(extents).any()
    books.lose(extents)
    assert books.put(extents).all()


@pytest.mark.parametrize("is_pinned", [True, False])
def test_hits_are_what_is_kept_and_there(is_pinned: bool) -> None:
    books = budget()
    extents = TABLE.of_chunk(0)
    assert not is_pinned or books.pin(0)
    books.hold(extents)
    assert books.hit_bytes(extents) == 0
    books.put(extents)
    assert books.hit_bytes(extents) == (len(extents) * PAGE if is_pinned else 0)


def test_a_chunk_that_was_never_pushed_is_due() -> None:
    books = budget()
    assert books.is_due(0)
    assert not books.was_just_pushed(0)
    assert not books.is_pushed(0)
    assert not books.push(0), "for the first time"
    assert books.is_pushed(0)
    assert not books.is_pushed(1)


def test_each_push_takes_twice_as_long_until_the_next() -> None:
    clock = Clock()
    books, waited_s = budget(clock), []
    books.push(0)
    for _ in range(9):
        began_s = clock.now_s
        while not books.is_due(0):
            clock.now_s += PUSHED_AGAIN_S / 2
        waited_s.append(clock.now_s - began_s)
        assert books.push(0), "the kernel has taken it back"
    assert waited_s[:4] == [PUSHED_AGAIN_S * factor for factor in (1, 2, 4, 8)]
    assert waited_s[-2:] == [PUSHED_AGAIN_MAX_S, PUSHED_AGAIN_MAX_S]


def test_what_comes_anyway_is_pushed_again_after_a_moment() -> None:
    clock = Clock()
    books = budget(clock)
    for _ in range(5):
        books.push(0)
        assert books.was_just_pushed(0)
        clock.now_s += PUSHED_AGAIN_S
        assert not books.was_just_pushed(0), "however often it was pushed"


def test_what_a_daemon_before_has_pushed_is_there_and_due() -> None:
    books = budget()
    books.restore(2)
    assert books.is_pushed(2)
    assert books.is_due(2), "its pages may be gone since"


def test_warmth_counts_pages_and_leaves_out_what_is_damaged() -> None:
    chunk = FILES_PER_CHUNK * PAGE
    books = budget()
    assert books.warmth(()) == Warmth(0, KEPT_CHUNKS * chunk)
    books.push(0)
    assert books.warmth(()) == Warmth(chunk, KEPT_CHUNKS * chunk)
    damaged = set(range(1, CHUNKS))
    assert books.warmth(damaged) == Warmth(chunk, chunk, CHUNKS - 1)
    books.restore(1)
    assert books.warmth(damaged - {1}).share == 1, "what would come does not fit"
