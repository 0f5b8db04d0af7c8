"""Parts of chunks for clients: right, few reads, and damage is looked at anew; and chunks as open files."""

import os
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import trio
import trio.testing

from dieselfs.arrays import Ranges
from dieselfs.chunk.blocks import block_checksums
from dieselfs.chunk.format import PREAMBLE_BYTES, decode_preamble
from dieselfs.errors import Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.telemetry.registry import Registry
from dieselfs_server.reading import executor as executing
from dieselfs_server.reading.executor import InUse, RequestExecutor, open_ahead, open_payload
from dieselfs_server.reading.kept_checksums import KeptChecksums
from dieselfs_server.store.attached import Sources
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.posix import PosixStore
from dieselfs_server.store.tiered import TieredStore
from dieselfs_server.store.wrapper import Bounds, LimitedStore, StoreWrapper
from lab.counting_store import CountingStore
from tests.support.chunks import CHUNK_ID, DATASET_ID, chunk_object, sample_fields

PAYLOAD = bytes(range(250)) * 4000
CHUNK = chunk_object(sample_fields(PAYLOAD), PAYLOAD)
HELD_S_MAX = 20.0


def ranges(*pairs: tuple[int, int]) -> Ranges:
    return np.array(pairs, np.int64).reshape(-1, 2)


@pytest.fixture
def store() -> CountingStore:
    store = CountingStore(MemoryStore())
    store.put(DATASET_ID, CHUNK_ID, [CHUNK])
    return store


async def test_payload_and_parts_are_right(store: CountingStore) -> None:
    executor = RequestExecutor(store)
    assert await executor.payload(DATASET_ID, CHUNK_ID) == PAYLOAD
    parts = await executor.ranges(DATASET_ID, CHUNK_ID, ranges((900_000, 5), (3, 4), (0, 0), (7, 1)))
    assert [bytes(part) for part in parts] == [PAYLOAD[900_000:900_005], PAYLOAD[3:7], PAYLOAD[7:8]]
    start = decode_preamble(CHUNK, "chunk").payload_start
    assert store.metrics.numbers()["store.reads"] == 4  # preamble, payload, two spans
    assert store.metrics.numbers()["store.read_bytes"] == PREAMBLE_BYTES + len(PAYLOAD) + 5 + 5
    assert start + len(PAYLOAD) == len(CHUNK)


async def test_an_empty_payload_is_empty(store: CountingStore) -> None:
    chunk_id = CHUNK_ID[:-1] + b"\xff"
    store.put(DATASET_ID, chunk_id, [chunk_object(b"\x80", b"", chunk_id)])
    assert bytes(await RequestExecutor(store).payload(DATASET_ID, chunk_id)) == b""


async def test_requests_of_many_clients_cost_few_reads(store: CountingStore) -> None:
    metrics = Registry()
    executor = RequestExecutor(store, metrics)

    async def client(number: int) -> None:
        wanted = ranges(*((place, 100) for place in range(number * 100, 900_000, 20_000)))
        parts = await executor.ranges(DATASET_ID, CHUNK_ID, wanted)
        assert [bytes(part) for part in parts] == [PAYLOAD[o : o + n] for o, n in wanted.tolist()]

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(client, number)
    counts = metrics.as_dict()["reading"]
    assert counts["store_reads"] == store.metrics.numbers()["store.reads"] <= 4
    assert counts["requests"] == 40 and counts["ranges"] == 20 + 20 * 45
    assert counts["merged"] == round(counts["ranges"] / counts["store_reads"], 3) and counts["waiting"] == 0


class HeldStore(StoreWrapper):
    """Reads wait until they are let go."""

    def __init__(self, store: CountingStore) -> None:
        super().__init__(store)
        self.go = Event()

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        assert self.go.wait(HELD_S_MAX)
        return self.store.get_range(dataset_id, chunk_id, offset, length)


