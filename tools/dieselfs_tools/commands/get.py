"""`dlcmd get`: write files and folders of a dataset to this machine."""

from typing import Any

import click

from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session


@options.verb(
    "get",
    "dlcmd get -r dl://imagenet/val/ ./val          # slash: the content, as ./val/...",
    "dlcmd get -r dl://imagenet/val .               # no slash: the folder, as ./val/...",
    "dlcmd get dl://pets/train/cat.jpg ./tom.jpg    # one file, under a new name",
    "dlcmd get dl://runs/logs.tar - | tar x         # to standard output",
)
@click.argument(
    "names", type=options.SOURCE, nargs=-1, required=True, metavar="dl://DATASET/PATH... [DESTINATION]"
)
@options.recursive
@options.dry_run
@options.flag("-f", "--force", "is_forced", text="Also write files that already exist.")
@options.flag(
    "-p", "--preserve", "is_preserving", text="Give permissions as stored, also those that the umask forbids."
)
@options.filters
@options.jobs
def get(session: Session, **chosen: Any) -> int:
    """Write files of a dataset to DESTINATION. [this folder; '-': standard output]

    A stored folder with a slash at its end means its content, without one the folder itself; a dataset (dl://DATASET)
    always means its content. A single file is written into a DESTINATION that is a folder or ends with a slash;
    otherwise DESTINATION is its new name.

    Files that already exist (same size and time) are skipped, so the same command continues an interrupted download.
    Damaged files are listed at the end, and the rest is written (exit code 5).
    """
    from dieselfs_tools.transfers.download_runner import run_get

    return run_get(session, **chosen)
