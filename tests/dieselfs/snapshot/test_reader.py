"""Reading a snapshot: finding, listing, stat, extents, from a file, across threads and forks."""

import os
import stat
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from dieselfs.chunk.format import Op
from dieselfs.digests import digest_of, extent_digest_of
from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.snapshot import reader
from dieselfs.snapshot.reader import ROOT, ExtentRef, Snapshot, Stat
from tests.support.snapshots import SAMPLE, SOURCE, Entry, file_of, snapshot_bytes

MANY = {b"folder%02d/file%04d" % (number % 17, number): file_of((0, number, 1)) for number in range(3000)}


@pytest.fixture
def snapshot() -> Snapshot:
    return Snapshot(snapshot_bytes(SAMPLE), SOURCE)


def paths_of(snapshot: Snapshot, nodes: range) -> list[bytes]:
    return [snapshot.path(node) for node in nodes]


def test_every_path_is_found_and_no_other(snapshot: Snapshot) -> None:
    for node in range(len(snapshot)):
        assert snapshot.find(snapshot.path(node)) == node
        assert snapshot.require(snapshot.path(node)) == node
    for path in (
        b"t",
        b"trai",
        b"train/",
        b"/train",
        b"train/cat.tx",
        b"train/cat.txt/",
        b"cat.txt",
        b"\0",
        b"x" * 5000,
    ):
        assert snapshot.find(path) == -1
        with pytest.raises(NotFound, match=r"^dl://pets/.*: no such file or folder$"):
            snapshot.require(path)


def test_parents_names_and_children_agree(snapshot: Snapshot) -> None:
    assert (snapshot.path(ROOT), snapshot.name(ROOT), snapshot.parent(ROOT)) == (b"", b"", ROOT)
    for folder in range(len(snapshot)):
        names = [snapshot.name(node) for node in snapshot.children(folder)]
        assert names == sorted(names)
        for node, name in zip(snapshot.children(folder), names, strict=True):
            assert (snapshot.parent(node), snapshot.child(folder, name)) == (folder, node)
    assert paths_of(snapshot, snapshot.children(ROOT)) == [b"latest", b"test", b"train"]
    assert snapshot.child(ROOT, b"other") == -1


def test_only_folders_have_children(snapshot: Snapshot) -> None:
    for path in (b"latest", b"train/empty", b"train/video.mp4"):
        assert list(snapshot.children(snapshot.find(path))) == []


def test_walk_goes_in_the_order_of_parts(snapshot: Snapshot) -> None:
    assert [snapshot.path(node) for node in snapshot.walk()] == [
        b"latest",
        b"test",
        b"test/dog.txt",
        b"train",
        b"train/cat.txt",
        b"train/empty",
        b"train/video.mp4",
    ]
    train = snapshot.find(b"train")
    assert [snapshot.name(node) for node in snapshot.walk(train)] == [b"cat.txt", b"empty", b"video.mp4"]
    assert list(snapshot.walk(snapshot.find(b"latest"))) == []


def test_walk_is_as_deep_as_the_folders() -> None:
    deep = b"/".join([b"d"] * 1024)
    snapshot = Snapshot(snapshot_bytes({deep: file_of()}), SOURCE)
    snapshot.verify()
    assert [len(snapshot.path(node)) for node in snapshot.walk()] == list(range(1, 2048, 2))


def test_stat(snapshot: Snapshot) -> None:
    assert snapshot.stat(ROOT) == Stat(1, stat.S_IFDIR | 0o755, 0, 1_600_000_000_000_000_004)
    folder = snapshot.stat(snapshot.find(b"train"))
    assert isinstance(folder, Stat)
    assert (folder.is_folder, folder.is_file, folder.is_link) == (True, False, False)
    video = snapshot.find(b"train/video.mp4")
    assert snapshot.stat(video) == Stat(video + 1, stat.S_IFREG | 0o644, 130, 1_600_000_000_000_000_003)
    assert (snapshot.mode(video), snapshot.size(video)) == (stat.S_IFREG | 0o644, 130)
    link = snapshot.stat(snapshot.find(b"latest"))
    assert (link.is_link, link.size, link.mtime_ns) == (True, len(b"train/cat.txt"), -1)


def test_targets(snapshot: Snapshot) -> None:
    assert snapshot.target(snapshot.find(b"latest")) == b"train/cat.txt"
    for path in (b"", b"train", b"train/cat.txt", b"train/video.mp4"):
        with pytest.raises(NotFound, match="not a symbolic link"):
            snapshot.target(snapshot.find(path))


