import numpy as np
import pytest

from dieselfs.prefetch.extent_table import ExtentTable
from dieselfs.telemetry.registry import Registry
from dieselfs_client.prefetch.tripwires import TRIPWIRE_EVERY_MAX, TRIPWIRE_EVERY_MIN, HitRate, Tripwires
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries

FILES = 6000


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%04d" % n, 0o100644, 0, b"%04d" % n * (n % 3)) for n in range(FILES)]
    entries.append(TreeEntry(b"large", 0o100644, 0, bytes(5000)))
    return pack_entries(entries, chunk_bytes=400)


def test_they_are_rare_and_depend_on_nothing_but_the_snapshot(packed: PackedDataset) -> None:
    tripwires, nodes = Tripwires(packed.snapshot), np.arange(1, len(packed.snapshot))
    assert TRIPWIRE_EVERY_MIN <= tripwires.every <= TRIPWIRE_EVERY_MAX
    chosen = nodes[tripwires.usual(nodes)]
    assert 0.5 / tripwires.every < len(chosen) / (FILES * 2 / 3) < 2 / tripwires.every
    again = Tripwires(packed.snapshot)
    assert nodes[::-1][again.usual(nodes[::-1])].tolist() == chosen[::-1].tolist()


def test_empty_files_are_none(packed: PackedDataset) -> None:
    tripwires = Tripwires(packed.snapshot)
    nodes = np.array(
        [packed.snapshot.require(name) for name in (b"0000", b"0001", b"0002", b"0003", b"large")]
    )
    assert tripwires.could_be(nodes).tolist() == [False, True, True, False, True]
    every = np.arange(1, len(packed.snapshot))
    assert tripwires.could_be(every[tripwires.usual(every)]).all()


def test_of_one_that_spans_chunks_nothing_is_held_but_it_is_sprung(packed: PackedDataset) -> None:
    tripwires = Tripwires(packed.snapshot)
    node = packed.snapshot.require(b"large")
    tripwires.add(np.array([node]))
    extents = ExtentTable(packed.snapshot).of_files(np.array([node]))
    first = extents[np.array([0])]
    tripwires.hold(first, memoryview(bytes(5000)), np.array([0]))
    assert tripwires.held(node) is None and tripwires.held_bytes == 0
    tripwires.spring(node)
    assert tripwires.sprung().tolist() == [node]
    tripwires.release(np.array([node]))
    tripwires.spring(node)
    assert not len(tripwires.sprung())


def test_one_that_is_added_stays_until_it_is_let_go(packed: PackedDataset) -> None:
    tripwires = Tripwires(packed.snapshot)
    node = next(n for n in range(1, FILES) if not tripwires.usual(np.array([n]))[0])
    nodes = np.array([node])
    assert not tripwires.among(nodes)[0]
    tripwires.add(nodes)
    assert tripwires.among(nodes)[0]
    tripwires.release(nodes)
    assert not tripwires.among(nodes)[0]


def test_bytes_are_held_and_a_reader_springs_it(packed: PackedDataset) -> None:
    tripwires = Tripwires(packed.snapshot)
    node = packed.snapshot.require(b"0002")
    nodes = np.array([node])
    tripwires.add(nodes)
    extents = ExtentTable(packed.snapshot).of_files(nodes)
    tripwires.spring(node)
    assert tripwires.held(node) is None and not len(tripwires.sprung())
    tripwires.hold(extents, memoryview(b"..00020002.."), np.array([2]))
    assert bytes(tripwires.held(node) or b"") == b"00020002"
    assert tripwires.held_bytes == 8
    tripwires.spring(node)
    assert tripwires.sprung().tolist() == [node]
    assert not len(tripwires.sprung()), "each is dropped from the page cache once"
    tripwires.release(nodes)
    assert tripwires.held(node) is None and tripwires.held_bytes == 0


def test_what_nobody_asked_for_since_the_reader_began_was_in_the_page_cache() -> None:
    metrics = Registry()
    reads = HitRate(np.arange(10) * 100, metrics)
    reads.requested(1)  # before anybody reads by plan
    first = reads.begin()
    reads.requested(2)
    reads.requested(2)
    second = reads.begin()
    reads.requested(3)
    reads.passed(first, np.array([1, 2, 3, 4]))
    assert metrics.as_dict()["page_cache"] == {
        "planned_files": 4,
        "hits": 2,
        "hit_bytes": 500,  # of the files 1 and 4
        "misses": 2,
    }
    reads.passed(second, np.array([2, 3]))
    assert metrics.as_dict()["page_cache"] == {
        "planned_files": 6,
        "hits": 3,
        "hit_bytes": 700,
        "misses": 3,
    }
    reads.passed(second, np.empty(0, np.int64))
    assert metrics.as_dict()["page_cache"]["planned_files"] == 6
