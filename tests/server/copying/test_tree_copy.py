"""Copies and moves through the handler, over SQLite and Redis: contents, kills at each step, concurrent writers."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
import trio

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import PREAMBLE_BYTES, decode_preamble
from dieselfs.errors import Damaged, NotFound, StorageFull
from dieselfs.records import Extent, FileRecord
from dieselfs.rpc.records import CopyReport, CopyRequest, Existing
from dieselfs_server.datasets.commit import commit_chunk
from dieselfs_server.leases.lease import live_pins
from dieselfs_server.maintenance.purge import purge
from dieselfs_server.maintenance.rebuild import rebuild
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.interface import Buffer
from dieselfs_server.store.memory import MemoryStore
from tests.support.own_service import call, called, own_service, parts_of

LARGE = os.urandom(3000)
FILES = {b"d/f%02d" % number: os.urandom(500 + number) for number in range(20)}
FILES |= {b"d/empty": b"", b"d/in/large": LARGE, b"other": b"stays"}


class World:
    """Two datasets, `a` with FILES in several chunks, and an empty `b`."""

    def __init__(self, folder: Path, metadata: MetadataStore) -> None:
        self.folder = folder
        self.store = MemoryStore()
        self.metadata = metadata
        self.service = own_service(folder, self.store, metadata)
        for name in ("a", "b"):
            call(self.service, "create_dataset", name=name)
        names = sorted(FILES)
        for start in range(0, len(names), 8):
            batch = names[start : start + 8]
            self.write("a", {path: FILES[path] for path in batch if path != b"d/in/large"})
        self.write_large("a", b"d/in/large", LARGE)

    def packed(self, dataset: str, files: dict[bytes, bytes]) -> tuple[ChunkBuilder, int]:
        """A chunk that is not stored yet, and its first version."""
        builder = ChunkBuilder()
        for path, content in files.items():
            builder.add_file(path, content, 0o640, 5)
        return builder, self.reserve(dataset, len(files))

    def reserve(self, dataset: str, count: int) -> int:
        return self.metadata.reserve_versions(self.id(dataset), count, time.time_ns())

    def write(self, dataset: str, files: dict[bytes, bytes]) -> None:
        self.commit(dataset, *self.packed(dataset, files))

    def write_large(self, dataset: str, path: bytes, content: bytes) -> None:
        """In three chunks, with a link and a folder in the last."""
        version = self.reserve(dataset, 1)
        for place in range(0, len(content), 1000):
            builder = ChunkBuilder()
            part = content[place : place + 1000]
            builder.add_file(path, part, 0o600, 7, len(content), place, version)
            if place + 1000 >= len(content):
                builder.add_symlink(b"d/link", b"f01", 0o777, 9)
                builder.add_directory(b"d/in", 0o750, 11)
            self.commit(dataset, builder, self.reserve(dataset, 3))

    def commit(self, dataset: str, builder: ChunkBuilder, first: int) -> None:
        dataset_id, chunk_id = self.id(dataset), parts_of(self.service, "copy_entries").ids.next()
        data = b"".join(builder.seal().encode(chunk_id, dataset, dataset_id, first))
        commit_chunk(self.store, self.metadata, dataset_id, chunk_id, data, time.time_ns())

    def id(self, dataset: str) -> bytes:
        return self.metadata.dataset(dataset).dataset_id

    def copy(self, request: CopyRequest) -> CopyReport:
        report = call(self.service, "copy_entries", **request._asdict())
        assert isinstance(report, CopyReport)
        return report

    def entries(self, dataset: str, folder: bytes = b"") -> Iterator[FileRecord]:
        for record in self.metadata.list_folder(self.id(dataset), folder, b"", 1000):
            yield self.metadata.lookup(self.id(dataset), record.path) or record
            yield from self.entries(dataset, record.path)

    def contents(self, dataset: str) -> dict[bytes, object]:
        """By path: the attributes and the content of all entries; the mode of a folder."""
        found: dict[bytes, object] = {}
        for record in self.entries(dataset):
            content = b"".join(self.read(dataset, extent) for extent in record.extents)
            found[record.path] = (record.op, record.mode, record.mtime_ns, record.target, content)
        return found

    def read(self, dataset: str, extent: Extent) -> bytes:
        chunk = self.id(dataset), extent.chunk_id
        start = decode_preamble(self.store.get_range(*chunk, 0, PREAMBLE_BYTES), "chunk").payload_start
        return self.store.get_range(*chunk, start + extent.offset, extent.length)

    def assert_sound(self, dataset: str) -> None:
        """Nothing comes back from the dead, whatever rewrites the chunks."""
        before = self.contents(dataset)
        record = self.metadata.dataset(dataset)
        for _ in range(2):
            now_ns = time.time_ns() + 10**9
            purge(self.store, self.metadata, record, self.service.tags, now_ns, 0, False)
            assert self.contents(dataset) == before
        rebuild(self.store, self.metadata, dataset, record.dataset_id, time.time_ns())
        assert self.contents(dataset) == before


def below(contents: dict[bytes, object], old: bytes, new: bytes) -> dict[bytes, object]:
    """The entries at and below `old`, under `new`."""
    return {
        new + path[len(old) :]: entry
        for path, entry in contents.items()
        if path == old or path.startswith(old + b"/")
    }


@pytest.fixture
def world(tmp_path: Path, metadata: MetadataStore) -> World:
    return World(tmp_path, metadata)


def test_a_folder_is_copied_to_another_dataset(world: World) -> None:
    before = world.contents("a")
    report = world.copy(CopyRequest("a", b"d", "b", b"x/y"))
    assert (report.copied, report.copied_bytes) == (25, sum(map(len, FILES.values())) - 5)
    copies = below(world.contents("b"), b"x/y", b"d")
    copies.pop(b"d")  # it had no entry, and has one now
    expected = below(before, b"d", b"d")
    expected.pop(b"d")
    assert copies == expected and world.contents("a") == before
    again = world.copy(CopyRequest("a", b"d", "b", b"x/y"))
    assert (again.copied, again.skipped, again.generation) == (0, 25, report.generation)
    world.assert_sound("b")
    assert live_pins(world.metadata, world.id("a"), time.time_ns()) == []


def test_moves_inside_a_dataset(world: World) -> None:
    before = world.contents("a")
    report = world.copy(CopyRequest("a", b"d", "a", b"e/d", is_move=True))
    assert report.copied == 25 and report.deleted == 24  # d had no entry
    after = world.contents("a")
    assert {path for path in after if path.startswith(b"d")} == set()
    assert after[b"e/d/in/large"] == before[b"d/in/large"]
    world.copy(CopyRequest("a", b"e/d/f01", "a", b"first", is_move=True))
    world.copy(CopyRequest("a", b"e/d/link", "a", b"second", is_move=True))
    world.copy(CopyRequest("a", b"e/d/in/large", "a", b"third", is_move=True))
    world.copy(CopyRequest("a", b"e/d/empty", "a", b"fourth", is_move=True))
    world.copy(CopyRequest("a", b"e/d", "a", b"d", is_move=True))  # back, over what was deleted
    after = world.contents("a")
    for new, old in (
        (b"first", b"d/f01"),
        (b"second", b"d/link"),
        (b"third", b"d/in/large"),
        (b"fourth", b"d/empty"),
    ):
        assert after[new] == before[old] and old not in after
    assert after[b"d/f02"] == before[b"d/f02"]
    world.assert_sound("a")


def test_a_copy_of_a_tag_brings_back_what_was(world: World) -> None:
    before = world.contents("a")
    call(world.service, "put_tag", dataset="a", tag="v1", generation=0)
    world.write("a", {b"d/f01": b"overwritten"})
    world.copy(CopyRequest("a", b"d/f02", "a", b"gone", is_move=True))
    request = CopyRequest("a", b"d", "a", b"d", tag="v1", is_merged=True, existing=Existing.REPLACE)
    assert world.copy(request).copied == 2
    after = world.contents("a")
    assert after[b"d/f01"] == before[b"d/f01"] and after[b"d/f02"] == before[b"d/f02"]


def test_a_dry_run_changes_nothing(world: World) -> None:
    state = world.metadata.dataset("a"), world.metadata.dataset("b")
    report = world.copy(CopyRequest("a", b"d", "b", b"n", is_move=True, is_dry_run=True))
    assert (report.copied, len(report.paths), report.deleted) == (25, 25, 25)
    assert b"n/in/large" in report.paths
    report = world.copy(CopyRequest("a", b"d", "not-yet", b"n", is_dry_run=True))
    assert report.copied == 25
    assert (world.metadata.dataset("a"), world.metadata.dataset("b")) == state


class Killed(BaseException):
    """The process ends just here."""


class DyingStore(MemoryStore):
    """Dies before the N-th chunk, or right after it; or has no room for it."""

    def __init__(
        self, whole: MemoryStore, number: int, is_after: bool, error: type[BaseException] = Killed
    ) -> None:
        self.__dict__ = whole.__dict__
        self._own = (number, is_after, [0], error)

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        number, is_after, counter, error = self._own
        counter[0] += 1
        if counter[0] == number and not is_after:
            raise error("just here")
        MemoryStore.put(self, dataset_id, chunk_id, parts)
        if counter[0] == number:
            raise error("just here")


def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dieselfs_server.datasets.commit.ChunkBuilder", lambda _, **options: ChunkBuilder(2000, **options)
    )


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("number", [1, 3, 5, 7, 8])
def test_a_move_killed_at_any_step_loses_nothing_and_the_same_call_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_after: bool
) -> None:
    small_chunks(monkeypatch)
    with closing(SqliteMetadata(":memory:")) as metadata:
        world = World(tmp_path, metadata)
        before = world.contents("a")
        request = CopyRequest("a", b"d", "a", b"n", is_move=True)
        whole = world.store
        world.service = own_service(tmp_path, DyingStore(whole, number, is_after), metadata)
        with pytest.raises((Killed, BaseExceptionGroup)):  # a group, if it died beside the renewal of its pin
            world.copy(request)
        world.service = own_service(tmp_path, whole, metadata)
        after = world.contents("a")
        old, new = below(after, b"d", b""), below(after, b"n", b"")
        for path, entry in below(before, b"d", b"").items():
            if path:
                assert old.get(path, new.get(path)) == entry
        rebuild(whole, metadata, "a", world.id("a"), time.time_ns())  # as a server that starts does
        if any(path.startswith(b"d/") for path in world.contents("a")):
            world.copy(request)
        after = world.contents("a")
        assert below(after, b"d", b"d") == {}
        moved = below(after, b"n", b"d")
        moved.pop(b"d")
        assert moved == {path: entry for path, entry in below(before, b"d", b"d").items() if path != b"d"}
        world.assert_sound("a")


def test_a_full_store_ends_it_and_the_source_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)
    with closing(SqliteMetadata(":memory:")) as metadata:
        world = World(tmp_path, metadata)
        before = world.contents("a")
        world.service = own_service(tmp_path, DyingStore(world.store, 3, False, StorageFull), metadata)
        with pytest.raises(StorageFull):
            world.copy(CopyRequest("a", b"d", "b", b"d", is_move=True))
        assert world.contents("a") == before
        copies = world.contents("b")
        assert {path for path in copies if path != b"d"} < set(before)
        assert all(before[path] == entry for path, entry in copies.items() if path != b"d")


def test_what_is_written_during_a_move_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what has an older version than the deletion would need, and arrives only now."""
    small_chunks(monkeypatch)
    early = world.packed("a", {b"d/f03": b"newer", b"d/new": b"new"})
    writer = world.service
    store = WatchedStore(world.store, lambda: world.commit("a", *early))
    world.service = own_service(world.folder, store, world.metadata)
    world.copy(CopyRequest("a", b"d", "b", b"d", is_move=True))
    world.service = writer
    left = below(world.contents("a"), b"d", b"d")
    assert set(left) == {b"d", b"d/f03", b"d/new"}
    assert b"d/f03" in world.contents("b")
    world.assert_sound("a")


