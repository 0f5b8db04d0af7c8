"""`dlcmd cat`: the content of files."""

from collections.abc import Sequence

import click

from dieselfs.errors import EXIT_OK
from dieselfs.names import Location
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.contents import write_contents


@options.verb(
    "cat",
    "dlcmd cat dl://pets/labels.csv | head",
    "dlcmd cat dl://runs/part1 dl://runs/part2 > whole",
)
@click.argument("locations", nargs=-1, required=True, type=options.LOCATION, metavar="dl://DATASET/PATH...")
def cat(session: Session, locations: Sequence[Location]) -> int:
    """Write the content of files to standard output, one after the other."""
    write_contents(session, locations)
    return EXIT_OK