async def test_reads_that_wait_and_are_merged_are_counted(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executing, "STORE_READS_MAX", 1)
    other_id = CHUNK_ID[:-1] + b"\xff"
    store.put(DATASET_ID, other_id, [chunk_object(sample_fields(PAYLOAD), PAYLOAD, other_id)])
    held, metrics = HeldStore(store), Registry()
    executor = RequestExecutor(held, metrics)
    held.go.set()
    for chunk_id in (CHUNK_ID, other_id):
        await executor.preamble(DATASET_ID, chunk_id)
    held.go.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(executor.payload, DATASET_ID, other_id)
        await trio.testing.wait_all_tasks_blocked()
        for place in range(4):
            nursery.start_soon(executor.ranges, DATASET_ID, CHUNK_ID, ranges((place * 10, 10)))
        await trio.testing.wait_all_tasks_blocked()
        waiting = metrics.as_dict()["reading"]["waiting"]
        held.go.set()
    counts = metrics.as_dict()["reading"]
    assert (waiting, counts["waiting"]) == (1, 0)  # one read, for four ranges
    # Two preambles and the payload were a read each.
    assert (counts["ranges"], counts["store_reads"], counts["merged"]) == (7, 4, 1.75)


async def test_what_lies_outside_is_refused(store: CountingStore) -> None:
    executor = RequestExecutor(store)
    for wanted in (ranges((len(PAYLOAD), 1)), ranges((0, 1), (5, len(PAYLOAD)))):
        with pytest.raises(InvalidInput, match="after the end of the payload"):
            await executor.ranges(DATASET_ID, CHUNK_ID, wanted)
    with pytest.raises(InvalidInput, match="together"):
        await executor.ranges(DATASET_ID, CHUNK_ID, ranges(*[(0, len(PAYLOAD))] * 200))
    with pytest.raises(InvalidInput):
        await executor.payload(DATASET_ID, b"short")


async def test_a_chunk_that_is_replaced_after_damage_reads_again(store: CountingStore) -> None:
    executor = RequestExecutor(store)
    await executor.payload(DATASET_ID, CHUNK_ID)
    store.delete(DATASET_ID, CHUNK_ID)
    with pytest.raises(NotFound):
        await executor.payload(DATASET_ID, CHUNK_ID)
    store.put(DATASET_ID, CHUNK_ID, [CHUNK[:-1]])
    with pytest.raises(Damaged, match="offset"):
        await executor.payload(DATASET_ID, CHUNK_ID)
    store.delete(DATASET_ID, CHUNK_ID)
    other = chunk_object(sample_fields(b"x"), b"x")
    store.put(DATASET_ID, CHUNK_ID, [other])
    assert bytes(await executor.payload(DATASET_ID, CHUNK_ID)) == b"x"


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_the_payload_is_where_it_says(tmp_path: Path) -> None:
    store = LimitedStore(PosixStore(tmp_path), Bounds())
    store.put(DATASET_ID, CHUNK_ID, [CHUNK])
    before = open_descriptors()
    opened = open_payload(store, DATASET_ID, CHUNK_ID, Sources())
    assert opened is not None
    with opened:
        store.delete(DATASET_ID, CHUNK_ID)
        assert os.pread(opened.descriptor, opened.length, opened.start) == PAYLOAD
        assert not os.get_inheritable(opened.descriptor)
        with pytest.raises(OSError):
            os.write(opened.descriptor, b"x")
    assert open_descriptors() == before


def test_what_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    before = open_descriptors()
    with pytest.raises(NotFound):
        open_payload(store, DATASET_ID, CHUNK_ID, Sources())
    for content in (b"", CHUNK[:40], b"x" + CHUNK[1:], CHUNK[:24] + b"x" + CHUNK[25:]):
        store.put(DATASET_ID, CHUNK_ID, [content])
        with pytest.raises(Damaged):
            open_payload(store, DATASET_ID, CHUNK_ID, Sources())
        store.delete(DATASET_ID, CHUNK_ID)
    assert open_descriptors() == before


