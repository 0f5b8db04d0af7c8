"""The reserve of a disk: a store that is full can be emptied again."""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import ChunkHeader, Preamble, decode_chunk
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.dataset import Dataset
from dieselfs.errors import StorageFull
from dieselfs.limits import MIB
from dieselfs_server.admission.room import (
    RESERVE_BYTES_MAX,
    RESERVE_BYTES_MIN,
    Disk,
    Room,
    disk_of,
    reserve_bytes,
)
from dieselfs_server.datasets.snapshots import SnapshotCache
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.maintenance.fsck import fsck
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.identity import IDENTITY
from tests.support.server import running_server
from tests.support.small_disk import small_disk

GIB = 1 << 30
DATASET = bytes(range(16))


def chunk(builder: ChunkBuilder) -> tuple[Preamble, ChunkHeader]:
    chunk_id = ChunkIdSource().next()
    data = b"".join(builder.seal().encode(chunk_id, "data", DATASET, 1))
    return decode_chunk(data, "chunk", chunk_id, DATASET)[:2]


def of_file(length: int) -> tuple[Preamble, ChunkHeader]:
    builder = ChunkBuilder()
    builder.add_file(b"a", os.urandom(length), 0o644, 0)
    return chunk(builder)


def of_delete() -> tuple[Preamble, ChunkHeader]:
    builder = ChunkBuilder()
    builder.add_delete(b"a")
    return chunk(builder)


@pytest.mark.parametrize(
    ("total_bytes", "expected"),
    [
        (1000 * GIB, RESERVE_BYTES_MAX),
        (4 * GIB, int(0.02 * 4 * GIB)),
        (96 * MIB, RESERVE_BYTES_MIN),
        (40, 10),
    ],
)
def test_the_reserve_is_bounded(total_bytes: int, expected: int) -> None:
    assert reserve_bytes(Disk(total_bytes, 0)) == expected


def refusals(room: Room, chunks: Sequence[tuple[Preamble, ChunkHeader]]) -> list[bool]:
    found = []
    for each in chunks:
        try:
            room.check(*each)
            found.append(False)
        except StorageFull:
            found.append(True)
    return found


def test_files_leave_the_reserve_and_deletes_use_it() -> None:
    free = {"store": 17 * MIB, "state": 200 * MIB}
    room = Room(["store", "state"], lambda folder: Disk(256 * MIB, free[folder]))
    chunks = [of_file(100_000), of_file(2 * MIB), of_delete()]
    assert refusals(room, chunks) == [False, True, False]
    free["store"], free["state"] = 200 * MIB, 10 * MIB
    assert refusals(room, chunks) == [True, True, False]
    with room.for_purge(*chunks[0]):
        pass
    room.check_ahead("repack", 0)
    with pytest.raises(
        StorageFull, match=r"repack needs 8.0 MiB until a purge, and the disk of state has 0 B"
    ):
        room.check_ahead("repack", 8 * MIB)
    with pytest.raises(StorageFull, match=r"purge --grace 0s"), room.for_purge(*of_file(3 * MIB)):
        pass
    assert refusals(Room(), chunks) == [False] * 3


def test_a_disk_that_cannot_say_its_room_refuses_nothing(tmp_path: Path) -> None:
    assert refusals(Room([str(tmp_path / "missing")]), [of_file(1)]) == [False]
    assert disk_of(str(tmp_path)).free_bytes > 0


def test_a_full_store_is_emptied_by_deletes_and_purge(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "80m") as disk, running_server(disk / "server") as server:
        settings = replace(server.settings(), cache=tmp_path / "cache")
        dataset = Dataset(settings, "data", must_exist=False)
        content, stored = os.urandom(6 * MIB), 0
        with pytest.raises(StorageFull, match="kept for deletes"):
            for stored in range(20):
                dataset.put(f"f{stored}", content)
                dataset.flush()
        dataset._end()
        assert stored > 5
        again = Dataset(settings, "data")
        assert len([*again.files()]) == stored  # a snapshot is made
        for number in range(1, stored):
            again.delete(f"f{number}")
        again.flush()
        assert again.client.purge("data", 0, False).bytes_freed >= (stored - 1) * len(content)
        again.put("new", content)
        again.flush()
        again.refresh()
        assert sorted(again.files()) == ["f0", "new"] and again.get("f0") == content
        again._end()


def test_a_check_without_room_for_its_copy_of_the_metadata_says_so(tmp_path: Path) -> None:
    store = MemoryStore()
    with closing(SqliteMetadata(":memory:")) as metadata, small_disk(tmp_path / "disk", "8k") as disk:
        dataset = metadata.create_dataset("data", DATASET)
        (disk / "ballast").write_bytes(bytes(disk_of(str(disk)).free_bytes))
        kept = SnapshotCache(tmp_path / "snapshots", metadata, IDENTITY), TagStore(store, IDENTITY)
        with pytest.raises(StorageFull, match=r"no room for a check in .*disk/scratch"):
            fsck(store, metadata, *kept, dataset, disk / "scratch", 1, False, False)
