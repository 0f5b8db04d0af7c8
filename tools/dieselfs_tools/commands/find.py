"""`dlcmd find`: the entries of a dataset that have certain names, types and sizes."""

from collections.abc import Sequence

import click

from dieselfs.errors import EXIT_OK, InvalidInput
from dieselfs.names import SCHEME, Location
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import write_bytes
from dieselfs_tools.cli.patterns import Pattern, Patterns
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.entries import Entry

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
    "names",
    multiple=True,
    type=options.Parsed("PATTERN", Pattern),
    help="Entries with this name, as '*.jpg', or path. Several: any of them.",
)
@click.option("--type", "kind", type=click.Choice(list(TYPES)), help="Only entries of this type.")
@click.option("--min-size", type=options.SIZE, help="Only files of at least this size.")
@click.option("--max-size", type=options.SIZE, help="Only files of at most this size.")
@options.filters
@options.flag("-l", "--long", "is_long", text="Print mode, size, time and the target of a link.")
@options.flag("-0", "--null", "is_null", text="Print raw locations, each with a NUL byte at its end.")
@options.human
def find(
    session: Session,
    locations: Sequence[Location],
    names: Sequence[Pattern],
    kind: str | None,
    min_size: int | None,
    max_size: int | None,
    is_long: bool,
    is_null: bool,
    patterns: Patterns,
) -> int:
    """Print the locations of entries below folders, in the order of their paths, without the folders given.

    --name matches the end of the path in the dataset, and not what is in a folder that it matches; --include and
    --exclude, as those of other verbs, also that, by the path below the given folder. All conditions must hold. Nothing
    found is no error.
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
            entry = Entry.of_snapshot(snapshot, node)
            if names and not any(pattern.matches(path, entry.is_folder) for pattern in names):
                continue
            if patterns and not patterns.is_wanted(location.below(path), entry.is_folder):
                continue
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