@pytest.mark.parametrize("trouble", ["missing", "damaged"])
def test_files_are_opened_ahead_up_to_the_first_that_cannot_be(tmp_path: Path, trouble: str) -> None:
    store = PosixStore(tmp_path)
    ids = [bytes([number]) + CHUNK_ID[1:] for number in range(4)]
    for number, chunk_id in enumerate(ids):
        chunk = chunk_object(sample_fields(PAYLOAD), PAYLOAD, chunk_id)
        if number != 2:
            store.put(DATASET_ID, chunk_id, [chunk])
        elif trouble == "damaged":
            store.put(DATASET_ID, chunk_id, [chunk[:40]])
    before = open_descriptors()
    opened = open_ahead(store, DATASET_ID, ids)
    assert len(opened) == 2
    for each in opened:
        with each:
            assert os.pread(each.descriptor, each.length, each.start) == PAYLOAD
    assert open_descriptors() == before


async def test_kept_checksums_of_several_chunks_are_bounded(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptChecksums()
    executor = RequestExecutor(store, checksums=kept)
    ids = [bytes([number]) + CHUNK_ID[1:] for number in range(4)]
    for number, chunk_id in enumerate(ids):
        if number != 1:
            kept.put(DATASET_ID, chunk_id, bytes([number]) * 8)
    monkeypatch.setattr(executing, "OPENED_CHECKSUMS_BYTES_MAX", 16)
    assert await executor.kept_checksums_of(DATASET_ID, ids) == [bytes(8), None, bytes([2]) * 8, None]
    assert not store.metrics.numbers()["store.reads"], "none is worked out"


def test_a_file_that_cannot_be_read_leaves_nothing_open(tmp_path: Path) -> None:
    class Folders(StoreWrapper):
        def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> int:
            return os.open(tmp_path, os.O_RDONLY)

    before = open_descriptors()
    with pytest.raises(Unavailable, match="directory"):
        open_payload(Folders(MemoryStore()), DATASET_ID, CHUNK_ID, Sources())
    assert open_descriptors() == before


def test_stores_without_files_have_none(tmp_path: Path) -> None:
    posix = PosixStore(tmp_path / "slow")
    tiered = TieredStore(PosixStore(tmp_path / "fast"), posix, 1 << 20)
    for store in (MemoryStore(), CountingStore(posix), tiered):
        store.put(DATASET_ID, CHUNK_ID, [CHUNK])
        assert open_payload(store, DATASET_ID, CHUNK_ID, Sources()) is None
        store.delete(DATASET_ID, CHUNK_ID)
    tiered.close()


async def test_checksums_of_blocks_are_of_a_payload_that_was_verified(store: CountingStore) -> None:
    executor = RequestExecutor(store)
    checksums = await executor.block_checksums(DATASET_ID, CHUNK_ID)
    assert np.array_equal(np.frombuffer(checksums, "<u8"), block_checksums(PAYLOAD))
    reads = store.metrics.numbers()["store.reads"]
    assert await executor.block_checksums(DATASET_ID, CHUNK_ID) == checksums
    assert store.metrics.numbers()["store.reads"] == reads, "they are kept"


async def test_a_damaged_payload_has_no_checksums_of_blocks(tmp_path: Path) -> None:
    damaged = bytearray(CHUNK)
    damaged[-1] ^= 1
    store = MemoryStore()
    store.put(DATASET_ID, CHUNK_ID, [bytes(damaged)])
    with pytest.raises(Damaged, match="digest of the payload"):
        await RequestExecutor(store).block_checksums(DATASET_ID, CHUNK_ID)


def test_users_share_a_value_until_the_last_one_ends() -> None:
    values: InUse[str, int] = InUse()
    numbers = count()
    with ExitStack() as first:
        assert first.enter_context(values.held("a", lambda: next(numbers))) == 0
        with (
            values.held("a", lambda: next(numbers)) as shared,
            values.held("b", lambda: next(numbers)) as other,
        ):
            assert (shared, other) == (0, 1)
            first.close()
            assert "a" in values
        assert "a" not in values and "b" not in values
        with values.held("a", lambda: next(numbers)) as later:
            assert later == 2


def test_a_value_that_cannot_be_made_is_not_in_use() -> None:
    values: InUse[str, float] = InUse()
    with pytest.raises(ZeroDivisionError), values.held("a", lambda: 1 / 0):
        pass
    assert "a" not in values
    with pytest.raises(KeyError), values.held("a", lambda: 1.0):
        raise KeyError
    assert "a" not in values
