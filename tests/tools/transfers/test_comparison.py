"""Comparing folders: the same is the same, and every kind of difference is seen."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dieselfs_tools.transfers.comparison import compare_trees
from tests.support.trees import odd_tree


def copy(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "a").mkdir()
    first, second = odd_tree(tmp_path / "a"), tmp_path / "b"
    shutil.copytree(first, second, symlinks=True)
    return first, second


def test_a_copy_is_the_same(tmp_path: Path) -> None:
    first, second = copy(tmp_path)
    found = compare_trees(os.fsencode(first), os.fsencode(second))
    assert (found.differences, found.shown) == (0, [])
    assert found.files + found.links + found.folders == 1 + sum(
        len(fs) + len(ds) for _, ds, fs in os.walk(first)
    )


def _flip(path: Path) -> None:
    status = path.stat()
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    os.utime(path, ns=(0, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda root: _flip(root / "sizes" / "4096"), "sizes/4096: differs in the block from byte 0 on"),
        (lambda root: (root / "modes" / "644").chmod(0o640), "modes/644: has mode"),
        (lambda root: os.utime(root / "modes" / "644", ns=(0, 5)), "modes/644: has time"),
        (lambda root: os.utime(root / "empty" / "emptier", ns=(0, 5)), "empty/emptier: has time"),
        (lambda root: (root / "names" / "extra").touch(), "names/extra: is only in one of them"),
        (lambda root: (root / "names" / "plain.txt").unlink(), "names/plain.txt: is only in one of them"),
    ],
)
def test_a_difference_is_named(tmp_path: Path, change: Callable[[Path], object], what: str) -> None:
    first, second = copy(tmp_path)
    change(second)
    found = compare_trees(os.fsencode(first), os.fsencode(second))
    assert any(what in line for line in found.shown), found.shown


def test_links_and_types_count(tmp_path: Path) -> None:
    for name, target in (("a", "x"), ("b", "y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "link").symlink_to(target)
        os.utime(tmp_path / name / "link", ns=(0, 0), follow_symlinks=False)
    (tmp_path / "a" / "f").touch()
    (tmp_path / "b" / "f").mkdir()
    shown = compare_trees(os.fsencode(tmp_path / "a"), os.fsencode(tmp_path / "b")).shown
    assert {line for line in shown if "time" not in line} == {
        "f: is not of the same type",
        "link: does not lead to the same place",
    }


def test_what_is_left_out_does_not_count(tmp_path: Path) -> None:
    first, second = copy(tmp_path)
    shutil.rmtree(second / "folders")
    found = compare_trees(os.fsencode(first), os.fsencode(second), [b"folders"])
    assert all("has time" in line for line in found.shown)