class WatchedStore(MemoryStore):
    """Calls `act` once, before the first chunk is stored."""

    def __init__(self, whole: MemoryStore, act: Callable[[], object]) -> None:
        self.__dict__ = whole.__dict__
        self._own = [act]

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        if self._own:
            self._own.pop()()
        MemoryStore.put(self, dataset_id, chunk_id, parts)


def test_damaged_bytes_are_not_copied(world: World) -> None:
    record = world.metadata.lookup(world.id("a"), b"d/f07")
    assert record is not None
    chunk = world.id("a"), record.extents[0].chunk_id
    data = world.store.get_range(*chunk, 0, world.store.size(*chunk))
    world.store.delete(*chunk)
    world.store.put(*chunk, [data.replace(FILES[b"d/f07"], bytes(len(FILES[b"d/f07"])))])
    with pytest.raises(Damaged, match=r"dl://a/d/f07.*another digest"):
        world.copy(CopyRequest("a", b"d", "b", b"d", is_move=True))
    assert b"d/f07" in world.contents("a") and b"d/f07" not in world.contents("b")


def test_a_cancelled_copy_ends_at_a_chunk_and_keeps_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    with closing(SqliteMetadata(":memory:")) as metadata:
        world = World(tmp_path, metadata)
        before = world.contents("a")

        async def run() -> bool:
            with trio.CancelScope() as scope:

                class CancellingStore(MemoryStore):
                    def __init__(self) -> None:
                        self.__dict__ = world.store.__dict__

                    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
                        MemoryStore.put(self, dataset_id, chunk_id, parts)
                        trio.from_thread.run_sync(scope.cancel)

                service = own_service(tmp_path, CancellingStore(), metadata)
                request = CopyRequest("a", b"d", "b", b"d", is_move=True)
                await called(service, "copy_entries", **request._asdict())
            return scope.cancelled_caught

        assert trio.run(run)
        assert world.contents("a") == before
        assert 0 < len(world.contents("b")) < len(below(before, b"d", b"d"))
        assert live_pins(metadata, world.id("a"), time.time_ns()) == []


def test_missing_sources_and_targets(world: World) -> None:
    with pytest.raises(NotFound, match="no such file or folder"):
        world.copy(CopyRequest("a", b"nothing", "b", b"x"))
    with pytest.raises(NotFound, match="no tag"):
        world.copy(CopyRequest("a", b"d", "b", b"x", tag="v9"))
    with pytest.raises(NotFound, match="no dataset 'c'"):
        world.copy(CopyRequest("a", b"d", "c", b"x"))
