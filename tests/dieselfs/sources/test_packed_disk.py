"""Chunks that come compressed stay so on the disk: less room for the same bytes, by every way of reading."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dieselfs.chunk.frames import Compression
from dieselfs.dataset import Dataset
from dieselfs.rpc.client import ServerClient
from dieselfs.sources.server import PART_BYTES, ServerSource
from tests.dieselfs.sources.test_disk import (
    ALL,
    DATASET_BYTES,
    READERS,
    Reader,
    by_chunks,
    by_extents,
    counted,
    extents_by_chunk,
    rot,
    source_on,
)
from tests.support.server import running_server
from tests.support.small_chunks import CHUNKS, store

TABLE_LENGTH_BYTES = 4

Parts = Callable[[], Iterator[memoryview]]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    with (
        running_server(tmp_path_factory.mktemp("server")) as server,
        Dataset(server.settings(), "packed", must_exist=False) as opened,
    ):
        store(opened, tmp_path_factory.mktemp("files"), Compression())
        yield opened


def files_of(data: Dataset, disk: Path) -> list[Path]:
    """The file of each chunk of the dataset on the disk."""
    folder = disk / "dieselfs-1" / data.snapshot.header.dataset_id.hex()
    return [folder / data.snapshot.chunk_id(chunk).hex() for chunk in ALL]


def payloads_of(data: Dataset) -> list[bytes]:
    plain = ServerSource(data.client, data.snapshot)
    return [bytes(plain.fetch_chunk(chunk)) for chunk in ALL]


@pytest.mark.parametrize("first", READERS)
def test_the_disk_has_what_the_server_has_sent(packed: Dataset, tmp_path: Path, first: Reader) -> None:
    sent_before = packed.client.status().metrics["payloads.sent_bytes"]
    with source_on(packed, tmp_path) as source:
        first(source)
    sent = packed.client.status().metrics["payloads.sent_bytes"] - sent_before
    kept = sum(file.stat().st_size for file in files_of(packed, tmp_path))
    assert kept == sent + CHUNKS * TABLE_LENGTH_BYTES == counted(source)["written_bytes"] < DATASET_BYTES / 20
    for second in READERS:
        with source_on(packed, tmp_path) as source:
            second(source)
            found = counted(source)
            assert found["received_bytes"] == found["misses"] == found["failures"] == 0
            assert found["hit_bytes"] >= DATASET_BYTES


def test_what_waits_to_be_written_is_read(packed: Dataset, tmp_path: Path) -> None:
    extents = extents_by_chunk(packed.snapshot)
    with source_on(packed, tmp_path) as source:
        for chunk in ALL:
            whole = bytes(source.fetch_chunk(chunk))
            chosen = extents[chunk][1::2]
            contents = [whole[each.offset : each.offset + each.length] for each in chosen]
            assert source.fetch_extents(chunk, chosen) == contents
        assert counted(source)["misses"] == CHUNKS


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_retry_that_brings_plain_bytes_is_kept_as_such(
    packed: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """As of an earlier version of the server, after a reply of frames that was cut, or has come with damage."""
    payload, receive = payloads_of(packed)[0], ServerClient.payload_in_parts

    def received(
        self: ServerClient, dataset: str, chunk_id: bytes, length: int, parts: Parts, *rest: Any
    ) -> None:
        room_of = rest[-1]
        if is_cut:
            room_of(length // 2)[4:] = bytes([1]) * (length // 2 - 4)  # no byte behind comes
        else:
            receive(self, dataset, chunk_id, length, parts, *rest)
        for part, start in zip(parts(), range(0, length, PART_BYTES), strict=True):
            part[:] = payload[start : start + len(part)]

    monkeypatch.setattr(ServerClient, "payload_in_parts", received)
    with source_on(packed, tmp_path) as source:
        assert source.fetch_chunk(0) == payload
    assert files_of(packed, tmp_path)[0].read_bytes() == payload
    with source_on(packed, tmp_path) as source:
        assert source.fetch_chunk(0) == payload and counted(source)["damaged_chunks"] == 0


def test_a_tier_has_room_for_more(packed: Dataset, tmp_path: Path) -> None:
    room = DATASET_BYTES // 2
    with source_on(packed, tmp_path, room) as source:
        by_chunks(source)
    with source_on(packed, tmp_path, room) as source:
        by_chunks(source)
        assert counted(source)["hits"] == CHUNKS and counted(source)["used_bytes"] <= room


def test_plain_and_packed_files_are_read_beside_each_other(packed: Dataset, tmp_path: Path) -> None:
    with source_on(packed, tmp_path) as source:
        by_chunks(source)
    for file, payload in zip(files_of(packed, tmp_path)[::2], payloads_of(packed)[::2], strict=True):
        file.write_bytes(payload)  # as earlier versions store them
    for read in READERS:
        with source_on(packed, tmp_path) as source:
            read(source)
            assert counted(source)["received_bytes"] == counted(source)["damaged_chunks"] == 0


@given(st.data(), st.sampled_from(READERS))
@hypothesis.settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_bit_rot_in_frames_reaches_no_reader(
    packed: Dataset, tmp_path: Path, draw: st.DataObject, read: Reader
) -> None:
    with source_on(packed, tmp_path) as source:
        by_chunks(source)
    rotten = draw.draw(st.lists(st.sampled_from(ALL), min_size=1, max_size=3, unique=True))
    for chunk in rotten:
        rot(files_of(packed, tmp_path)[chunk], draw)
    with source_on(packed, tmp_path) as source:
        read(source)  # verified
        found = counted(source)
        # A bit of the level, or of the digest of the frames, changes no byte of a file.
        assert found["failures"] == 0 and found["damaged_chunks"] <= len(rotten)
        assert found["received_bytes"] == found["damaged_chunks"] * DATASET_BYTES // CHUNKS
    with source_on(packed, tmp_path) as source:
        by_extents(source)
        assert counted(source)["received_bytes"] == 0
