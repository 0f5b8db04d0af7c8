"""`dlcmd diff`: what differs between two datasets, tags or folders."""

from typing import TYPE_CHECKING

import click

from dieselfs.names import Location
from dieselfs_tools.cli import options
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs import Dataset


@options.verb(
    "diff",
    "dlcmd diff dl://pets@v1 dl://pets@v2",
    "dlcmd diff dl://pets@v1/train dl://pets/train",
)
@click.argument("first", type=options.LOCATION, metavar="dl://DATASET[@TAG]/FOLDER")
@click.argument("second", type=options.LOCATION, metavar="dl://DATASET[@TAG]/FOLDER")
@options.filters
def diff(session: Session, first: Location, second: Location, patterns: Patterns) -> int:
    """Print what differs between two folders: '+' only in the second, '-' only in the first, '*' other content, type or
    target, '~' other mode or time.

    Contents are compared by their digests; only large files whose parts are stored differently are read. Exit code 2:
    they differ.
    """
    from dieselfs_tools.transfers.differences import differences, print_differences
    from dieselfs_tools.transfers.trees import StoredTree

    datasets = [session.dataset(place.state) for place in (first, second)]
    old, new = (
        StoredTree(dataset.snapshot, place.path)
        for dataset, place in zip(datasets, (first, second), strict=True)
    )

    def has_same_content(path: bytes) -> bool:
        return _has_same_content((datasets[0], old.nodes[path]), (datasets[1], new.nodes[path]))

    wanted = old.selected(patterns)
    found = differences(wanted, new.selected(patterns), has_same_content)
    return print_differences(session.output, found, len(wanted))


def _has_same_content(first: "tuple[Dataset, int]", second: "tuple[Dataset, int]") -> bool:
    """Whether two files of equal size have equal bytes. Raises Damaged, Unavailable if they must be read."""
    from dieselfs.transfer.tree_digest import content_digest

    parts, others = (
        [(extent.length, extent.digest) for extent in dataset.snapshot.extents(node)]
        for dataset, node in (first, second)
    )
    if parts == others:
        return True
    if [length for length, _ in parts] == [length for length, _ in others]:
        return False
    digests = {content_digest(dataset.snapshot, dataset.chunks, node) for dataset, node in (first, second)}
    return len(digests) == 1
