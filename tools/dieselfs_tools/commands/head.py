"""`dlcmd head`: the beginning of files."""

from collections.abc import Sequence
from typing import IO

import click

from dieselfs.errors import EXIT_OK, InvalidInput
from dieselfs.names import Location
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import write_bytes
from dieselfs_tools.cli.session import Session

LINES = 10
READ_BYTES = 1 << 20


@options.verb(
    "head",
    "dlcmd head dl://pets/labels.csv              # 10 lines",
    "dlcmd head -c 512 dl://pets/cat.jpg | xxd",
)
@click.argument("locations", nargs=-1, required=True, type=options.LOCATION, metavar="dl://DATASET/PATH...")
@click.option("-n", "--lines", type=click.IntRange(0), help=f"Number of lines. [{LINES}]")
@click.option("-c", "--size", type=options.SIZE, help="Number of bytes, instead of lines.")
def head(session: Session, locations: Sequence[Location], lines: int | None, size: int | None) -> int:
    """Write the first lines of files to standard output, one after the other. Of a large file, only the chunks that
    have them are fetched.
    """
    if lines is not None and size is not None:
        raise InvalidInput("give --lines or --size, not both")
    if session.output.is_json:
        raise InvalidInput("--json and the content of files cannot both go to standard output")
    session.output.is_stdout_taken = True
    datasets = {state: session.dataset(state) for state in dict.fromkeys(place.state for place in locations)}
    files = [datasets[place.state].open(place.path) for place in locations]
    for file in files:
        with file:
            if size is not None:
                _write_bytes(file, size)
            else:
                for _ in range(LINES if lines is None else lines):
                    write_bytes(file.readline())
    return EXIT_OK


def _write_bytes(file: IO[bytes], size: int) -> None:
    while size > 0 and (content := file.read(min(size, READ_BYTES))):
        write_bytes(content)
        size -= len(content)
