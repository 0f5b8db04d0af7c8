"""The tiered store keeps the contract, and returns what the slow tier has whatever happens to the fast one."""

import os
import random
import shutil
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import NotFound
from dieselfs.telemetry.registry import Registry
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.posix import PosixStore
from dieselfs_server.store.tiered import BLOCK_BYTES, BUSY_S, Copy, Fingerprint, TieredStore, TierIndex
from lab.counting_store import CountingStore
from tests.conformance.chunk_store_suite import CHUNK_ID, DATASET_ID, OTHER_ID, ServedStoreSuite, chunk_at
from tests.support.chunks import chunk_object, sample_fields
from tests.support.small_disk import small_disk

CAPACITY_BYTES = 64 << 20
CONTENT = bytes(range(256)) * 1024


def anything(dataset_id: bytes, chunk_id: bytes, content: object) -> None:
    """A check that all content passes."""


class TestTieredStore(ServedStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[TieredStore]:
        store = TieredStore(
            PosixStore(tmp_path / "fast"),
            PosixStore(tmp_path / "slow"),
            CAPACITY_BYTES,
            anything,
            slow_share=1,
        )
        yield store
        store.close()


class Tiers:
    """A tiered store over a folder and memory, with what is counted on both, and a clock that is set by hand."""

    def __init__(self, folder: Path, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.folder = folder
        self.now_s = 0.0
        self.slow = CountingStore(MemoryStore())
        self.open(capacity_bytes)

    def open(
        self, capacity_bytes: int, check: Callable[[bytes, bytes, object], None] | None = anything
    ) -> None:
        self.fast = CountingStore(PosixStore(self.folder))
        options = {"check": check} if check else {}
        self.metrics = Registry()
        self.store = TieredStore(
            self.fast,
            self.slow,
            capacity_bytes,
            **options,
            slow_share=1,
            clock=lambda: self.now_s,
            metrics=self.metrics,
        )

    def put(self, chunk_id: bytes, content: bytes = CONTENT, dataset_id: bytes = DATASET_ID) -> None:
        self.store.put(dataset_id, chunk_id, [content])
        self.store.wait_until_idle()

    def read(self, chunk_id: bytes, content: bytes = CONTENT, dataset_id: bytes = DATASET_ID) -> bool:
        """Read a chunk, which must be right; whether it came from the fast tier."""
        before = self.slow.metrics.numbers()["store.reads"]
        assert self.store.get_range(dataset_id, chunk_id, 0, len(content)) == content
        came_from_fast = self.slow.metrics.numbers()["store.reads"] == before
        self.store.wait_until_idle()
        return came_from_fast

    def path(self, chunk_id: bytes, dataset_id: bytes = DATASET_ID) -> Path:
        name = chunk_name(chunk_id)
        return self.folder / dataset_id.hex() / name[:3] / name[3:5] / name


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    tiers = Tiers(tmp_path / "fast")
    yield tiers
    tiers.store.close()


def test_what_was_put_is_read_from_the_fast_tier(tiers: Tiers) -> None:
    tiers.put(CHUNK_ID)
    assert tiers.slow.metrics.numbers()["store.puts"] == 1
    assert tiers.read(CHUNK_ID)
    for offset, length in ((0, 1), (BLOCK_BYTES - 1, 2), (len(CONTENT) - 1, 1), (5, len(CONTENT) - 5)):
        assert (
            tiers.store.get_range(DATASET_ID, CHUNK_ID, offset, length) == CONTENT[offset : offset + length]
        )
    assert tiers.slow.metrics.numbers()["store.reads"] == 0


def test_a_miss_is_served_at_once_and_the_dataset_follows(tiers: Tiers) -> None:
    for number in range(5):
        tiers.slow.put(DATASET_ID, chunk_at(number), [CONTENT])
    assert not tiers.read(chunk_at(3))
    assert all(tiers.read(chunk_at(number)) for number in range(5))


def test_what_the_tiers_do_is_counted(tmp_path: Path) -> None:
    size = len(CONTENT)
    tiers = Tiers(tmp_path / "fast", capacity_bytes=2 * size)
    try:
        tiers.slow.put(OTHER_ID, chunk_at(0), [CONTENT])
        assert not tiers.read(chunk_at(0), dataset_id=OTHER_ID) and tiers.read(
            chunk_at(0), dataset_id=OTHER_ID
        )
        tiers.store.get_range(OTHER_ID, chunk_at(0), 5, 7)
        tiers.now_s = BUSY_S
        for number in range(2):  # the second makes room
            tiers.put(chunk_at(number))
        flip(tiers.path(chunk_at(1)), 0)
        assert not tiers.read(chunk_at(1))
        assert tiers.metrics.as_dict()["tier"] == {
            "hits": 2,
            "hit_bytes": size + 7,
            "misses": 2,
            "missed_bytes": 2 * size,
            "filled_chunks": 4,  # the damaged one twice
            "filled_bytes": 4 * size,
            "evicted_chunks": 1,
            "lost_chunks": 1,
            "used_bytes": 2 * size,
            "size_bytes": 2 * size,
        }
    finally:
        tiers.store.close()


def test_the_dataset_of_another_stays_while_it_is_read(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path / "fast", capacity_bytes=4 * len(CONTENT))
    try:
        for number in range(4):
            tiers.put(chunk_at(number))
            tiers.slow.put(OTHER_ID, chunk_at(number), [CONTENT])
        assert not tiers.read(chunk_at(0), dataset_id=OTHER_ID)
        assert all(tiers.read(chunk_at(number)) for number in range(4))
        tiers.now_s = BUSY_S
        assert not tiers.read(chunk_at(0), dataset_id=OTHER_ID)
        assert all(tiers.read(chunk_at(number), dataset_id=OTHER_ID) for number in range(4))
        assert len([path for path in (tmp_path / "fast").rglob("*") if path.is_file()]) == 4
    finally:
        tiers.store.close()


def test_of_a_dataset_that_is_too_large_a_part_is_fast(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path / "fast", capacity_bytes=3 * len(CONTENT))
    try:
        for number in range(10):
            tiers.put(chunk_at(number))
        for _ in range(2):
            assert sum(tiers.read(chunk_at(number)) for number in range(10)) == 3
    finally:
        tiers.store.close()


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: flip(path, 0),
        lambda path: flip(path, len(CONTENT) - 1),
        lambda path: flip(path, len(CONTENT) // 2),
        lambda path: path.write_bytes(CONTENT[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(bytes(len(CONTENT))),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to("/etc/hostname")),
    ],
)
def test_a_copy_that_is_not_right_is_never_returned(tiers: Tiers, harm: Callable[[Path], object]) -> None:
    tiers.put(CHUNK_ID)
    harm(tiers.path(CHUNK_ID))
    tiers.now_s += 1000
    assert not tiers.read(CHUNK_ID)
    if not tiers.path(CHUNK_ID).is_dir():  # a file is replaced by a good copy
        assert tiers.read(CHUNK_ID)


def test_a_read_of_a_part_finds_damage_in_its_blocks(tiers: Tiers) -> None:
    tiers.put(CHUNK_ID)
    flip(tiers.path(CHUNK_ID), 3 * BLOCK_BYTES + 7)
    assert tiers.store.get_range(DATASET_ID, CHUNK_ID, 0, 100) == CONTENT[:100]
    assert tiers.slow.metrics.numbers()["store.reads"] == 0
    place = 3 * BLOCK_BYTES + 100
    assert tiers.store.get_range(DATASET_ID, CHUNK_ID, place, 1) == CONTENT[place : place + 1]
    assert tiers.slow.metrics.numbers()["store.reads"] == 1


def test_the_fast_tier_may_be_wiped_while_it_is_read(tiers: Tiers) -> None:
    for number in range(5):
        tiers.put(chunk_at(number))
    assert tiers.read(chunk_at(0))
    for path in tiers.folder.iterdir():
        shutil.rmtree(path)
    assert not tiers.read(chunk_at(1))
    tiers.now_s += 1000
    for number in range(5):
        tiers.read(chunk_at(number))
    assert all(tiers.read(chunk_at(number)) for number in range(5))


def test_without_its_folder_the_fast_tier_is_left_out(tiers: Tiers) -> None:
    """It may be a disk that was unmounted: nothing is written to what is below."""
    tiers.put(CHUNK_ID)
    shutil.rmtree(tiers.folder)
    assert not tiers.read(CHUNK_ID)
    tiers.now_s += 1000
    tiers.put(chunk_at(1))
    assert not tiers.read(chunk_at(1)) and not tiers.folder.exists()


def real_chunk(chunk_id: bytes, payload: bytes = b"meow\n") -> bytes:
    return chunk_object({**sample_fields(payload), "dataset_id": DATASET_ID}, payload, chunk_id)


def test_copies_of_an_earlier_life_are_looked_at_before_they_are_used(tiers: Tiers) -> None:
    tiers.store.close()
    tiers.open(CAPACITY_BYTES, check=None)
    good, bad, longer, gone, foreign = (chunk_at(number) for number in range(5))
    for chunk_id in (good, bad, longer, gone):
        tiers.put(chunk_id, real_chunk(chunk_id))
    tiers.store.close()
    flip(tiers.path(bad), 80)
    tiers.path(longer).write_bytes(real_chunk(longer) + b"x")
    tiers.slow.delete(DATASET_ID, gone)
    PosixStore(tiers.folder).put(DATASET_ID, foreign, [b"not a chunk"])
    tiers.open(CAPACITY_BYTES, check=None)
    assert [tiers.read(chunk_id, real_chunk(chunk_id)) for chunk_id in (good, good, bad, longer)] == [
        True,
        True,
        False,
        False,
    ]
    for chunk_id in (gone, foreign):
        with pytest.raises(NotFound):
            tiers.store.get_range(DATASET_ID, chunk_id, 0, 5)
        assert not tiers.path(chunk_id).exists()


def test_damage_in_the_slow_tier_is_not_copied(tiers: Tiers) -> None:
    tiers.store.close()
    tiers.open(CAPACITY_BYTES, check=None)
    damaged = real_chunk(CHUNK_ID)[:-1] + b"x"
    tiers.slow.put(DATASET_ID, CHUNK_ID, [damaged])
    for _ in range(2):
        assert not tiers.read(CHUNK_ID, damaged)
    assert not tiers.path(CHUNK_ID).exists()


def test_a_smaller_tier_keeps_what_fits(tiers: Tiers) -> None:
    for number in range(5):
        tiers.put(chunk_at(number))
    tiers.store.close()
    tiers.open(3 * len(CONTENT))
    assert sum(tiers.path(chunk_at(number)).exists() for number in range(5)) == 3


def test_a_deleted_chunk_is_gone_from_both(tiers: Tiers) -> None:
    tiers.put(CHUNK_ID)
    tiers.store.delete(DATASET_ID, CHUNK_ID)
    assert not tiers.path(CHUNK_ID).exists()
    tiers.put(CHUNK_ID)
    tiers.store.delete_dataset(DATASET_ID)
    assert not tiers.path(CHUNK_ID).exists()
    with pytest.raises(NotFound):
        tiers.store.get_range(DATASET_ID, CHUNK_ID, 0, 1)


def test_a_full_fast_disk_costs_speed_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "fast", "4m") as folder:
        tiers = Tiers(folder)
        try:
            content = CONTENT * 4
            for number in range(10):
                tiers.put(chunk_at(number), content)
            assert 0 < sum(tiers.read(chunk_at(number), content) for number in range(10)) <= 4
        finally:
            tiers.store.close()


HARMS: list[Callable[[Path], object]] = [
    lambda path: flip(path, 70_000),
    lambda path: os.truncate(path, 100_000),
    lambda path: path.unlink(),
    lambda path: path.write_bytes(b"foreign"),
]


def test_readers_are_right_while_copies_are_spoilt_under_them(tiers: Tiers) -> None:
    chunk_ids = [chunk_at(number) for number in range(8)]
    contents = {chunk_id: random.Random(chunk_id).randbytes(200_000) for chunk_id in chunk_ids}
    for chunk_id, content in contents.items():
        tiers.put(chunk_id, content)

    def read_many(seed: int) -> int:
        source = random.Random(seed)
        for _ in range(400):
            chunk_id = source.choice(chunk_ids)
            offset = source.randrange(200_000)
            length = source.randint(1, 200_000 - offset)
            data = tiers.store.get_range(DATASET_ID, chunk_id, offset, length)
            assert data == contents[chunk_id][offset : offset + length]
        return seed

    source = random.Random(9)
    for chunk_id in chunk_ids[:4]:
        flip(tiers.path(chunk_id), 70_000)
    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read_many, seed) for seed in range(4)]
        while not all(reader.done() for reader in readers):
            with suppress(OSError, IndexError):  # gone, or too short to be spoilt there
                source.choice(HARMS)(tiers.path(source.choice(chunk_ids)))
        assert [reader.result() for reader in readers] == [0, 1, 2, 3]
    assert tiers.fast.metrics.numbers()["store.reads"] > 0 and tiers.slow.metrics.numbers()["store.reads"] > 0
    for _ in range(3):
        tiers.store.wait_until_idle()
        tiers.now_s += 1000
        came_from_fast = [tiers.read(chunk_id, contents[chunk_id]) for chunk_id in chunk_ids]
    assert all(came_from_fast)


