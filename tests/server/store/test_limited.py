"""What is asked of a store at once stays within its bounds, and nobody waits for ever."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Condition

import pytest

from dieselfs.errors import Unavailable
from dieselfs_server.store.limited import Bounds, LimitedStore
from dieselfs_server.store.memory import MemoryStore
from tests.conformance.chunk_store_suite import CHUNK_ID, DATASET_ID, ChunkStoreSuite, chunk_at

TIMEOUT_S = 20.0
BOUNDS = Bounds(reads_max=4, large_reads_max=2, large_read_bytes=1000, writes_max=3, wait_s_max=TIMEOUT_S)


class TestLimitedStore(ChunkStoreSuite):
    def make_store(self, folder: Path) -> LimitedStore:
        return LimitedStore(MemoryStore(), Bounds(1, 1, 10, 1))


class HeldStore(MemoryStore):
    """Reads and puts stay inside until they are let go; counts how many are."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = Condition()
        self.inside: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.is_held = False

    def _stay(self, kind: str) -> None:
        with self.changed:
            self.inside[kind] = self.inside.get(kind, 0) + 1
            self.most[kind] = max(self.most.get(kind, 0), self.inside[kind])
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: not self.is_held, TIMEOUT_S)
            self.inside[kind] -= 1

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        self._stay("large" if length >= BOUNDS.large_read_bytes else "small")
        return super().get_range(dataset_id, chunk_id, offset, length)

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: object) -> None:
        self._stay("put")
        super().put(dataset_id, chunk_id, parts)  # type: ignore[arg-type]  # only passed on

    def wait_inside(self, kind: str, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.inside.get(kind, 0) == count, TIMEOUT_S)

    def let_go(self) -> None:
        with self.changed:
            self.is_held = False
            self.changed.notify_all()


@pytest.fixture
def held() -> HeldStore:
    store = HeldStore()
    store.put(DATASET_ID, CHUNK_ID, [bytes(5000)])
    store.is_held = True
    return store


def test_large_reads_take_turns_and_small_ones_go_past(held: HeldStore) -> None:
    store = LimitedStore(held, BOUNDS)
    with ThreadPoolExecutor(12) as threads:
        large = [threads.submit(store.get_range, DATASET_ID, CHUNK_ID, 0, 1000) for _ in range(5)]
        held.wait_inside("large", 2)
        small = [threads.submit(store.get_range, DATASET_ID, CHUNK_ID, 0, 999) for _ in range(5)]
        held.wait_inside("small", 2)
        held.let_go()
        assert [len(read.result()) for read in large + small] == [1000] * 5 + [999] * 5
    assert held.most["large"] == 2 and held.most["small"] <= 4


def test_puts_are_bounded(held: HeldStore) -> None:
    store = LimitedStore(held, BOUNDS)
    with ThreadPoolExecutor(8) as threads:
        puts = [threads.submit(store.put, DATASET_ID, chunk_at(number), [b"x"]) for number in range(8)]
        held.wait_inside("put", 3)
        held.let_go()
        for put in puts:
            put.result()
    assert held.most["put"] == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get_range(DATASET_ID, CHUNK_ID, 0, 1),
        lambda store: store.get_record("users"),
    ],
)
def test_behind_a_store_that_hangs_a_call_ends_in_time(
    held: HeldStore, call: Callable[[LimitedStore], object]
) -> None:
    store = LimitedStore(held, Bounds(1, 1, 1000, 1, wait_s_max=0.01))
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(store.get_range, DATASET_ID, CHUNK_ID, 0, 1)
        held.wait_inside("small", 1)
        with pytest.raises(Unavailable, match=r"busy with other calls after 0\.01 s"):
            call(store)
        held.let_go()
        assert hanging.result() == b"\0"
    call(store)
