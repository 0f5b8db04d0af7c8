"""`dlcmd attach`: make the records of archives part of a dataset, without copying their bytes."""

from typing import Any

import click

from dieselfs.errors import InvalidInput
from dieselfs_tools.archives.formats import ATTACHED
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session


@options.verb(
    "attach",
    "dlcmd attach shards/*.tar dl://imagenet/        # the shards stay where they are",
    "dlcmd attach --list dl://imagenet               # the sources, and whether they have changed",
    "dlcmd detach shards/0007.tar dl://imagenet      # remove the files of one source",
    "dlcmd purge --copy dl://imagenet                # copy the bytes; then the sources may go",
)
@click.argument("names", type=options.SOURCE, nargs=-1, required=True, metavar="SOURCE... dl://DATASET/PATH")
@options.flag("--list", "is_listing", text="List the sources of a dataset: attach --list dl://DATASET.")
@options.records(ATTACHED, "Name of each record, as of dlcmd import.")
@options.filters
@options.dry_run
@options.chunk_size
def attach(session: Session, is_listing: bool, **chosen: Any) -> int:
    """Make the records of uncompressed archives part of a dataset, without copying their bytes.

    The files are the same as those of dlcmd import, and are read as all others. Their bytes stay in the sources, which
    the server must see under the same paths or URLs (s3://, https://), and which must not change: a file of a source
    that was changed, moved or removed cannot be read (exit code 5), and is never read wrongly. Attach a changed source
    again.

    Compressed members, and large values that an import converts, are refused and listed (exit code 2). Small converted
    values, as numbers, are copied. A server attaches only what its setting attach_roots allows.
    """
    if is_listing:
        from dieselfs_tools.archives.attached_runner import list_attached

        if len(chosen["names"]) != 1:
            raise InvalidInput("name one dataset: dlcmd attach --list dl://DATASET")
        return list_attached(session, options.dataset_name(chosen["names"][0]))
    from dieselfs_tools.archives.attach_runner import AttachOptions, run_attach

    return run_attach(session, AttachOptions(**chosen))
