"""`dlcmd sync`: make a stored folder equal to a local one, or the other way round."""

import click

from dieselfs.errors import InvalidInput
from dieselfs.names import is_location, parse_location
from dieselfs_tools.cli import options
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.session import Session


@options.verb(
    "sync",
    "dlcmd sync -n --delete ./pets/ dl://pets/       # only print the changes",
    "dlcmd sync --delete --exclude '*.tmp' ./pets/ dl://pets/",
    "dlcmd sync --delete dl://pets@v1/ ./pets        # the local folder becomes equal",
)
@click.argument("source", type=options.SOURCE, metavar="SOURCE")
@click.argument("destination", type=options.SOURCE, metavar="DESTINATION")
@options.flag("--delete", "is_mirror", text="Delete entries of the destination that SOURCE does not have.")
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
    """Store what is new or changed in a local folder, as 'put -r' does; or write what is new or changed in a dataset to
    a local folder. With --delete, then delete what the source does not have. The slashes mean what they mean for 'put'
    and 'get'.

    Excluded entries are neither written nor deleted. Nothing is deleted if an entry cannot be read (exit code 2). An
    empty source, perhaps a file system that is not mounted, needs a confirmation, or -y. In a local folder, files with
    the same size and time are skipped, and those with the same bytes get the mode and time only.
    """
    if is_location(source) and is_location(destination):
        raise InvalidInput("one side must be a folder of this machine; between datasets, use cp -r")
    session.expect_server()
    if is_location(source):
        from dieselfs_tools.transfers.folder_sync import FolderSyncOptions, run_folder_sync

        synced = FolderSyncOptions(
            is_mirror=is_mirror,
            is_confirmed=is_confirmed,
            is_dry_run=is_dry_run,
            patterns=patterns,
            jobs=jobs,
        )
        return run_folder_sync(session, parse_location(source), destination, synced)
    from dieselfs_tools.transfers.put_runner import PutOptions, run_put

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
