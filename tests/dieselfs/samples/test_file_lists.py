"""Datasets of single files, in plain folders: what patterns match, and what is missing."""

import os
import pickle  # noqa: TID251  # as a DataLoader hands a dataset to spawned workers
import warnings
from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.samples.file_lists import FileSamples, match_files
from tests.support.dataset import pack_tree

FILES = ["a.jpg", "b.JPG", "notes.txt", "sub/c.jpg", "sub/deep/d.jpg", "sub/deep/e[1].jpg", "z/.hidden.jpg"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (None, FILES),
        ("*.jpg", ["a.jpg"]),
        ("**/*.jpg", ["a.jpg", "sub/c.jpg", "sub/deep/d.jpg", "sub/deep/e[1].jpg", "z/.hidden.jpg"]),
        ("*.[jJ][pP][gG]", ["a.jpg", "b.JPG"]),
        ("[!a].*", ["b.JPG"]),
        ("sub/**", ["sub/c.jpg", "sub/deep/d.jpg", "sub/deep/e[1].jpg"]),
        ("sub/*/?.jpg", ["sub/deep/d.jpg"]),
        ("**/e[[]1].jpg", ["sub/deep/e[1].jpg"]),
        (["*.txt", "sub/*.jpg", "notes.*"], ["notes.txt", "sub/c.jpg"]),
    ],
)
def test_patterns(root: Path, patterns: str | list[str] | None, expected: list[str]) -> None:
    with FileSamples(root, patterns) as samples:
        assert samples.__getitems__(range(len(samples))) == [name.encode() for name in expected]
        assert [samples.path(index) for index in range(len(samples))] == expected
        assert list(samples.samples) == list(samples.imgs) == [str(root / name) for name in expected]


def test_a_pattern_with_a_reversed_range_is_refused(root: Path) -> None:
    with pytest.raises(InvalidInput, match="is not possible"):
        FileSamples(root, "[z-a].jpg")


@pytest.mark.parametrize("pattern", ["[--a].jpg", "[+--a].jpg", "[a&&b].jpg", "[a||~~].jpg", "[[a].jpg"])
def test_no_set_operations(root: Path, pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FileSamples(root, pattern).path(0) == "a.jpg"


def test_a_list_has_its_own_order_and_may_repeat(root: Path) -> None:
    (root / "link.jpg").symlink_to("sub/c.jpg")
    names = ["sub/c.jpg", "a.jpg", str(root / "b.JPG"), "sub/c.jpg", "link.jpg"]
    with FileSamples(root, files=names, transform=bytes.decode, target=len) as samples:
        assert samples[0] == samples[3] == ("sub/c.jpg", 9)
        assert [item for item, _ in samples.__getitems__([1, 2])] == ["a.jpg", "b.JPG"]
        copy = pickle.loads(pickle.dumps(samples))
        assert copy.__getitems__([4, 1]) == samples.__getitems__([4, 1])
    assert repr(samples) == f"<dieselfs.samples.FileSamples {str(root)!r}: 5 samples>"


def test_paths_relative_to_the_folder_of_a_dataset(root: Path) -> None:
    with FileSamples(root / "sub", files=["deep/d.jpg", str(root / "sub/c.jpg")], target=str) as samples:
        assert [samples[0], samples[1]] == [(b"sub/deep/d.jpg", "deep/d.jpg"), (b"sub/c.jpg", "c.jpg")]


def test_what_is_missing_is_named(root: Path) -> None:
    with pytest.raises(NotFound, match=r"7 of 8 files do not exist: 0, 1, 2, 3, 4, \.\.\."):
        FileSamples(root, files=["a.jpg", *map(str, range(7))])
    with pytest.raises(NotFound, match="1 of 1 files do not exist: sub"):
        FileSamples(root, files=["sub"])
    with pytest.raises(NotFound, match=r"no file matches \*\.png, \*\.gif"):
        FileSamples(root, ["*.png", "*.gif"])
    with pytest.raises(InvalidInput, match="not below"):
        FileSamples(root, files=["/etc/passwd"])
    with pytest.raises(InvalidInput, match="empty"):
        FileSamples(root, files=[])
    with pytest.raises(InvalidInput, match="not a pattern"):
        FileSamples(root, "/")
    with pytest.raises(InvalidInput, match="not both"):
        FileSamples(root, "*.jpg", files=["a.jpg"])


def test_a_link_that_matches_is_refused(root: Path) -> None:
    (root / "sub/link.jpg").symlink_to("c.jpg")
    (root / "sub/broken.jpg").symlink_to("nowhere")
    snapshot = pack_tree(root).snapshot
    with pytest.raises(InvalidInput, match=r"sub/link\.jpg is a symbolic link: name it in files="):
        match_files(snapshot, b"sub", ["*.jpg"])
    assert len(match_files(snapshot, b"sub", ["c.*"])) == 1
    assert [os.fsdecode(snapshot.path(int(node))) for node in match_files(snapshot, b"", ["*.jpg"])] == [
        "a.jpg"
    ]
    with pytest.raises(InvalidInput, match="is not a folder"):
        match_files(snapshot, b"a.jpg", None)
