from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput, PathNotFound
from dieselfs.snapshot.reader import ROOT, Snapshot
from dieselfs.snapshot.subtree import files_below, nodes_below, subtree_snapshot, walk_order
from tests.support.dataset import pack_tree


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    root = tmp_path_factory.mktemp("tree")
    for path in ("1", "a/1", "a/b/1", "a/b/2", "a/b/c/d/1", "b/1", "b/c/1", "b/c/2", "c/a/a/a/1", "d.txt"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Path(root, path).write_text(path)
    for empty in ("a/empty", "empty", "c/a/a/z"):
        (root / empty).mkdir()
    (root / "a/link").symlink_to("1")
    return pack_tree(root).snapshot


def test_below_every_node_lies_what_a_walk_finds(snapshot: Snapshot) -> None:
    for node in range(len(snapshot)):
        walked = sorted(snapshot.walk(node))
        assert [below for level in nodes_below(snapshot, node) for below in level] == walked
        files = files_below(snapshot, node).tolist()
        assert files == [below for below in walked if snapshot.stat(below).is_file]


def test_all_nodes_come_in_the_order_of_a_walk(snapshot: Snapshot) -> None:
    for node in range(len(snapshot)):
        assert walk_order(snapshot, node).tolist() == [*snapshot.walk(node)]


def test_below_the_root_is_everything_but_the_root(snapshot: Snapshot) -> None:
    assert sum(map(len, nodes_below(snapshot))) == len(snapshot) - 1
    assert ROOT not in files_below(snapshot)


def test_the_snapshot_of_a_folder_is_that_of_the_folder_alone(snapshot: Snapshot) -> None:
    for folder in (node for node in range(len(snapshot)) if snapshot.stat(node).is_folder):
        path = snapshot.path(folder)
        part = Snapshot(subtree_snapshot(snapshot, path), "part", path)
        part.verify()
        assert part.location == f"{snapshot.dataset}/{path.decode()}".rstrip("/")
        walked = [folder, *snapshot.walk(folder)]
        assert len(part) == len(walked)
        for node in walked:
            same = part.require(snapshot.path(node)[len(path) :].strip(b"/"))
            assert part.stat(same)[1:] == snapshot.stat(node)[1:]
            assert [
                (part.chunk_id(each.chunk), part.chunk_digest(each.chunk), each._replace(chunk=0))
                for each in part.extents(same)
            ] == [
                (snapshot.chunk_id(each.chunk), snapshot.chunk_digest(each.chunk), each._replace(chunk=0))
                for each in snapshot.extents(node)
            ]
            if snapshot.stat(node).is_link:
                assert part.target(same) == snapshot.target(node)
        assert part.chunk_count == len(set(part.column("extent_chunks").tolist()))


def test_the_snapshot_of_the_root_is_the_whole(snapshot: Snapshot) -> None:
    assert subtree_snapshot(snapshot, b"") == bytes(snapshot.content)


def test_only_a_folder_has_a_snapshot(snapshot: Snapshot) -> None:
    with pytest.raises(InvalidInput, match=r"/d\.txt is not a folder"):
        subtree_snapshot(snapshot, b"d.txt")
    with pytest.raises(PathNotFound, match="/missing: no such file or folder"):
        subtree_snapshot(snapshot, b"missing")
