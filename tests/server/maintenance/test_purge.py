"""Purge: which chunks go, that copies count whatever clock wrote the originals, and every point it may be killed at."""

import os

import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.frames import Compression
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.records import ChunkRecord, DatasetRecord
from dieselfs.rpc.records import PurgeReport
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.datasets.commit import commit_chunk, read_header
from dieselfs_server.datasets.snapshots import signed
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.leases.lease import Pin
from dieselfs_server.maintenance.purge import purge, removable
from dieselfs_server.maintenance.rebuild import rebuild
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.compressed import CompressedStore
from dieselfs_server.store.memory import MemoryStore
from tests.support.identity import IDENTITY

DATASET = bytes(range(16))
NOW_S = 1_800_000_000
NOW_NS = NOW_S * 10**9


def dead(number: int, died_ns: int) -> ChunkRecord:
    return ChunkRecord(number.to_bytes(16, "big"), died_ns, 1, 1, bytes(32), 3, 3, b"\x07")


def test_a_dead_chunk_goes_when_nobody_can_need_it() -> None:
    chunks = [dead(1, 10), dead(2, 20), dead(3, 30)]
    pin = Pin("reader", 5, 15, 10**18)

    def kept(*arguments: object) -> list[int]:
        return [int.from_bytes(chunk.chunk_id, "big") for chunk in removable(chunks, *arguments)]  # type: ignore[arg-type]  # spelled out below

    assert kept([], set(), 30) == [1, 2, 3]
    assert kept([], set(), 29) == [1, 2]  # the grace time
    assert kept([pin], set(), 30) == [1]  # its snapshot came to be at 15: it may read what died later
    assert kept([], {chunks[1].chunk_id}, 30) == [1, 3]  # a tag


class World:
    """A dataset with holes in its chunks, and what its files must hold."""

    def __init__(self, writers_clock_s: int = NOW_S) -> None:
        self.metadata = SqliteMetadata(":memory:")
        self.store = MemoryStore()
        self.metadata.create_dataset("data", DATASET)
        self.ids = ChunkIdSource(clock=lambda: writers_clock_s, first_counter=1)
        self.files: dict[bytes, bytes] = {}
        contents = {b"f%02d" % n: os.urandom(500 + n) for n in range(30)}
        for start in range(0, 30, 10):
            self.write({path: contents[path] for path in sorted(contents)[start : start + 10]})
        self.write({b"f03": b"new", b"f13": b"newer"}, deleted=[b"f05", b"f25", b"f26"])

    def write(
        self,
        files: dict[bytes, bytes],
        deleted: list[bytes] | None = None,
        compression: Compression | None = None,
        is_sharing: bool = False,
    ) -> None:
        builder = ChunkBuilder(is_sharing=is_sharing)
        for path, content in files.items():
            builder.add_file(path, content, 0o644, 0)
        for path in deleted or []:
            builder.add_delete(path)
        version = self.metadata.reserve_versions(DATASET, 100, NOW_NS)
        chunk_id = self.ids.next()
        sealed = builder.seal()
        if compression is not None:
            sealed = sealed.compressed(compression)
        parts = sealed.encode(chunk_id, "data", DATASET, version)
        commit_chunk(self.store, self.metadata, DATASET, chunk_id, b"".join(parts), NOW_NS)
        self.files |= files
        for path in deleted or []:
            del self.files[path]

    def dataset(self) -> DatasetRecord:
        return self.metadata.dataset("data")

    def purge(self, grace_s: int = 0) -> PurgeReport:
        return purge(
            self.store,
            self.metadata,
            self.dataset(),
            TagStore(self.store, IDENTITY),
            NOW_NS + 10**9,
            grace_s,
            False,
        )

    def read(self) -> dict[bytes, bytes]:
        found = {}
        for record in self.metadata.list_folder(DATASET, b"", b"", 1000):
            looked_up = self.metadata.lookup(DATASET, record.path)
            assert looked_up is not None
            content = b""
            for extent in looked_up.extents:
                _, start = self.start(extent.chunk_id)
                content += self.store.get_range(
                    DATASET, extent.chunk_id, start + extent.offset, extent.length
                )
            found[record.path] = content
        return found

    def start(self, chunk_id: bytes) -> tuple[int, int]:
        preamble, _ = read_header(self.store, DATASET, chunk_id)
        return preamble.object_length, preamble.payload_start

    def assert_whole(self) -> None:
        assert self.read() == self.files
        rebuild(self.store, self.metadata, "data", DATASET, NOW_NS)
        assert self.read() == self.files  # and nothing has come back from the dead


