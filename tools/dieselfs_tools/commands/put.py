"""`dlcmd put`: store files and folders, or standard input."""

from typing import Any

import click

from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session


@options.verb(
    "put",
    "dlcmd put -r ./imagenet/ dl://imagenet/        # slash: the content, as dl://imagenet/train/...",
    "dlcmd put -r ./imagenet dl://sets/             # no slash: the folder, as dl://sets/imagenet/...",
    "dlcmd put cat.jpg dog.jpg dl://pets/train/     # into a folder, each under its own name",
    "tar c logs | dlcmd put - dl://runs/logs.tar    # standard input, under this name",
)
@click.argument("names", type=options.SOURCE, nargs=-1, required=True, metavar="SOURCE... dl://DATASET/PATH")
@options.recursive
@options.dry_run
@options.flag("-f", "--force", "is_forced", text="Also store files that are already stored.")
@options.filters
@click.option(
    "--files-from",
    metavar="FILE",
    help="Store only the names in FILE ('-': standard input): one per line, relative to the one SOURCE folder.",
)
@options.jobs
@options.chunk_size
def put(session: Session, **chosen: Any) -> int:
    """Store files in a dataset; a dataset that does not exist is created.

    A SOURCE folder with a slash at its end means its content, without one the folder itself. A destination with a slash
    at its end is a folder; otherwise it is the new name of a single file.

    Files that are already stored (same size, time and mode) are skipped, so the same command continues an interrupted
    upload. Unreadable files are listed at the end, and the rest is stored (exit code 2).
    """
    session.expect_server()
    from dieselfs_tools.transfers.put_runner import PutOptions, run_put

    return run_put(session, PutOptions(**chosen))