def test_targets_of_several_links() -> None:
    tree = {b"l%d" % number: Entry(Op.SYMLINK, target=b"t" * (number + 1)) for number in range(20)}
    snapshot = Snapshot(snapshot_bytes({**tree, b"f": file_of()}), SOURCE)
    assert {path: snapshot.target(snapshot.find(path)) for path in tree} == {
        path: entry.target for path, entry in tree.items()
    }


def test_extents_of_parts_of_a_file() -> None:
    extents = [(0, 0, 10), (1, 5, 20), (2, 7, 5), (0, 50, 100)]
    snapshot = Snapshot(snapshot_bytes({b"a": file_of((1, 0, 1)), b"f": file_of(*extents)}, 3), SOURCE)
    file = snapshot.find(b"f")
    everything = snapshot.extents(file)
    assert [(extent.chunk, extent.offset, extent.length) for extent in everything] == extents
    for start in range(136):
        for end in range(start, 140):
            expected = [
                extent for extent in everything if extent.place < end and start < extent.place + extent.length
            ]
            assert [e for e in snapshot.extents(file, start, end) if e in expected] == expected
            assert len(snapshot.extents(file, start, end)) <= len(expected) + 1
    assert snapshot.extents(snapshot.find(b"a"), 0, 1) == [ExtentRef(0, 1, 0, 1, extent_digest_of(b"1:0"))]
    assert snapshot.extents(ROOT) == []


def test_chunks(snapshot: Snapshot) -> None:
    assert snapshot.chunk_count == 2
    assert snapshot.chunk_id(1) == (2).to_bytes(16, "big")
    assert snapshot.chunk_payload_length(1) == 1 << 16
    assert (snapshot.chunk_digest(0), snapshot.chunk_digest(1)) == (digest_of(b"\0"), digest_of(b"\1"))


def test_following_links() -> None:
    tree = {
        b"a/b/file": file_of(),
        b"a/up": Entry(Op.SYMLINK, target=b"../c"),
        b"c": Entry(Op.SYMLINK, target=b"a/./b//"),
        b"out": Entry(Op.SYMLINK, target=b"../../etc/passwd"),
        b"absolute": Entry(Op.SYMLINK, target=b"/etc/passwd"),
        b"round": Entry(Op.SYMLINK, target=b"round"),
        b"nowhere": Entry(Op.SYMLINK, target=b"nothing"),
    }
    snapshot = Snapshot(snapshot_bytes(tree), SOURCE)
    for path in (b"a/b/file", b"c/file", b"a/up/file"):
        assert snapshot.path(snapshot.follow(path)) == b"a/b/file"
    assert snapshot.follow(b"") == ROOT
    for path in (b"out", b"absolute", b"round", b"nowhere", b"c/other", b"a/up/file/x"):
        with pytest.raises(NotFound, match=f"^dl://pets/{path.decode()}: no such file or folder$"):
            snapshot.follow(path)


def test_the_paths_of_many_nodes_at_once_are_those_of_each() -> None:
    nodes = np.array([MANY_SNAPSHOT.find(path) for path in MANY], np.uint32)
    assert MANY_SNAPSHOT.path_many(nodes) == [*MANY]
    assert MANY_SNAPSHOT.path_lines(nodes[::-1], b"\0") == b"".join(path + b"\0" for path in [*MANY][::-1])
    assert MANY_SNAPSHOT.path_lines(nodes[:0], b"\0") == b""


MANY_SNAPSHOT = Snapshot(snapshot_bytes(MANY), SOURCE)


def test_a_path_with_the_same_mark_as_another(snapshot: Snapshot) -> None:
    """Hashes of two paths may agree in all that the index keeps: then the paths themselves tell."""
    colliding = bytearray(snapshot_bytes(SAMPLE))
    offset = snapshot.header.sections["hash_slots"].offset
    slots = np.frombuffer(colliding, np.uint64, offset=offset)
    place = int(np.flatnonzero(slots)[0])
    assert slots[place + 1] == 0
    first = snapshot.path(int(slots[place] & np.uint64(0xFFFF_FFFF)) - 1)
    # Another node with the same mark, in front of it.
    slots[place + 1] = slots[place]
    slots[place] = (slots[place] & np.uint64(0xFFFF_FFFF << 32)) | np.uint64(1)
    doctored = Snapshot(bytes(colliding), SOURCE)
    assert doctored.find(first) == snapshot.find(first)
    assert doctored.find(first + b"x") == -1


# -- files, threads, forks ---------------------------------------------------------------------------------