A, B, C = (bytes([number]) * 16 for number in range(3))


class Tier:
    """An index of ten bytes, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.index = TierIndex(10, lambda: self.now_s)

    def add(self, dataset_id: bytes, *numbers: int, length: int = 2) -> None:
        for number in numbers:
            copy = Copy(length, Fingerprint(length, array("Q")))
            self.index.add(dataset_id, chunk_at(number), copy)

    def victims(self, dataset_id: bytes, length: int) -> list[tuple[bytes, int]] | None:
        found = self.index.victims(dataset_id, length)
        return (
            None
            if found is None
            else [(other, int.from_bytes(chunk_id[:4], "big")) for other, chunk_id in found]
        )


def test_while_there_is_room_nobody_leaves() -> None:
    tier = Tier()
    tier.add(A, 1, 2)
    assert tier.victims(B, 6) == []
    assert tier.victims(B, 7) is None  # A is busy
    assert tier.index.used_bytes == 4


def test_what_was_not_read_for_longest_leaves_first() -> None:
    tier = Tier()
    tier.add(A, 1, 2)
    tier.add(B, 3, 4, 5)
    tier.now_s = 1
    tier.index.read(B, chunk_at(3))
    tier.now_s = 2
    tier.index.read(A, chunk_at(9))  # not there, but the dataset is read
    tier.now_s = 2 + BUSY_S
    assert tier.victims(C, 1) == [(B, 4)]
    assert tier.victims(C, 6) == [(B, 4), (B, 5), (B, 3)]
    assert tier.victims(C, 10) == [(B, 4), (B, 5), (B, 3), (A, 1), (A, 2)]
    assert tier.victims(C, 11) is None


def test_a_busy_dataset_stays() -> None:
    tier = Tier()
    tier.add(A, 1, 2)
    tier.add(B, 3, 4, 5)
    tier.now_s = BUSY_S
    tier.index.read(B, chunk_at(3))
    tier.now_s = 2 * BUSY_S - 1
    assert tier.victims(C, 4) == [(A, 1), (A, 2)]
    assert tier.victims(C, 5) is None


def test_a_dataset_does_not_push_out_its_own() -> None:
    tier = Tier()
    tier.add(A, 1, 2, 3, 4, 5)
    tier.now_s = 10 * BUSY_S
    assert tier.victims(A, 1) is None


def test_what_was_found_leaves_before_anything_else() -> None:
    tier = Tier()
    tier.index.add(A, chunk_at(1), Copy(8, None))
    assert tier.victims(B, 4) == [(A, 1)]
    copy = tier.index.read(A, chunk_at(1))
    assert copy is not None and copy.fingerprint is None and copy.length == 8
    assert tier.victims(B, 4) is None


def test_bytes_are_counted_once() -> None:
    tier = Tier()
    for _ in range(2):
        tier.add(A, 1, length=3)
    tier.add(A, 2, length=4)
    assert tier.index.used_bytes == 7
    for _ in range(2):
        tier.index.remove(A, chunk_at(1))
    assert tier.index.used_bytes == 4 and not tier.index.holds(A, chunk_at(1))
    tier.add(B, 1)
    tier.index.remove_dataset(A)
    tier.index.remove_dataset(A)
    assert tier.index.used_bytes == 2 and tier.index.read(A, chunk_at(2)) is None


SIZES = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 77]


@pytest.mark.parametrize("size", SIZES)
def test_any_range_of_a_good_copy_is_intact(size: int) -> None:
    content = random.Random(size).randbytes(size)
    fingerprint = Fingerprint.of(content)
    assert fingerprint.length == size
    source = random.Random(1)
    for _ in range(50):
        offset = source.randint(0, size)
        length = source.randint(0, size - offset)
        start, end = fingerprint.blocks_around(offset, length)
        assert start <= offset and offset + length <= max(end, start) and end <= size
        assert end - start < length + 2 * BLOCK_BYTES
        assert fingerprint.is_intact(start, content[start:end])


@pytest.mark.parametrize("size", SIZES[1:])
def test_any_flipped_bit_is_found(size: int) -> None:
    content = random.Random(size).randbytes(size)
    fingerprint = Fingerprint.of(content)
    source = random.Random(2)
    for _ in range(50):
        place = source.randrange(size)
        damaged = bytearray(content)
        damaged[place] ^= 1 << source.randrange(8)
        start, end = fingerprint.blocks_around(place, 1)
        assert not fingerprint.is_intact(start, damaged[start:end])
