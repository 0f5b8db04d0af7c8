"""`dlcmd find`: the entries of a dataset that have certain names, types and sizes."""

from collections.abc import Sequence

import click

from dieselfs.errors import EXIT_OK, InvalidInput
from dieselfs.names import SCHEME, Location
from dieselfs_tools import options
from dieselfs_tools.entries import Entry
from dieselfs_tools.output import write_bytes
from dieselfs_tools.patterns import Pattern
from dieselfs_tools.session import Session

TYPES = {"file": "file", "folder": "folder", "link": "link", "f": "file", "d": "folder", "l": "link"}


@options.verb(
    "find",
    "dlcmd find dl://pets --name '*.jpg' --min-size 1M",
    "dlcmd find dl://imagenet@v1/train --type folder",
    "dlcmd find dl://pets --name 'old/*' --null | xargs -0 -n 100 dlcmd rm",
)
@click.argument("locations", nargs=-1, required=True, type=options.LOCATION, metavar="dl://DATASET/PATH...")
@click.option(
    "--name",
    "patterns",
    multiple=True,
    type=options.Parsed("PATTERN", Pattern),
    help="Entries with this name, as '*.jpg'; with a slash: this path. Several: any of them.",
)
@click.option("--type", "kind", type=click.Choice(list(TYPES)), help="Only entries of this type.")
@click.option("--min-size", type=options.SIZE, help="Only files of at least this size.")
@click.option("--max-size", type=options.SIZE, help="Only files of at most this size.")
@options.flag("-l", "--long", "is_long", text="Print mode, size, time and the target of a link.")
@options.flag("-0", "--null", "is_null", text="Print raw locations, each with a NUL byte at its end.")
@options.human
def find(
    session: Session,
    locations: Sequence[Location],
    patterns: Sequence[Pattern],
    kind: str | None,
    min_size: int | None,
    max_size: int | None,
    is_long: bool,
    is_null: bool,
) -> int:
    """Print the locations of entries below folders, in the order of their paths, without the folders given.

    A pattern without a slash is matched with the name, one with a slash with the path in the dataset; '*' matches
    slashes too. All conditions must hold. Nothing found is no error.
    """
    output, found, total_bytes = session.output, 0, 0
    if is_null and (output.is_json or is_long):
        raise InvalidInput("--null does not go with --json or --long")
    has_sizes = min_size is not None or max_size is not None
    for location in locations:
        snapshot = session.dataset(location.state).snapshot
        top = snapshot.require(location.path)
        nodes = snapshot.walk(top) if snapshot.stat(top).is_folder else iter([top])
        for node in nodes:
            path = snapshot.path(node)
            if patterns and not any(pattern.matches(path) for pattern in patterns):
                continue
            entry = Entry.of_snapshot(snapshot, node)
            if kind is not None and entry.type != TYPES[kind]:
                continue
            if has_sizes and (entry.type != "file" or not _is_within(entry.size, min_size, max_size)):
                continue
            found += 1
            total_bytes += entry.size if entry.type == "file" else 0
            place = f"{SCHEME}{location.state}/".encode("ascii") + path
            if is_null:
                write_bytes(place + b"\0")
            else:
                text = entry.line(output, place, is_long)
                output.record("entry", text, {"dataset": location.state, **entry.fields()})
    if is_null:
        return EXIT_OK
    return output.summary("", {"entries": found, "bytes": total_bytes})


def _is_within(size: int, least: int | None, most: int | None) -> bool:
    return (least is None or size >= least) and (most is None or size <= most)