def test_open_maps_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pets.snapshot"
    path.write_bytes(snapshot_bytes(SAMPLE))
    snapshot = Snapshot.open(path)
    snapshot.verify()
    assert snapshot.path(snapshot.find(b"train/cat.txt")) == b"train/cat.txt"
    assert snapshot.source == str(path)
    path.unlink()
    assert snapshot.path(snapshot.find(b"test/dog.txt")) == b"test/dog.txt"


def test_open_says_what_is_wrong_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="snapshot file not found"):
        Snapshot.open(tmp_path / "none")
    with pytest.raises(InvalidInput, match="cannot be read as a snapshot: Is a directory"):
        Snapshot.open(tmp_path)
    path = tmp_path / "bad"
    for content in (b"", b"x", b"x" * 1000, snapshot_bytes(SAMPLE)[:-1], snapshot_bytes(SAMPLE) + b"\0"):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=f"^{path}: offset "):
            Snapshot.open(path)


def test_columns_lie_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "pets.snapshot"
    path.write_bytes(snapshot_bytes(SAMPLE))
    sizes = Snapshot.open(path).column("sizes")
    assert not sizes.flags.owndata
    assert not sizes.flags.writeable
    assert sizes.sum() == 139 + len(b"train/cat.txt")


def test_threads_share_one() -> None:
    def find_all(_: int) -> bool:
        return all(MANY_SNAPSHOT.path(MANY_SNAPSHOT.find(path)) == path for path in MANY)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(find_all, range(4)))


def test_a_forked_child_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "many.snapshot"
    path.write_bytes(snapshot_bytes(MANY))
    snapshot = Snapshot.open(path)
    child = os.fork()
    if child == 0:
        found = all(snapshot.path(snapshot.find(path)) == path for path in MANY)
        os._exit(0 if found else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "tree",
    [SAMPLE, MANY, {}, {b"empty": file_of()}, {b"folder": Entry(Op.DIRECTORY, 0o755, 0)}],
    ids=["sample", "many", "nothing", "empty file", "folder"],
)
@pytest.mark.parametrize("blocks_max", [reader._BLOCKS_MAX, 0])
def test_files_of_one_extent_are_found_one_at_a_time_and_many_at_once(
    tree: dict[bytes, Entry], blocks_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_BLOCKS_MAX", blocks_max)
    snapshot = Snapshot(snapshot_bytes(tree), SOURCE)
    nodes = np.arange(len(snapshot))
    rows = zip(*(column.tolist() for column in snapshot.sole_extents(nodes)), strict=True)
    for node, row in zip(nodes.tolist(), rows, strict=True):
        extents = snapshot.extents(node)
        if len(extents) == 1:
            (extent,) = extents
            assert row == (extent.chunk, extent.offset, extent.offset + extent.length)
            assert snapshot.sole_extent(node) == snapshot.sole_extent_at(snapshot.path(node)) == row
        else:
            assert row[0] == -1 and snapshot.sole_extent(node) is None
            assert snapshot.sole_extent_at(snapshot.path(node)) is None


def test_the_memory_for_look_ups_in_a_large_snapshot_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BLOCKS_MAX", 0)
    monkeypatch.delattr(reader, "_sole_extents")  # what makes a block
    assert Snapshot(snapshot_bytes(MANY), SOURCE).sole_extent_at(next(iter(MANY))) is not None


def test_a_snapshot_in_which_files_were_found_is_freed_without_a_garbage_collection() -> None:
    snapshot = Snapshot(snapshot_bytes(MANY), SOURCE)
    gone = weakref.ref(snapshot)
    assert snapshot.sole_extent_at(next(iter(MANY))) is not None
    del snapshot
    assert gone() is None


@pytest.mark.parametrize("strange", [[], [b""], [b"missing"], [b"", b"missing", b"x" * 5000]])
def test_many_paths_are_found_as_each_alone(strange: list[bytes]) -> None:
    paths = [*MANY, *strange, *list(MANY)[:3]]
    Random(1).shuffle(paths)
    for wanted in (paths, paths[:1], [], strange):
        assert MANY_SNAPSHOT.find_many(wanted).tolist() == [MANY_SNAPSHOT.find(path) for path in wanted]


def test_a_path_with_the_hash_of_another_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(iter(MANY))
    digest = xxh3_64_intdigest
    monkeypatch.setattr(reader, "xxh3_64_intdigest", lambda wanted, seed: digest(path, seed))
    for other in (path[:-1] + b"\xff", path + b"x"):
        assert MANY_SNAPSHOT.find_many([path, other]).tolist() == [MANY_SNAPSHOT.find(path), -1]
