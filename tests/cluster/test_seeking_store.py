"""The model of a disk: seeks between reads that do not follow each other, and one read at a time."""

from threading import Thread

import pytest

from dieselfs_server.store.memory import MemoryStore
from lab.seeking_store import PIECE_BYTES, SeekingStore

DATASET, FIRST, SECOND = b"d" * 16, b"a" * 16, b"b" * 16
SIZE = 4 * PIECE_BYTES


class Sleeps:
    def __init__(self) -> None:
        self.slept_s: list[float] = []

    def __call__(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
def disk(sleeps: Sleeps) -> SeekingStore:
    store = MemoryStore()
    for chunk_id in (FIRST, SECOND):
        store.put(DATASET, chunk_id, [chunk_id * (SIZE // 16)])
    disk = SeekingStore(store, seek_s=1.0, bytes_per_s=PIECE_BYTES, sleep=sleeps)
    for chunk_id in (FIRST, SECOND):
        disk.place(DATASET, chunk_id)
    return disk


def test_reads_that_follow_each_other_need_no_seek(disk: SeekingStore, sleeps: Sleeps) -> None:
    assert disk.get_range(DATASET, FIRST, 0, SIZE) == FIRST * (SIZE // 16)
    assert disk.get_range(DATASET, SECOND, 0, 100) == (SECOND * 7)[:100]
    assert disk.seeks == 0
    assert sleeps.slept_s == pytest.approx([1, 1, 1, 1, 100 / PIECE_BYTES])


def test_a_jump_costs_a_seek(disk: SeekingStore, sleeps: Sleeps) -> None:
    for offset in (0, PIECE_BYTES, 3 * PIECE_BYTES, 3 * PIECE_BYTES):
        disk.get_range(DATASET, FIRST, offset, PIECE_BYTES)
    assert disk.seeks == 2
    assert sleeps.slept_s == [1, 1, 2, 2]


def test_reads_at_the_same_time_share_the_head(disk: SeekingStore, sleeps: Sleeps) -> None:
    readers = [Thread(target=disk.get_range, args=(DATASET, each, 0, SIZE)) for each in (FIRST, SECOND)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(sleeps.slept_s) == 8
    assert sum(sleeps.slept_s) == 8 + disk.seeks
