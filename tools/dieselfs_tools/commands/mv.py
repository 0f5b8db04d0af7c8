"""`dlcmd mv`: move or rename files and folders."""

from collections.abc import Sequence

import click

from dieselfs.names import Location
from dieselfs_tools.cli import options
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.session import Session


@options.verb(
    "mv",
    "dlcmd mv dl://pets/train/cat.jpg dl://pets/train/lynx.jpg",
    "dlcmd mv dl://pets/new dl://pets/train/          # a slash at the end: into that folder",
    "dlcmd mv dl://pets/train/ dl://cats/             # its content, to another dataset",
)
@click.argument("sources", type=options.CHANGEABLE, nargs=-1, required=True, metavar="dl://DATASET/OLD...")
@click.argument("destination", type=options.CHANGEABLE, metavar="dl://DATASET/NEW")
@options.replacing
@options.filters
@options.dry_run
def mv(
    session: Session,
    sources: Sequence[Location],
    destination: Location,
    is_forced: bool,
    is_kept: bool,
    is_dry_run: bool,
    patterns: Patterns,
) -> int:
    """Move files, links, and folders with their content, also to another dataset. The servers copy the bytes; when all
    are stored, they delete the old paths.

    The slashes and the rules for what exists are those of 'cp'. After an interruption, entries may be at both paths;
    the same command continues.
    """
    from dieselfs_tools.transfers.copy_runner import CopyOptions, run_copy

    chosen = CopyOptions(
        is_move=True,
        is_recursive=True,
        is_dry_run=is_dry_run,
        is_forced=is_forced,
        is_kept=is_kept,
        patterns=patterns,
    )
    return run_copy(session, sources, destination, chosen)