@pytest.mark.parametrize("ahead_s", [0, 3 * 365 * 24 * 3600, -(10**9)])
def test_holes_go_and_files_stay_whatever_clock_wrote_them(ahead_s: int) -> None:
    world = World(NOW_S + ahead_s)
    first = world.purge()
    assert first.chunks_rewritten == 3
    assert world.read() == world.files
    second = world.purge()
    assert (second.chunks_rewritten, second.chunks_removed, second.chunks_waiting) == (0, 3, 0)
    assert len(list(world.store.list_chunks(DATASET))) == 2
    world.assert_whole()
    assert world.purge().chunks_rewritten == 0


def test_what_a_tag_needs_is_not_copied() -> None:
    """The chunks stay for the tag, so copies would only take more room: again with each tag, beside any quota."""
    world = World()
    snapshot = Snapshot(signed(build_snapshot(world.metadata.entry_table(DATASET)), IDENTITY), "v1")
    tags = TagStore(world.store, IDENTITY)
    tags.add(snapshot, "v1")
    stored = set(world.store.list_chunks(DATASET))
    for _ in range(2):
        report = world.purge()
        assert (report.chunks_rewritten, report.chunks_removed, report.chunks_waiting) == (0, 0, 3)
        assert report.held_by == ("tag v1",) and set(world.store.list_chunks(DATASET)) == stored
    world.assert_whole()
    tags.remove("data", DATASET, "v1")
    assert world.purge().chunks_rewritten == 3
    world.assert_whole()


def test_copies_are_compressed_as_their_chunks() -> None:
    world = World()
    store = CompressedStore(world.store)
    world.store = store  # type: ignore[assignment]  # what the server has between them
    text = {b"text%d" % n: b"line %d\n" % n * 900 for n in range(9)}
    world.write(text, compression=Compression(7))
    world.write({}, deleted=[b"text3"])
    before = set(store.list_chunks(DATASET))
    world.purge()
    (copied,) = set(store.list_chunks(DATASET)) - before
    preamble, header = read_header(store, DATASET, copied)
    assert header.frames is not None and header.frames.level == 7
    assert preamble.stored_length < preamble.object_length - 50_000
    assert world.read() == world.files
    sizes = [store.size(DATASET, chunk) for chunk in before]
    freed = world.purge().bytes_freed
    gone = before - set(store.list_chunks(DATASET))
    assert 0 < freed < sum(sizes) and gone
    world.assert_whole()


def test_copies_share_bytes_as_their_chunks() -> None:
    world, same = World(), os.urandom(50_000)
    world.write({b"same%d" % n: same for n in range(2)} | {b"hole": same[1:]}, is_sharing=True)
    world.write({}, deleted=[b"hole"])
    before = set(world.store.list_chunks(DATASET))
    world.purge()
    copied = set(world.store.list_chunks(DATASET)) - before
    assert sum(world.store.size(DATASET, chunk) for chunk in copied) < 2 * len(same)
    world.assert_whole()


def test_what_is_small_is_merged() -> None:
    world = World()
    for n in range(20):
        world.write({b"small%d" % n: b"x" * n, b"hole": b"%d" % n})
    world.purge()
    world.purge()
    assert len(list(world.store.list_chunks(DATASET))) <= 3
    world.assert_whole()


class Killed(BaseException):
    """The process ends just here."""


class DyingStore(MemoryStore):
    """Dies before the N-th change, or right after it."""

    def __init__(self, whole: MemoryStore, number: int, is_after: bool) -> None:
        self.__dict__ = whole.__dict__
        self._own = (number, is_after, [0])

    def _step(self, act: object) -> None:
        number, is_after, counter = self._own
        counter[0] += 1
        if counter[0] == number and not is_after:
            raise Killed
        act()  # type: ignore[operator]  # a lambda
        if counter[0] == number:
            raise Killed

    def put(self, *arguments: object) -> None:
        self._step(lambda: MemoryStore.put(self, *arguments))  # type: ignore[arg-type]  # passed on as they came

    def delete(self, *arguments: object) -> None:
        self._step(lambda: MemoryStore.delete(self, *arguments))  # type: ignore[arg-type]  # passed on as they came


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_purge_killed_at_any_step_loses_nothing_and_is_taken_up_again(number: int, is_after: bool) -> None:
    world = World()
    whole, died = world.store, 0
    world.store = DyingStore(whole, number, is_after)
    for _ in range(3):
        try:
            world.purge()
        except Killed:
            died += 1
            break
    world.store = whole
    assert died == 1, "it was not killed: this run proves nothing"
    assert world.read() == world.files
    for _ in range(3):
        world.purge()
    assert world.purge().chunks_waiting == 0
    world.assert_whole()
