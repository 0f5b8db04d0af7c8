"""`dlcmd sync`: make a stored folder equal to a local one."""

import click

from dieselfs_tools import options
from dieselfs_tools.patterns import Patterns
from dieselfs_tools.session import Session


@options.verb(
    "sync",
    "dlcmd sync -n --delete ./pets/ dl://pets/       # only print the changes",
    "dlcmd sync --delete --exclude '*.tmp' ./pets/ dl://pets/",
)
@click.argument("source", type=options.SOURCE, metavar="FOLDER")
@click.argument("destination", type=options.SOURCE, metavar="dl://DATASET/PATH")
@options.flag("--delete", "is_mirror", text="Delete stored entries that FOLDER does not have.")
@options.filters
@options.dry_run
@options.yes
@options.jobs
@options.chunk_size
def sync(
    session: Session,
    source: str,
    destination: str,
    is_mirror: bool,
    patterns: Patterns,
    is_dry_run: bool,
    is_confirmed: bool,
    jobs: int,
    chunk_bytes: int,
) -> int:
    """Store what is new or changed in a local folder, as 'put -r' does; with --delete, then delete what the folder does
    not have. The slashes mean what they mean for 'put'.

    Excluded entries are neither stored nor deleted. Nothing is deleted if a source cannot be read (exit code 2). An
    empty FOLDER, perhaps a file system that is not mounted, needs a confirmation, or -y.
    """
    session.expect_server()
    from dieselfs_tools.put_runner import PutOptions, run_put

    chosen = PutOptions(
        names=[source, destination],
        is_recursive=True,
        is_dry_run=is_dry_run,
        is_forced=False,
        patterns=patterns,
        files_from=None,
        jobs=jobs,
        chunk_bytes=chunk_bytes,
        is_mirror=is_mirror,
        is_confirmed=is_confirmed,
    )
    return run_put(session, chosen)
