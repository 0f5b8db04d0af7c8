"""`dlcmd tree`: folders and their content as a drawing."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from dieselfs.names import Location, split_path
from dieselfs.units import count
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.entries import Entry

if TYPE_CHECKING:
    from dieselfs.snapshot.reader import Snapshot

LINES, ASCII_LINES = ("├── ", "└── ", "│   ", "    "), ("|-- ", "`-- ", "|   ", "    ")
"""Before an entry, before the last one of a folder, and below each."""


@options.verb(
    "tree",
    "dlcmd tree dl://pets",
    "dlcmd tree -d -L 2 dl://imagenet@v1      # two levels of folders",
)
@click.argument("location", type=options.LOCATION, metavar="dl://DATASET/PATH")
@click.option("-L", "--level", "levels", type=click.IntRange(1), help="Only this many levels.")
@options.flag("-d", "--folders", "is_folders", text="Only folders.")
def tree(session: Session, location: Location, levels: int | None, is_folders: bool) -> int:
    """Draw a folder with its content, sorted by name. A slash marks a folder."""
    output, snapshot = session.output, session.dataset(location.state).snapshot
    top = snapshot.require(location.path)
    try:
        "".join(LINES).encode(sys.stdout.encoding)
        lines = LINES
    except UnicodeEncodeError:
        lines = ASCII_LINES
    output.note(str(location))
    folders = others = 0
    for before, node in drawn(snapshot, top, lines, levels, is_folders):
        entry = Entry.of_snapshot(snapshot, node)
        folders += entry.is_folder
        others += not entry.is_folder
        text = before + entry.line(output, split_path(entry.path)[1], is_long=False)
        output.record("entry", text, entry.fields())
    others_text = "" if is_folders else f", {count(others, 'file')}"
    fields = {"folders": folders} if is_folders else {"folders": folders, "files": others}
    return output.summary(count(folders, "folder") + others_text, fields)


def drawn(
    snapshot: "Snapshot",
    top: int,
    lines: tuple[str, str, str, str] = LINES,
    levels: int | None = None,
    is_folders: bool = False,
) -> Iterator[tuple[str, int]]:
    """The entries below `top`, each with the lines before its name. `levels`: None for all."""
    tee, corner, pipe, blank = lines
    # The entries to come, in reverse order; a stack, as folders may be nested deeper than Python's calls.
    ahead: list[tuple[str, int, bool]] = []

    def add(before: str, folder: int) -> None:
        nodes = [
            node for node in snapshot.children(folder) if not is_folders or snapshot.stat(node).is_folder
        ]
        ahead.extend((before, node, node == nodes[-1]) for node in reversed(nodes))

    if snapshot.stat(top).is_folder:
        add("", top)
    while ahead:
        before, node, is_last = ahead.pop()
        yield before + (corner if is_last else tee), node
        is_deep = levels is not None and len(before) // len(blank) + 1 >= levels
        if snapshot.stat(node).is_folder and not is_deep:
            add(before + (blank if is_last else pipe), node)
