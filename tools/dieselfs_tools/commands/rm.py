"""`dlcmd rm`: delete files and folders."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from dieselfs.errors import InvalidInput
from dieselfs.names import Location
from dieselfs.records import Op
from dieselfs.units import count
from dieselfs_tools.cli import options
from dieselfs_tools.cli.confirmation import confirm_name
from dieselfs_tools.cli.output import name_fields
from dieselfs_tools.cli.patterns import Patterns, deletable
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs import Dataset


@options.verb(
    "rm",
    "dlcmd rm dl://pets/train/blurred.jpg",
    "dlcmd rm -r -n dl://pets/old/                  # only print the entries",
)
@click.argument("locations", nargs=-1, required=True, type=options.CHANGEABLE, metavar="dl://DATASET/PATH...")
@options.recursive
@options.filters
@options.dry_run
@options.yes
def rm(
    session: Session,
    locations: Sequence[Location],
    is_recursive: bool,
    is_dry_run: bool,
    is_confirmed: bool,
    patterns: Patterns,
) -> int:
    """Delete files, links and, with -r, folders. Readers of an older generation still see them.

    With --include or --exclude, a folder stays that is named, or that has entries which they do not select. To empty a
    whole dataset, type its name when asked, or give -y. 'dlcmd purge' frees the space.
    """
    datasets = {name: session.dataset(name) for name in dict.fromkeys(place.dataset for place in locations)}
    paths = [
        (datasets[place.dataset], path)
        for place in locations
        for path in _paths(datasets[place.dataset], place, is_recursive, patterns)
    ]
    output, entries = session.output, count(len(paths), "entry")
    if is_dry_run:
        for dataset, path in paths:
            fields = {"dataset": dataset.name, **name_fields(path)}
            output.detail("entry", f"would delete {Location(dataset.name, path, False)}", fields)
        return output.summary(f"would delete {entries}", {"dry_run": True, "entries": len(paths)})
    for place in locations:
        if not place.path and not is_confirmed:
            confirm_name(place.dataset, f"this deletes everything in {place}")
    for dataset, path in paths:
        dataset.writer.delete(path)
    for dataset in datasets.values():
        dataset.flush()
    return output.summary(f"deleted {entries}", {"entries": len(paths)})


def _paths(dataset: "Dataset", location: Location, is_recursive: bool, patterns: Patterns) -> Iterator[bytes]:
    """The paths to delete for `location`. Raises NotFound, and InvalidInput for a folder without `is_recursive`.

    A single file needs a request to the server, a folder the snapshot.
    """
    if location.path and Op(dataset.client.stat(dataset.name, location.path).op) != Op.DIRECTORY:
        if patterns.is_wanted(location.below(location.path)):
            yield location.path
        return
    if not is_recursive:
        raise InvalidInput(f"{location} is a folder: delete it with -r")
    from dieselfs_tools.transfers.trees import StoredTree

    below = StoredTree(dataset.snapshot, location.path)
    head = location.path + b"/" if location.path else b""
    yield from (head + path for path in deletable(below.reversed_paths(), patterns))
    if location.path and not patterns:
        yield location.path
