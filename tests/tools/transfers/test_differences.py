"""What differs between two trees, and how it is printed."""

import stat

import pytest

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL
from dieselfs_tools.cli.output import Output
from dieselfs_tools.transfers.entries import Entry
from dieselfs_tools.transfers.trees import (
    ADDED,
    ATTRIBUTES,
    CHANGED,
    REMOVED,
    differences,
    print_differences,
)

FILE = Entry(b"a/f", stat.S_IFREG | 0o644, 5, 7)
FOLDER = Entry(b"a", stat.S_IFDIR | 0o755, 0, 7)
LINK = Entry(b"a/l", stat.S_IFLNK | 0o777, 1, 7, b"f")


@pytest.mark.parametrize(
    ("old", "new", "is_same_content", "change"),
    [
        (FILE, FILE, True, None),
        (FILE, FILE, False, CHANGED),
        (FILE, FILE._replace(size=6), True, CHANGED),
        (FILE, FILE._replace(mtime_ns=8), True, ATTRIBUTES),
        (FILE, FILE._replace(mode=stat.S_IFREG | 0o600), True, ATTRIBUTES),
        (FOLDER, FOLDER._replace(mtime_ns=8), False, None),
        (FOLDER, FOLDER._replace(mode=stat.S_IFDIR | 0o700), True, ATTRIBUTES),
        (FOLDER, FILE._replace(path=b"a"), True, CHANGED),
        (LINK, LINK._replace(target=b"g"), True, CHANGED),
        (None, FILE, True, ADDED),
        (FILE, None, True, REMOVED),
    ],
)
def test_a_change(old: Entry | None, new: Entry | None, is_same_content: bool, change: str | None) -> None:
    first, second = ({each.path: each} if each else {} for each in (old, new))
    found = [one.change for one in differences(first, second, lambda _: is_same_content)]
    assert found == ([change] if change else [])


def test_contents_are_compared_only_where_it_matters() -> None:
    def never(path: bytes) -> bool:
        raise AssertionError(path)

    first = {b"a": FOLDER, b"a/f": FILE, b"a/l": LINK}
    second = {**first, b"a/f": FILE._replace(size=9), b"z": FILE._replace(path=b"z")}
    assert [one.entry.path for one in differences(first, second, never)] == [b"a/f", b"z"]


def test_lines_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = {b"a": FOLDER, b"a/f": FILE}, {b"a/f": FILE._replace(size=6), b"a/l": LINK}
    assert print_differences(Output(), differences(first, second, lambda _: True), 2) == EXIT_PARTIAL
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["- a/", "* a/f", "+ a/l"]
    assert "3 differences: 1 added, 1 removed, 1 changed" in printed.err
    assert print_differences(Output(), differences(first, first, lambda _: True), 2) == EXIT_OK
    assert capsys.readouterr().out == "no differences in 2 entries\n"
    assert print_differences(Output(), iter(()), 2, [("x", "Permission denied")]) == EXIT_PARTIAL
    assert "x: Permission denied" in capsys.readouterr().err
