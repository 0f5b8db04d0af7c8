"""What is loaded ahead of readers, with real threads and a cache without sockets."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from dieselfs.cache.look_ahead import LookAhead
from dieselfs.errors import Unavailable
from dieselfs.shuffle.listed import ListedPlan
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.sources.interface import Arrival, Wanted
from dieselfs.telemetry.registry import Registry
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries

FILES = 2000
FILES_PER_CHUNK = 20
FILE_BYTES = 100
GROUP_CHUNKS = 5
GROUP_FILES = GROUP_CHUNKS * FILES_PER_CHUNK
MUCH_BYTES = FILES * FILE_BYTES
BATCH = 5
RANKS = 4
RANK_FILES = GROUP_FILES // RANKS
TIMEOUT_S = 60.0


def content(number: int) -> bytes:
    return b"%04d" % number * (FILE_BYTES // 4)


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%04d" % n, 0o100644, 0, content(n)) for n in range(FILES)]
    return pack_entries(entries, chunk_bytes=FILES_PER_CHUNK * FILE_BYTES)


class Chunks:
    """A cache that holds what it is told to; other processes share nothing but `shared`."""

    def __init__(self, packed: PackedDataset) -> None:
        self.source = packed.source()
        self.changed = threading.Condition()
        self.held: set[int] = set()
        self.shared: set[int] = set()
        self.expected: set[int] = set()
        self.reserved_bytes = self.reserved_max_bytes = 0
        self.fails_with: Exception | None = None
        self.gate = threading.Event()  # requests pass when it is set
        self.gate.set()

    fetches = 0

    def bring(self, chunk: int, wanted_bytes: int, is_whole: bool, is_shared_plan: bool) -> bool:
        assert self.gate.wait(TIMEOUT_S)
        if self.fails_with is not None:
            raise self.fails_with
        is_held = is_whole or chunk in self.shared
        with self.changed:
            if is_held:
                self.held.add(chunk)
            self.changed.notify_all()
        return is_held

    def expect(self, chunks: Iterable[int], is_expected: bool) -> None:
        (self.expected.update if is_expected else self.expected.difference_update)(chunks)

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        """Two owners."""
        return [owned for parity in (0, 1) if (owned := [chunk for chunk in chunks if chunk % 2 == parity])]

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        return self.source.fetch_many(wanted)

    def reserve(self, length_bytes: int) -> None:
        with self.changed:
            self.reserved_bytes += length_bytes
            self.reserved_max_bytes = max(self.reserved_bytes, self.reserved_max_bytes)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, TIMEOUT_S)


class Rig:
    def __init__(self, packed: PackedDataset, room_bytes: int = MUCH_BYTES) -> None:
        self.packed, self.chunks, self.metrics = packed, Chunks(packed), Registry()
        cache: Any = self.chunks
        self.look_ahead = LookAhead(packed.snapshot, cache, room_bytes, self.metrics)

    def share(self, world: int = RANKS, epoch: int = 0, seed: int = 1) -> Share:
        return Plan(self.packed.snapshot, PlanSpec(seed, epoch, GROUP_CHUNKS)).share(0, world)

    def read(self, share: Share) -> Iterator[list[bytes | None]]:
        """Read a share in batches; yields what was loaded ahead of each."""
        nodes, positions = share.nodes().tolist(), share.positions().tolist()
        for first in range(0, len(nodes), BATCH):
            self.look_ahead.follow(share, positions[first], is_reader=True)
            batch = nodes[first : first + BATCH]
            found = self.look_ahead.take_some(batch)
            wrong = {
                node: got
                for node, got in found.items()
                if got != content(int(self.packed.snapshot.name(node)))
            }
            assert not wrong
            yield [found.get(node) for node in batch]

    @property
    def failed(self) -> int:
        return int(self.metrics.as_dict()["look_ahead"]["failed"])


@pytest.fixture
def rig(packed: PackedDataset) -> Iterator[Rig]:
    rig = Rig(packed)
    yield rig
    rig.chunks.gate.set()
    rig.look_ahead.close()
    assert not [each for each in threading.enumerate() if each.name == "dieselfs-look-ahead"]


def test_files_of_a_shared_plan_wait_for_their_reader_and_are_fetched_once(rig: Rig) -> None:
    share = rig.share()
    batches = rig.read(share)
    next(batches)
    rig.chunks.wait(lambda: rig.chunks.reserved_bytes > 0)
    loaded = sum(batch.count(None) == 0 for batch in batches)
    assert loaded > 0
    fetched = [(extent.chunk, extent.offset) for extent in rig.chunks.source.fetched_extents]
    assert len(fetched) == len(set(fetched)) <= len(share)
    assert not rig.chunks.held and not rig.chunks.expected


def test_a_reader_waits_for_files_in_flight(rig: Rig) -> None:
    share = rig.share()
    rig.look_ahead.follow(share, 0, is_reader=True)
    rig.chunks.wait(lambda: rig.chunks.reserved_bytes > 0)  # the first group is planned
    first = share.nodes(0, RANK_FILES).tolist()
    assert set(rig.look_ahead.take_some(first)) == set(first)
    assert rig.look_ahead.take(first) is None, "each file is given once"
    assert not rig.look_ahead.take_some(first)


def test_all_files_at_once_or_none(rig: Rig) -> None:
    share = rig.share()
    rig.look_ahead.follow(share, 0, is_reader=True)
    rig.chunks.wait(lambda: rig.chunks.reserved_bytes > 0)
    first, rest = share.nodes(0, BATCH).tolist(), share.nodes(BATCH, RANK_FILES).tolist()
    assert set(rig.look_ahead.take_some(rest)) == set(rest)  # so all chunks of the group have arrived
    assert rig.look_ahead.take([*first, rest[0]]) is None
    assert rig.look_ahead.take(first) == [content(int(rig.packed.snapshot.name(node))) for node in first]


def test_files_are_taken_one_by_one(rig: Rig) -> None:
    share = rig.share()
    rig.look_ahead.follow(share, 0, is_reader=True)
    rig.chunks.wait(lambda: rig.chunks.reserved_bytes > 0)
    first, *rest = share.nodes(0, RANK_FILES).tolist()
    assert set(rig.look_ahead.take_some(rest)) == set(rest)
    assert rig.look_ahead.take_one(first) == content(int(rig.packed.snapshot.name(first)))
    assert rig.look_ahead.take_one(first) is None


def test_the_room_of_files_that_were_taken_is_given_back(rig: Rig) -> None:
    share = rig.share()
    for node, position in zip(share.nodes().tolist(), share.positions().tolist(), strict=True):
        rig.look_ahead.follow(share, position, is_reader=True)
        rig.look_ahead.take_some([node])
    assert rig.metrics.as_dict()["look_ahead"]["waiting_bytes"] >= 0
    rig.look_ahead.close()
    assert rig.chunks.reserved_max_bytes > rig.chunks.reserved_bytes == 0


def test_what_waits_keeps_to_the_room(packed: PackedDataset) -> None:
    room_bytes = RANK_FILES * FILE_BYTES
    rig = Rig(packed, room_bytes)
    try:
        batches = rig.read(rig.share())
        next(batches)
        rig.chunks.wait(lambda: rig.chunks.reserved_bytes > 0)
        for _ in batches:
            pass
        assert 0 < rig.chunks.reserved_max_bytes <= room_bytes
    finally:
        rig.look_ahead.close()
    assert rig.chunks.reserved_bytes == 0


def test_the_only_reader_of_a_plan_gets_whole_chunks(rig: Rig) -> None:
    share = rig.share(world=1)
    rig.look_ahead.follow(share, 0, is_reader=True)
    rig.chunks.wait(lambda: len(rig.chunks.held) >= 2 * GROUP_CHUNKS)
    assert not rig.chunks.source.fetched_extents


def test_for_other_processes_only_shared_memory_is_used(rig: Rig) -> None:
    rig.chunks.shared.update(range(0, 100, 2))
    share = rig.share()
    rig.look_ahead.follow(share, 0)
    rig.chunks.wait(lambda: len(rig.chunks.held) > 0)
    rig.look_ahead.close()
    assert rig.chunks.held <= rig.chunks.shared
    assert not rig.chunks.source.fetched_extents and not rig.chunks.expected


@pytest.mark.parametrize("error", [Unavailable("gone"), RuntimeError("a bug")])
def test_failures_are_no_errors_of_readers(rig: Rig, error: Exception) -> None:
    rig.chunks.fails_with = error
    loaded = list(rig.read(rig.share()))
    assert all(each is None for batch in loaded for each in batch)
    assert not rig.chunks.reserved_bytes


def test_damaged_files_are_left_to_their_reader(rig: Rig) -> None:
    rig.chunks.source.payloads[7] = bytearray(len(rig.chunks.source.payloads[7]))
    share = rig.share()
    for _ in rig.read(share):
        pass
    chunks = {extent.chunk for extent in rig.chunks.source.fetched_extents}
    assert (rig.failed > 0) == (7 in chunks)


def test_the_next_epoch_ends_the_one_before(rig: Rig) -> None:
    rig.look_ahead.follow(rig.share(), 0, is_reader=True)
    rig.chunks.wait(lambda: rig.chunks.reserved_bytes > 0)
    before = rig.share().nodes().tolist()
    other = rig.share(epoch=1)
    rig.chunks.gate.clear()
    rig.look_ahead.follow(other, len(other.plan), is_reader=True)
    rig.chunks.gate.set()
    assert not rig.look_ahead.take_some(before)


def test_closing_ends_threads_that_wait_for_a_request(rig: Rig) -> None:
    rig.chunks.gate.clear()
    rig.look_ahead.follow(rig.share(), 0, is_reader=True)
    opener = threading.Timer(0, rig.chunks.gate.set)
    opener.start()
    rig.look_ahead.close()
    opener.join()
    rig.look_ahead.follow(rig.share(), 0, is_reader=True)
    assert not rig.look_ahead.take_some(rig.share().nodes(0, BATCH).tolist())


def test_a_forked_child_follows_nothing(rig: Rig) -> None:
    share = rig.share()
    rig.look_ahead.follow(share, 0, is_reader=True)
    rig.chunks.wait(lambda: rig.chunks.reserved_bytes > 0)
    cache: Any = rig.chunks
    child = LookAhead(rig.packed.snapshot, cache, MUCH_BYTES, Registry())
    child.after_fork()
    assert not child.take_some(share.nodes(0, BATCH).tolist())


def test_slices_that_follow_each_other_are_followed(rig: Rig) -> None:
    paths = rig.share(world=1).paths
    rig.look_ahead.will_read(paths[:BATCH])
    rig.look_ahead.will_read(paths[5 * BATCH : 6 * BATCH])
    assert not [each for each in threading.enumerate() if each.name == "dieselfs-look-ahead"]
    rig.look_ahead.will_read(paths[6 * BATCH : 7 * BATCH])
    rig.chunks.wait(lambda: len(rig.chunks.held) > 0)


def test_the_order_that_was_read_last_keeps_its_address(rig: Rig) -> None:
    """Else the next order may get it, and would be taken for a continuation."""
    share = rig.share(world=1)
    last = weakref.ref(share)
    rig.look_ahead.will_read(share.paths[:BATCH])
    del share
    gc.collect()
    assert last() is not None


def test_paths_are_the_same_along_a_plan(rig: Rig) -> None:
    paths = rig.share(world=1).paths
    assert [*rig.look_ahead.along(paths[3:])] == [*paths[3:]]
    assert [*rig.look_ahead.along(paths[::2])] == [*paths[::2]]


def test_the_next_files_of_a_list_are_expected_at_once(rig: Rig) -> None:
    """Else a reader of the next batch, which has the same chunks, would fetch them whole."""
    rig.chunks.gate.clear()
    files = rig.share(world=1).nodes().astype(np.int64)
    rig.look_ahead.follow(ListedPlan(rig.packed.snapshot, files).share(), 0, is_reader=True)
    assert len(rig.chunks.expected) == FILES // FILES_PER_CHUNK // 2, "those of half of the memory"
