"""The sources of a dataset: their list, their removal, and that purge keeps or copies them; all survives a rebuild."""

import os
from pathlib import Path

import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import Damaged, NotFound
from dieselfs.limits import ATTACHED_PER_REPLY_MAX
from dieselfs.rpc.records import PurgeReport
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.datasets.commit import commit_chunk, read_header
from dieselfs_server.datasets.snapshots import signed
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.maintenance.attachments import detach, list_attached, source_of
from dieselfs_server.maintenance.purge import copy_attached, purge
from dieselfs_server.maintenance.rebuild import rebuild
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.attached import AttachedStore, Sources
from dieselfs_server.store.memory import MemoryStore
from tests.support.identity import IDENTITY

DATASET = bytes(range(16))
NOW_S = 1_800_000_000
NOW_NS = NOW_S * 10**9


class World:
    """A dataset with files of two sources, and an ordinary one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = Sources(None)
        self.store, self.metadata = AttachedStore(MemoryStore(), self.sources), SqliteMetadata(":memory:")
        self.metadata.create_dataset("data", DATASET)
        self.ids = ChunkIdSource(clock=lambda: NOW_S, first_counter=1)
        self.files: dict[bytes, bytes] = {}
        for name in ("a.tar", "b.tar"):
            (folder / name).write_bytes(os.urandom(3000))
            self.attach(name, 0, 1000)
            self.attach(name, 1000, 2000)
        self.put({b"plain": b"ordinary"})

    def write(
        self, builder: ChunkBuilder, payload: bytes | None = None, source: AttachedSource | None = None
    ) -> None:
        version = self.metadata.reserve_versions(DATASET, 100, NOW_NS)
        chunk_id = self.ids.next()
        parts = builder.seal(payload, source).encode(chunk_id, "data", DATASET, version)
        commit_chunk(self.store, self.metadata, DATASET, chunk_id, b"".join(parts), NOW_NS)

    def put(self, files: dict[bytes, bytes]) -> None:
        builder = ChunkBuilder()
        for path, content in files.items():
            builder.add_file(path, content, 0o644, 0)
        self.files |= files
        self.write(builder)

    def attach(self, name: str, begin: int, end: int) -> None:
        """Files of 100 bytes, one behind the other."""
        path = self.folder / name
        status, content = os.stat(path), path.read_bytes()
        builder = ChunkBuilder()
        for start in range(begin, end, 100):
            file, data = b"%s/%04d" % (os.fsencode(name), start), content[start : start + 100]
            builder.add_file(file, data, 0o644, 0, offset=start - begin)
            self.files[file] = data
        mark = f"mtime_ns={status.st_mtime_ns}"
        self.write(
            builder, content[begin:end], AttachedSource(os.fsencode(path), status.st_size, mark, begin)
        )

    def location(self, name: str) -> bytes:
        return os.fsencode(self.folder / name)

    def listed(self, after: bytes = b"") -> list[tuple[str, int, int, str]]:
        found = list_attached(
            self.store, self.metadata, DATASET, after, lambda source: self.sources.open(source).close()
        )
        return [
            (os.path.basename(one.location).decode(), one.chunks, one.files, one.trouble) for one in found
        ]

    def detach(self, name: str) -> tuple[int, int]:
        dataset, location = self.metadata.dataset("data"), self.location(name)
        report = detach(self.store, self.metadata, dataset, location, NOW_NS, self.ids)
        assert report.generation == self.metadata.dataset("data").generation
        prefix = os.fsencode(name)
        self.files = {path: content for path, content in self.files.items() if not path.startswith(prefix)}
        return report.entries, report.sources

    def purge(self) -> PurgeReport:
        tags = TagStore(self.store, IDENTITY)
        return purge(self.store, self.metadata, self.metadata.dataset("data"), tags, NOW_NS + 10**9, 0, False)

    def copy(self) -> int:
        return copy_attached(self.store, self.metadata, self.metadata.dataset("data"), NOW_NS + 10**9, False)

    def attached(self) -> int:
        return sum(source_of(self.store, DATASET, one) is not None for one in self.store.list_chunks(DATASET))

    def read(self) -> dict[bytes, bytes]:
        found = {}
        table = self.metadata.entry_table(DATASET)
        for folder, name in zip(table.folders, table.names, strict=True):
            record = self.metadata.lookup(DATASET, folder + b"/" + name if folder else name)
            assert record is not None
            content = b""
            for extent in record.extents:
                preamble, _ = read_header(self.store, DATASET, extent.chunk_id)
                start = preamble.payload_start + extent.offset
                content += self.store.get_range(DATASET, extent.chunk_id, start, extent.length)
            found[record.path] = content
        return found

    def assert_whole(self) -> None:
        assert self.read() == self.files
        rebuild(self.store, self.metadata, "data", DATASET, NOW_NS)
        assert self.read() == self.files


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_list_has_what_counts(world: World) -> None:
    assert world.listed() == [("a.tar", 2, 20, ""), ("b.tar", 2, 20, "")]
    world.put({b"a.tar/0000": b"other", b"a.tar/0100": b"other"})
    assert world.listed() == [("a.tar", 2, 18, ""), ("b.tar", 2, 20, "")]
    assert world.listed(world.location("a.tar")) == [("b.tar", 2, 20, "")]
    (world.folder / "b.tar").unlink()
    assert world.listed()[1][3] == "No such file or directory"


def test_the_list_comes_in_pages(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(ATTACHED_PER_REPLY_MAX):
        (tmp_path / f"c{number:03}").write_bytes(bytes(100))
        world.attach(f"c{number:03}", 0, 100)
    first = world.listed()
    assert len(first) == ATTACHED_PER_REPLY_MAX
    rest = world.listed(world.location(first[-1][0]))
    assert [name for name, *_ in rest] == ["c098", "c099"]


def test_a_version_that_was_attached_again_counts(world: World) -> None:
    os.utime(world.folder / "a.tar", ns=(0, 1))
    world.attach("a.tar", 0, 1000)
    assert [row[:3] for row in world.listed()] == [("a.tar", 1, 10), ("a.tar", 1, 10), ("b.tar", 2, 20)]
    assert [bool(row[3]) for row in world.listed()] == [False, True, False]


def test_detach_removes_the_files_of_a_source_only(world: World) -> None:
    world.put({b"a.tar/0000": b"mine"})
    world.attach("b.tar", 2000, 2500)
    (world.folder / "a.tar").unlink()
    mine = world.files[b"a.tar/0000"]
    assert world.detach("a.tar") == (19, 1)
    world.files[b"a.tar/0000"] = mine
    assert [row[:3] for row in world.listed()] == [("b.tar", 3, 25)]
    world.assert_whole()
    world.purge()
    assert world.attached() == 3
    world.assert_whole()
    with pytest.raises(NotFound, match=r"a\.tar: nothing of data is attached to it; dlcmd attach --list"):
        world.detach("a.tar")


def test_a_folder_stands_for_all_sources_below_it(world: World) -> None:
    dataset, folder = world.metadata.dataset("data"), os.fsencode(world.folder)
    report = detach(world.store, world.metadata, dataset, folder, NOW_NS, world.ids)
    assert (report.entries, report.sources) == (40, 2)
    assert world.read() == {b"plain": b"ordinary"}
    with pytest.raises(NotFound):  # the beginning of a name is no folder
        world.detach("a.ta")


def test_purge_keeps_attached_chunks(world: World) -> None:
    world.put({b"a.tar/0000": b"new"})
    assert world.purge().chunks_rewritten == 0
    assert world.attached() == 4
    world.assert_whole()


def test_attached_chunks_that_a_tag_needs_wait_for_nothing(world: World) -> None:
    TagStore(world.store, IDENTITY).add(
        Snapshot(signed(build_snapshot(world.metadata.entry_table(DATASET)), IDENTITY), "v1"), "v1"
    )
    world.put({b"a.tar/0000": b"new"})
    report = world.purge()
    assert (report.chunks_waiting, report.held_by) == (0, ())


def test_copies_need_no_sources(world: World) -> None:
    world.put({b"a.tar/0000": b"new"})
    assert world.copy() == 4
    assert (world.listed(), world.copy()) == ([], 0)
    report = world.purge()
    assert report.chunks_removed == 4
    assert report.bytes_freed < 6000  # the payloads were not here
    assert world.attached() == 0
    for name in ("a.tar", "b.tar"):
        (world.folder / name).unlink()
    world.assert_whole()


def test_a_source_that_cannot_be_read_ends_the_copies(world: World) -> None:
    os.utime(world.folder / "b.tar", ns=(0, 1))
    with pytest.raises(Damaged, match=r"b\.tar: it has changed since it was attached"):
        world.copy()
    world.detach("b.tar")
    assert world.copy() == 2
    (world.folder / "a.tar").unlink()
    world.assert_whole()
