"""`dlcmd check`: whether a dataset has what a local folder has."""

import click

from dieselfs.names import Location
from dieselfs_tools.cli import options
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.session import Session


@options.verb(
    "check",
    "dlcmd check ./imagenet/ dl://imagenet/          # after `put -r` with the same names",
    "dlcmd check --quick ./imagenet/ dl://imagenet@v1/",
)
@click.argument("source", metavar="SOURCE")
@click.argument("location", type=options.LOCATION, metavar="dl://DATASET[@TAG]/PATH")
@options.filters
@options.flag("--quick", "is_quick", text="Compare types, sizes, modes and times; read no file.")
def check(
    session: Session,
    source: str,
    location: Location,
    patterns: Patterns,
    is_quick: bool,
) -> int:
    """Compare a local folder with what a dataset has of it, and print the differences: '+' only local, '-' only
    stored, '*' other content, type or target, '~' other mode or time. The slashes mean what they mean for 'put'.

    Local files are read and compared with the digests in the dataset; nothing is downloaded. Exit code 2: something
    differs, or could not be read.
    """
    from dieselfs_tools.transfers.check_runner import run_check

    return run_check(session, source, location, patterns, is_quick)
