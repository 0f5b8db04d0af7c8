"""Payloads in shared memory: verified, read once, and within the limit."""

import fcntl
import gc
import os
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from dieselfs.chunk.segment import SEALS, map_sealed
from dieselfs.errors import Damaged, NoRoom, NotFound
from dieselfs.telemetry.registry import Registry
from dieselfs_server.reading.executor import RequestExecutor, open_payload
from dieselfs_server.reading.shared_payloads import (
    EVICTABLE_SHARE,
    MEMORY_SHARE,
    UNUSED_S,
    SharedPayloads,
    default_bytes,
    sealed_copy,
)
from dieselfs_server.store.attached import Sources
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.posix import PosixStore
from tests.support.chunks import chunk_object, sample_fields

Store = TypeVar("Store", bound=ObjectStore)

PAYLOAD_BYTES = 1_000_000
FIRST, SECOND = b"\x01" * 16, b"\x02" * 16
"""Datasets."""


def chunk_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def payload(number: int) -> bytes:
    return bytes([number]) * PAYLOAD_BYTES


class Counting(MemoryStore):
    """Counts reads of whole payloads."""

    large_reads = 0

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        self.large_reads += length == PAYLOAD_BYTES
        return super().get_range(dataset_id, chunk_id, offset, length)


class Sharing:
    """Room for `chunks` payloads that stay."""

    def __init__(self, store: ObjectStore, chunks: int = 20, **options: int) -> None:
        self.metrics = Registry()
        self.now_s = 1000.0
        limit_bytes = int((chunks + 0.5) * PAYLOAD_BYTES / (1 - EVICTABLE_SHARE))
        self.payloads = SharedPayloads(
            RequestExecutor(store),
            options.pop("limit_bytes", limit_bytes),
            1000,
            self.metrics,
            options.pop("available_min_bytes", 0),
            lambda: self.now_s,
        )

    async def get(self, number: int, dataset_id: bytes = FIRST, wanted_bytes: int = 10) -> bool | None:
        """Whether the chunk is kept; None if it is not shared. Compares its bytes."""
        shared = await self.payloads.get(dataset_id, chunk_id(number), wanted_bytes)
        if shared is None:
            return None
        assert fcntl.fcntl(shared.segment.descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS
        memory = map_sealed(shared.segment.descriptor, PAYLOAD_BYTES)
        assert memory[0:PAYLOAD_BYTES] == payload(number)
        return shared.is_kept

    @property
    def filled(self) -> int:
        return int(self.metrics.numbers()["shared.filled"])


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return filled(PosixStore(tmp_path))


def filled(store: Store) -> Store:
    """With two datasets of eight chunks."""
    for dataset_id in (FIRST, SECOND):
        for number in range(8):
            content = payload(number)
            chunk = chunk_object(sample_fields(content), content, chunk_id(number))
            store.put(dataset_id, chunk_id(number), [chunk])
    return store


async def test_a_payload_is_read_once_for_all(store: PosixStore) -> None:
    sharing = Sharing(store)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(sharing.get, 3)
    assert sharing.filled == 1
    assert await sharing.get(3) is True
    assert sharing.payloads.kept(FIRST, chunk_id(3)) is not None
    assert sharing.payloads.kept(FIRST, chunk_id(4)) is sharing.payloads.kept(SECOND, chunk_id(3)) is None


async def test_when_the_limit_is_reached_a_payload_is_shared_for_those_who_need_much_of_it(
    store: PosixStore,
) -> None:
    sharing = Sharing(store, chunks=4)
    assert [await sharing.get(number) for number in range(6)] == [True] * 4 + [None] * 2
    assert sharing.filled == 4
    assert await sharing.get(4, wanted_bytes=PAYLOAD_BYTES) is False
    assert sharing.payloads.kept(FIRST, chunk_id(4)) is None
    assert await sharing.get(4) is False, "while it is there, anybody gets it"
    assert await sharing.get(5, wanted_bytes=PAYLOAD_BYTES) is False
    numbers = sharing.metrics.numbers()
    assert numbers["shared.kept_bytes"] == 4 * PAYLOAD_BYTES
    assert numbers["shared.evictable_bytes"] == PAYLOAD_BYTES


async def test_a_dataset_that_nobody_reads_any_more_gives_way(store: PosixStore) -> None:
    sharing = Sharing(store, chunks=2)
    assert [await sharing.get(number) for number in range(2)] == [True, True]
    assert await sharing.get(0, SECOND) is None
    sharing.now_s += UNUSED_S / 2
    assert await sharing.get(1) is True
    sharing.now_s += UNUSED_S / 2 + 1
    assert await sharing.get(0, SECOND) is None, "the other one was in use meanwhile"
    sharing.now_s += UNUSED_S
    assert await sharing.get(0, SECOND) is True
    assert sharing.metrics.numbers()["shared.kept_bytes"] == PAYLOAD_BYTES


async def test_a_removed_dataset_is_released_and_what_is_mapped_stays(store: PosixStore) -> None:
    sharing = Sharing(store)
    await sharing.get(0)
    await sharing.get(0, SECOND)
    shared = sharing.payloads.kept(FIRST, chunk_id(0))
    assert shared is not None
    memory = map_sealed(shared.segment.descriptor, PAYLOAD_BYTES)
    del shared
    sharing.payloads.forget(FIRST)
    assert sharing.payloads.kept(FIRST, chunk_id(0)) is None
    assert sharing.metrics.numbers()["shared.kept_bytes"] == PAYLOAD_BYTES
    assert memory[0:5] == payload(0)[:5]
    assert await sharing.get(0) is True and sharing.filled == 3


@pytest.mark.parametrize("cut_bytes", [0, 1, PAYLOAD_BYTES // 2])
async def test_what_is_damaged_is_not_shared(store: PosixStore, tmp_path: Path, cut_bytes: int) -> None:
    sharing = Sharing(store)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size > PAYLOAD_BYTES:
            with path.open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"\xff")
            os.truncate(path, path.stat().st_size - cut_bytes)
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with pytest.raises(Damaged, match="offset"):
            await sharing.get(1)
    assert set(os.listdir("/proc/self/fd")) <= before
    assert sharing.filled == 0 and sharing.metrics.numbers()["shared.kept_bytes"] == 0


async def test_what_is_in_memory_survives_the_file(store: PosixStore, tmp_path: Path) -> None:
    sharing = Sharing(store)
    await sharing.get(1)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)
    assert await sharing.get(1) is True


async def test_a_missing_chunk_is_not_found(store: PosixStore) -> None:
    with pytest.raises(NotFound):
        await Sharing(store).payloads.get(FIRST, chunk_id(99), 10)


async def test_a_payload_of_a_store_without_files_is_fetched_once_when_it_is_requested_again() -> None:
    store = filled(Counting())
    sharing = Sharing(store)
    assert await sharing.get(0, wanted_bytes=PAYLOAD_BYTES) is True
    assert await sharing.get(1) is None, "one small read does not fetch all of it"
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(sharing.get, 1)
    assert await sharing.get(1) is True
    assert sharing.filled == 2 and store.large_reads == 2


async def test_what_is_damaged_in_a_store_without_files_is_not_shared() -> None:
    store = MemoryStore()
    chunk = chunk_object(sample_fields(payload(1)), payload(1), chunk_id(1))
    store.put(FIRST, chunk_id(1), [chunk[:-1], b"\xff"])
    sharing = Sharing(store)
    for _ in range(2):
        with pytest.raises(Damaged, match="digest of the payload"):
            await sharing.get(1, wanted_bytes=PAYLOAD_BYTES)
    assert sharing.filled == 0 and sharing.metrics.numbers()["shared.kept_bytes"] == 0


async def test_nothing_is_shared_without_memory(store: PosixStore, caplog: pytest.LogCaptureFixture) -> None:
    assert await Sharing(store, limit_bytes=0).get(1) is None
    sharing = Sharing(store, available_min_bytes=1 << 60)
    assert await sharing.get(1) is None
    assert "MiB of memory are left" in caplog.text
    assert sharing.metrics.numbers()["shared.kept_bytes"] == 0


def test_a_copy_needs_memory(store: PosixStore) -> None:
    opened = open_payload(store, FIRST, chunk_id(1), Sources())
    assert opened is not None
    with opened, pytest.raises(NoRoom):
        sealed_copy(opened, b"", 1 << 60)


def test_the_default_is_a_part_of_what_the_system_allows() -> None:
    assert default_bytes(1000) == 1000 * MEMORY_SHARE
    assert default_bytes(None) == 0
