from pathlib import Path

import pytest

from dieselfs.snapshot.reader import ROOT, Snapshot
from dieselfs.snapshot.subtree import files_below, nodes_below
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


def test_below_the_root_is_everything_but_the_root(snapshot: Snapshot) -> None:
    assert sum(map(len, nodes_below(snapshot))) == len(snapshot) - 1
    assert ROOT not in files_below(snapshot)
