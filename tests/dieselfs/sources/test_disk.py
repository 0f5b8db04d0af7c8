"""The disk tier before a server: each chunk is sent once, and no damage of the disk reaches a reader."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dieselfs.chunk.blocks import block_range, bytes_of
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.sources.interface import Wanted
from dieselfs.sources.plain import node_source
from dieselfs.sources.server import ServerSource
from tests.support.disks import xfs_disk
from tests.support.server import running_server
from tests.support.small_chunks import CHUNKS, FILE_BYTES, content, store

PATIENCE_S = 60.0
DATASET_BYTES = CHUNKS * 4 * FILE_BYTES
ALL = range(CHUNKS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    with (
        running_server(tmp_path_factory.mktemp("server")) as server,
        Dataset(server.settings(), "data", must_exist=False) as opened,
    ):
        store(opened, tmp_path_factory.mktemp("files"))
        yield opened


@contextmanager
def source_on(data: Dataset, disk: Path, size_bytes: int = 1 << 30) -> Iterator[ServerSource]:
    """As of a new process. At its end, everything is on the disk."""
    source = node_source(data.client, data.snapshot, str(disk), size_bytes)
    try:
        yield source
    finally:
        source.close()


def counted(source: ServerSource) -> dict[str, int]:
    found = source.metrics.as_dict()
    return {**found["disk"], "received_bytes": found["servers"]["received_bytes"]}


def extents_by_chunk(snapshot: Snapshot) -> dict[int, list[ExtentRef]]:
    found: dict[int, list[ExtentRef]] = {}
    for node in snapshot.walk():
        for extent in snapshot.extents(node):
            found.setdefault(extent.chunk, []).append(extent)
    return found


def by_chunks(source: ServerSource) -> None:
    for chunk in ALL:
        source.fetch_chunk(chunk)  # verified against the snapshot's digest, as all below


def by_segments(source: ServerSource) -> None:
    for chunk in ALL:
        source.fetch_segment(chunk).close()


def by_extents(source: ServerSource) -> None:
    wanted = extents_by_chunk(source.snapshot)
    for arrival in source.fetch_many(Wanted(wanted)):
        for chunk, result in arrival.items():
            assert not isinstance(result, DieselfsError)
            assert [*map(len, result)] == [each.length for each in wanted[chunk]]


def by_blocks(source: ServerSource) -> None:
    for chunk in ALL:
        length_bytes = source.snapshot.chunk_payload_length(chunk)
        _, blocks = block_range(0, length_bytes)
        for first in range(0, blocks, 3):
            end = min(first + 3, blocks)
            assert len(source.fetch_blocks(chunk, first, end)) == bytes_of(first, end, length_bytes)[1]


READERS = [by_chunks, by_segments, by_extents, by_blocks]
Reader = Callable[[ServerSource], None]


@pytest.mark.parametrize("first", READERS)
@pytest.mark.parametrize("second", READERS)
def test_a_second_reader_receives_nothing_from_the_server(
    data: Dataset, tmp_path: Path, first: Reader, second: Reader
) -> None:
    sent_before = data.client.status().metrics["payloads.sent_bytes"]
    with source_on(data, tmp_path) as source:
        first(source)
        assert counted(source)["received_bytes"] == DATASET_BYTES
    with source_on(data, tmp_path) as source:
        second(source)
        found = counted(source)
        assert found["received_bytes"] == found["misses"] == found["failures"] == 0
        assert found["hit_bytes"] >= DATASET_BYTES
    assert data.client.status().metrics["payloads.sent_bytes"] - sent_before <= DATASET_BYTES


@given(st.data())
@hypothesis.settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_comes_from_the_disk_is_what_the_server_has(
    data: Dataset, tmp_path: Path, draw: st.DataObject
) -> None:
    plain = ServerSource(data.client, data.snapshot)
    chunk = draw.draw(st.sampled_from(ALL))
    extents = draw.draw(st.lists(st.sampled_from(extents_by_chunk(data.snapshot)[chunk]), min_size=1))
    _, blocks = block_range(0, data.snapshot.chunk_payload_length(chunk))
    first = draw.draw(st.integers(0, blocks - 1))
    end = draw.draw(st.integers(first + 1, blocks))
    for _ in range(2):
        with source_on(data, tmp_path) as source:
            assert source.fetch_extents(chunk, extents) == plain.fetch_extents(chunk, extents)
            assert source.fetch_blocks(chunk, first, end) == plain.fetch_blocks(chunk, first, end)
            assert source.fetch_chunk(chunk) == plain.fetch_chunk(chunk)


def rot(file: Path, draw: st.DataObject) -> None:
    """Damage a file as disks and power cuts do."""
    payload = bytearray(file.read_bytes())
    kind = draw.draw(st.sampled_from(["bit", "zeros", "torn", "long", "empty"]))
    place = draw.draw(st.integers(0, len(payload) - 1))
    if kind == "bit":
        payload[place] ^= 1 << draw.draw(st.integers(0, 7))
    elif kind == "zeros":
        start = place - place % 4096
        payload[start : start + 4096] = bytes(len(payload[start : start + 4096]))
    elif kind == "torn":
        del payload[place:]
    elif kind == "long":
        payload += bytes(4096)
    else:
        payload.clear()
    file.write_bytes(payload)


@given(st.data(), st.sampled_from(READERS))
@hypothesis.settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_bit_rot_is_dropped_and_fetched_again(
    data: Dataset, tmp_path: Path, draw: st.DataObject, read: Reader
) -> None:
    with source_on(data, tmp_path) as source:
        by_chunks(source)
    rotten = draw.draw(st.lists(st.sampled_from(ALL), min_size=1, max_size=3, unique=True))
    folder = tmp_path / "dieselfs-1" / data.snapshot.header.dataset_id.hex()
    for chunk in rotten:
        rot(folder / data.snapshot.chunk_id(chunk).hex(), draw)
    with source_on(data, tmp_path) as source:
        read(source)
        found = counted(source)
        assert found["damaged_chunks"] == len(rotten)
        assert found["received_bytes"] == sum(map(data.snapshot.chunk_payload_length, rotten))
        assert data.get("7") == content(7)
    with source_on(data, tmp_path) as source:
        by_chunks(source)
        assert counted(source)["received_bytes"] == 0


def test_a_cut_of_power_leaves_nothing_that_is_believed(data: Dataset, tmp_path: Path) -> None:
    with xfs_disk(tmp_path) as disk:
        with source_on(data, disk.folder / "tier") as source:
            by_chunks(source)
        disk.cut_power()
        with source_on(data, disk.folder / "tier") as source:
            by_extents(source)
            found = counted(source)
            assert found["failures"] == 0
        with source_on(data, disk.folder / "tier") as source:
            by_chunks(source)
            assert counted(source)["received_bytes"] == 0
            assert counted(source)["used_bytes"] >= DATASET_BYTES


def test_with_no_room_what_is_stored_stays_and_the_rest_comes_as_without_a_disk(
    data: Dataset, tmp_path: Path
) -> None:
    room = 10 * (4 * FILE_BYTES + 4096)
    for epoch in range(3):
        with source_on(data, tmp_path, room) as source:
            by_chunks(source)
            kept = counted(source)["written_chunks"] if not epoch else counted(source)["hits"]
            assert 10 <= kept <= 11 and counted(source)["evicted_chunks"] == 0
            assert counted(source)["used_bytes"] <= room
    with source_on(data, tmp_path, room) as source:
        by_chunks(source)  # the tier is known to be full
        before = counted(source)["received_bytes"]
        extents = extents_by_chunk(data.snapshot)
        on_server = [chunk for chunk in ALL if not is_on_disk(data, tmp_path, chunk)]
        source.fetch_extents(on_server[0], extents[on_server[0]][:1])
        assert counted(source)["received_bytes"] - before == FILE_BYTES, "and no whole chunk"


def is_on_disk(data: Dataset, disk: Path, chunk: int) -> bool:
    name = data.snapshot.chunk_id(chunk).hex()
    return (disk / "dieselfs-1" / data.snapshot.header.dataset_id.hex() / name).exists()


def test_epochs_in_any_order_evict_nothing_of_their_own_dataset(data: Dataset, tmp_path: Path) -> None:
    room = DATASET_BYTES // 2
    order = random.Random(1)
    with source_on(data, tmp_path, room) as source:
        hits = []
        for _ in range(4):
            before = counted(source)["hits"]
            for chunk in order.sample(ALL, CHUNKS):
                source.fetch_chunk(chunk)
            hits.append(counted(source)["hits"] - before)
        assert hits[0] == 0 and min(hits[1:]) >= CHUNKS // 2 - 3, "the best that any policy can do"


def test_many_threads_that_need_a_chunk_fetch_it_once(data: Dataset, tmp_path: Path) -> None:
    extents = extents_by_chunk(data.snapshot)[3]
    with source_on(data, tmp_path) as source, ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: source.fetch_extents(3, [extents[number % 4]]), range(32)))
        assert {len(each[0]) for each in found} == {FILE_BYTES}
        assert counted(source)["received_bytes"] == 4 * FILE_BYTES


def test_damage_in_the_store_costs_only_the_files_it_touches(tmp_path: Path) -> None:
    with (
        running_server(tmp_path / "server") as server,
        Dataset(server.settings(), "data", must_exist=False) as opened,
    ):
        (tmp_path / "files").mkdir()
        store(opened, tmp_path / "files")
        snapshot = opened.snapshot
        (bad,) = snapshot.extents(snapshot.find(b"5"))
        for path in (server.folder / "chunks").glob("*/???/??/*"):
            whole = bytearray(path.read_bytes())
            place = whole.find(content(5))
            if place >= 0:
                whole[place] ^= 1
                path.write_bytes(whole)
        others = [each for each in extents_by_chunk(snapshot)[bad.chunk] if each != bad]
        with source_on(opened, tmp_path / "tier") as source:
            assert len(source.fetch_extents(bad.chunk, others)) == len(others) == 3
            with pytest.raises(DieselfsError):
                source.fetch_extents(bad.chunk, [bad])
            assert counted(source)["written_chunks"] == 0
