"""`dlcmd cat`: the content of files."""

from collections.abc import Sequence

import click

from dieselfs.errors import EXIT_OK, InvalidInput
from dieselfs.names import Location
from dieselfs_tools import options
from dieselfs_tools.content import extents, find_file
from dieselfs_tools.output import write_bytes
from dieselfs_tools.session import Session


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


def write_contents(session: Session, locations: Sequence[Location]) -> None:
    """Looks up all files before it writes the first byte. Raises NotFound, InvalidInput, Damaged."""
    if session.output.is_json:
        raise InvalidInput("--json and the content of files cannot both go to standard output")
    session.output.is_stdout_taken = True
    datasets = {name: session.dataset(name) for name in dict.fromkeys(place.state for place in locations)}
    found = [(datasets[place.state], find_file(datasets[place.state], place.path)) for place in locations]
    for dataset, node in found:
        for content in extents(dataset, node):
            write_bytes(content)
