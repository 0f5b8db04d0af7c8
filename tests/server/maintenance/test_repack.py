"""Repack: all classes in each new chunk, the same entries and versions, and every point it may be killed at."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import Damaged, InvalidInput, StorageFull
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.records import Extent, Op
from dieselfs.rpc.records import RepackReport
from dieselfs.shuffle.strata import strata_of_classes
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.admission.quotas import QuotaExceeded
from dieselfs_server.datasets.commit import Admission, any_chunk, commit_chunk, read_header
from dieselfs_server.maintenance.jobs import Proceed
from dieselfs_server.maintenance.repack import repack
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.server.maintenance.test_purge import DATASET, NOW_NS, NOW_S, DyingStore, Killed, World

CLASSES, FILES, FILE_BYTES = 3, 24, 400_000


class ClassWorld(World):
    """Files class by class in chunks of 12: two chunks of each class. Names sort by number, so `read` finds them."""

    def __init__(self, writers_clock_s: int = NOW_S) -> None:
        self.store, self.metadata = MemoryStore(), SqliteMetadata(":memory:")
        self.metadata.create_dataset("data", DATASET)
        self.ids = ChunkIdSource(clock=lambda: writers_clock_s, first_counter=1)
        self.files = {}
        for number in range(0, CLASSES * FILES, 12):
            names = [b"%d-%02d" % (number // FILES, each) for each in range(number, number + 12)]
            self.write({name: name + os.urandom(FILE_BYTES) for name in names})

    def snapshot(self) -> Snapshot:
        return Snapshot(build_snapshot(self.metadata.entry_table(DATASET)), "data")

    def repack(
        self,
        is_dry_run: bool = False,
        snapshot: Snapshot | None = None,
        check_room: Callable[[int], None] = lambda needed_bytes: None,
        chunk_bytes: int = CHUNK_TARGET_BYTES,
        admitted: Admission = any_chunk,
        proceed: Proceed | None = None,
    ) -> RepackReport:
        snapshot = snapshot or self.snapshot()
        strata = strata_of_classes(snapshot, "^[0-9]").astype("<u2").tobytes()
        stores, options = (
            (self.store, self.metadata, self.dataset()),
            (admitted, check_room, proceed or Proceed()),
        )
        return repack(*stores, snapshot, strata, 1, chunk_bytes, lambda: NOW_NS, is_dry_run, *options)

    def extents(self, path: bytes) -> Sequence[Extent]:
        record = self.metadata.lookup(DATASET, path)
        assert record is not None
        return record.extents

    def live_classes(self) -> list[list[int]]:
        """How many live files of each class each chunk has, if it has any."""
        found = []
        for chunk in self.metadata.chunks(DATASET):
            header = read_header(self.store, DATASET, chunk.chunk_id)[1]
            live = [n for n in range(chunk.entries) if not chunk.deleted[n // 8] >> n % 8 & 1]
            classes = [
                int(header.paths[n][:1]) for n in live if header.ops[n] == Op.FILE and header.lengths[n]
            ]
            found += [np.bincount(classes, minlength=CLASSES).tolist()] if classes else []
        return found


@pytest.mark.parametrize("ahead_s", [0, 3 * 365 * 24 * 3600])
def test_each_chunk_has_all_classes_whatever_clock_wrote_the_old_ones(ahead_s: int) -> None:
    world = ClassWorld(NOW_S + ahead_s)
    assert world.live_classes()[0] == [12, 0, 0]
    planned, before = world.repack(is_dry_run=True), world.dataset().generation
    assert world.dataset().generation == before
    done = world.repack()
    assert planned[:5] == done[:5]
    assert (done.chunks, done.files) == (6, CLASSES * FILES)
    assert done.needed_bytes > CLASSES * FILES * FILE_BYTES
    assert done.generation == world.dataset().generation == before + done.chunks_written
    for counts in world.live_classes():
        assert max(counts) - min(counts) <= 1
    again = world.repack()
    assert (again.chunks, again.chunks_kept, again.chunks_written) == (0, done.chunks_written, 0)
    world.purge()
    assert len(list(world.store.list_chunks(DATASET))) == done.chunks_written
    world.assert_whole()


def test_chunks_have_the_size_that_is_asked_for() -> None:
    world = ClassWorld()
    assert world.repack(chunk_bytes=3 * FILE_BYTES).chunks_written == CLASSES * FILES // 3
    assert world.live_classes() == [[1, 1, 1]] * FILES


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("number", [4, 7])
def test_a_repack_killed_at_any_chunk_loses_nothing_and_continues(number: int, is_after: bool) -> None:
    world = ClassWorld()
    whole, world.store = world.store, DyingStore(world.store, number, is_after)
    with pytest.raises(Killed):
        world.repack()
    world.store = whole
    assert world.read() == world.files
    rest = world.repack()
    assert rest.files < CLASSES * FILES
    for counts in world.live_classes():
        assert max(counts) - min(counts) <= 2
    assert world.repack().chunks == 0
    world.assert_whole()


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_a_repack_that_a_quota_refuses_keeps_what_it_has_copied(chunks: int) -> None:
    world, left = ClassWorld(), [None] * chunks

    @contextmanager
    def admitted(*_: object) -> Iterator[None]:
        if not left:
            raise QuotaExceeded("over quota")
        left.pop()
        yield

    with pytest.raises(QuotaExceeded):
        world.repack(admitted=admitted)
    assert world.read() == world.files and world.dataset().generation == 6 + chunks
    rest = world.repack()
    assert (rest.files < CLASSES * FILES) == (chunks > 0)
    assert world.repack().chunks == 0
    world.assert_whole()


@pytest.mark.parametrize("checks", [3, 15, 21])
def test_a_repack_that_is_cancelled_loses_nothing_and_continues(checks: int) -> None:
    world, left = ClassWorld(), [None] * checks

    def check() -> None:
        if not left:
            raise Killed
        left.pop()

    with pytest.raises(Killed):
        world.repack(proceed=Proceed(check))
    assert world.read() == world.files
    world.repack()
    for counts in world.live_classes():
        assert max(counts) - min(counts) <= 2
    assert world.repack().chunks == 0
    world.assert_whole()


def test_what_changes_meanwhile_wins_and_what_spans_chunks_stays() -> None:
    world = ClassWorld()
    builder = ChunkBuilder()
    builder.add_directory(b"0-folder", 0o700, 5)
    builder.add_symlink(b"0-link", b"0-00", 0o777, 5)
    builder.add_file(b"0-none", b"", 0o600, 5)
    small, large = os.urandom(2 * FILE_BYTES), os.urandom(CHUNK_TARGET_BYTES)
    for half in range(2):  # as an upload that fills its chunks
        version = world.metadata.reserve_versions(DATASET, 10, NOW_NS)
        for number in range(5):
            content = world.files[b"0-x%d%d" % (half, number)] = os.urandom(100)
            builder.add_file(b"0-x%d%d" % (half, number), content, 0o600, 5)
        for path, whole in ((b"0-small", small), (b"0-large", large)):
            place = half * len(whole) // 2
            part = whole[place : place + len(whole) // 2]
            builder.add_file(path, part, 0o600, 5, len(whole), place, NOW_NS - len(whole))
        chunk_id = world.ids.next()
        parts = builder.seal().encode(chunk_id, "data", DATASET, version)
        commit_chunk(world.store, world.metadata, DATASET, chunk_id, b"".join(parts), NOW_NS)
    snapshot = world.snapshot()
    world.write({b"0-00": b"written after the snapshot"}, deleted=[b"1-30"])
    world.files |= {b"0-small": small, b"0-large": large, b"0-folder": b"", b"0-link": b"", b"0-none": b""}
    stayed = [extent.chunk_id for extent in world.extents(b"0-large")]
    assert world.repack(snapshot=snapshot).files == CLASSES * FILES - 2 + 10 + 1
    assert [extent.chunk_id for extent in world.extents(b"0-large")] == stayed
    assert len({extent.chunk_id for extent in world.extents(b"0-small")} - {*stayed}) == 1
    world.assert_whole()


def test_nothing_begins_without_room_or_with_the_strata_of_another_snapshot() -> None:
    world = ClassWorld()

    def refuse(needed_bytes: int) -> None:
        raise StorageFull(f"{needed_bytes} bytes")

    with pytest.raises(StorageFull, match=str(world.repack(is_dry_run=True).needed_bytes)):
        world.repack(check_room=refuse)
    strata, stores = bytes(10), (world.store, world.metadata, world.dataset(), world.snapshot())
    with pytest.raises(InvalidInput, match="strata of 5 extents, of a snapshot with 72"):
        repack(*stores, strata, 1, CHUNK_TARGET_BYTES, lambda: NOW_NS, False, any_chunk, refuse, Proceed())
    assert world.dataset().generation == 6


def test_a_damaged_file_is_not_copied() -> None:
    world = ClassWorld()
    chunk_id = next(iter(world.store.list_chunks(DATASET)))
    size = world.store.size(DATASET, chunk_id)
    content = bytearray(world.store.get_range(DATASET, chunk_id, 0, size))
    content[-1] ^= 1
    world.store.delete(DATASET, chunk_id)
    world.store.put(DATASET, chunk_id, [content])
    with pytest.raises(Damaged, match="digest of '0-11' does not match"):
        world.repack()
