"""Where sources go: the rule of rsync; and what --exclude and --include select."""

import os
from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.names import parse_location
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.transfers.trees import Source, SourceTrees, find_sources, listed_sources, place_of


@pytest.mark.parametrize(
    ("source", "is_folder", "destination", "is_into", "path"),
    [
        (b"./imagenet/", True, "dl://d/", True, b""),
        (b"./imagenet", True, "dl://d/", True, b"imagenet"),
        (b"./imagenet", True, "dl://d", True, b"imagenet"),
        (b"imagenet//", True, "dl://d/x/", True, b"x"),
        (b"imagenet", True, "dl://d/x/", True, b"x/imagenet"),
        (b"imagenet", True, "dl://d/x", False, b"x/imagenet"),
        (b".", True, "dl://d/x/", True, b"x"),
        (b"a/..", True, "dl://d/x/", True, b"x"),
        (b"/", True, "dl://d/x/", True, b"x"),
        (b"in/cat.jpg", False, "dl://d/", True, b"cat.jpg"),
        (b"in/cat.jpg", False, "dl://d/x/", True, b"x/cat.jpg"),
        (b"in/cat.jpg", False, "dl://d/x/tom.jpg", False, b"x/tom.jpg"),
        (b"in/cat.jpg", False, "dl://d/x", True, b"x/cat.jpg"),
    ],
)
def test_where_a_source_goes(
    source: bytes, is_folder: bool, destination: str, is_into: bool, path: bytes
) -> None:
    assert place_of(source, is_folder, parse_location(destination), is_into) == path


def test_what_is_missing_or_a_folder_is_refused(tmp_path: Path) -> None:
    place = parse_location("dl://d/")
    with pytest.raises(NotFound, match="nothing: No such file"):
        find_sources([str(tmp_path / "nothing")], place, True, True)
    with pytest.raises(InvalidInput, match="put it with -r"):
        find_sources([str(tmp_path)], place, True, False)
    (tmp_path / "..x").touch()
    with pytest.raises(InvalidInput, match="longer than"):
        find_sources(
            [str(tmp_path / "..x")], parse_location(f"dl://d/{'y/' * 2000}{'z' * 100}/"), True, False
        )


def test_a_named_link_is_followed_unless_recursive(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    place, link = parse_location("dl://d/"), str(tmp_path / "link")
    assert find_sources([link], place, True, False) == [
        Source(os.fsencode(tmp_path / "file"), b"link", False)
    ]
    assert find_sources([link], place, True, True) == [Source(os.fsencode(link), b"link", False)]


def test_a_walk_leaves_out_what_is_excluded(tmp_path: Path) -> None:
    for folder in ("a/b", ".git/x"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "f.py").touch()
        (tmp_path / folder / "f.o").touch()
    source = Source(os.fsencode(tmp_path), b"in", True)

    def paths(patterns: Patterns, is_recursive: bool = True) -> set[bytes]:
        return {entry.path for entry in SourceTrees([source], patterns, is_recursive)(lambda *_: None)}

    assert paths(Patterns([".git", "*.o"])) == {b"in", b"in/a", b"in/a/b", b"in/a/b/f.py"}
    assert paths(Patterns(["*"], ["*.py"])) == {b"in", b"in/a/b/f.py", b"in/.git/x/f.py"}
    assert paths(Patterns(), is_recursive=False) == {b"in"}


def test_a_list_names_what_is_below_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").touch()
    failures: list[tuple[bytes, str]] = []
    names = [b"a/f", b"./a/", b"gone", b"../etc/passwd", b"/etc/passwd"]
    folder = Source(os.fsencode(tmp_path), b"in", True)
    found = list(listed_sources(names, folder, lambda *failure: failures.append(failure)))
    assert [(one.path, one.is_folder) for one in found] == [(b"in/a/f", False), (b"in/a", True)]
    assert [name for name, _ in failures] == [b"gone", b"../etc/passwd", b"/etc/passwd"]
