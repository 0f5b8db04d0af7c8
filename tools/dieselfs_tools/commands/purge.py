"""`dlcmd purge`: free the space of deleted files."""

import math

import click

from dieselfs.errors import EXIT_OK
from dieselfs.units import count, format_duration
from dieselfs_tools.cli import options
from dieselfs_tools.cli.dataset_choice import Result, for_each_dataset
from dieselfs_tools.cli.job_watch import watched
from dieselfs_tools.cli.session import Session


@options.verb(
    "purge",
    "dlcmd purge -n dl://pets              # only print the space that would be freed",
    "dlcmd purge --copy dl://pets           # copy the bytes of attached files, so that the sources may go",
    "dlcmd purge --grace 7d dl://pets      # keep files that were deleted within the last week",
    "dlcmd purge --all                     # every dataset, for a timer",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET", required=False)
@options.flag("--all", "is_all", text="Purge all datasets that you may change.")
@click.option(
    "--grace",
    "grace_s",
    type=options.DURATION,
    default="24h",
    help="Time that deleted files stay readable in older generations. [24h]",
)
@options.flag(
    "--copy",
    "is_copying",
    text="First copy the bytes of attached files; their sources may go after the grace time.",
)
@options.dry_run
def purge(
    session: Session, dataset: str | None, is_all: bool, grace_s: float, is_copying: bool, is_dry_run: bool
) -> int:
    """Rewrite chunks with holes, and remove chunks whose files were all deleted before the grace time.

    Files of attached sources stay there, unless --copy is given. Then they are read, verified and stored as if they
    had been imported. Tags and older generations still need the sources.
    """
    seconds = math.ceil(grace_s)

    def work(name: str) -> Result:
        return _purge(session, name, seconds, is_copying, is_dry_run)

    done = "would purge" if is_dry_run else "purged"
    return for_each_dataset(session, dataset, is_all, done, work, fields={"dry_run": is_dry_run})


def _purge(session: Session, dataset: str, grace_s: int, is_copying: bool, is_dry_run: bool) -> Result:
    would, output, copied = "would have " if is_dry_run else "", session.output, 0
    if is_copying:
        with watched(output, f"copy {dataset}") as progressed:
            copied = session.client.copy_attached(dataset, is_dry_run, progressed)
    with watched(output, f"purge {dataset}") as progressed:
        report = session.client.purge(dataset, grace_s, is_dry_run, progressed)
    text = (
        f"{would}removed {count(report.chunks_removed, 'chunk')} ({output.size(report.bytes_freed)}), "
        f"{would}rewritten {report.chunks_rewritten:,} with holes; "
        f"{report.chunks_waiting:,} wait for the grace time of {format_duration(grace_s)}"
    )
    if is_copying:
        text = f"{would}copied {count(copied, 'attached chunk')}; {text}"
    if report.held_by:
        text += f", or are held by {', '.join(report.held_by)}"
    fields = {
        "dry_run": is_dry_run,
        "dataset": dataset,
        "removed_chunks": report.chunks_removed,
        "copied_chunks": copied,
        "rewritten_chunks": report.chunks_rewritten,
        "waiting_chunks": report.chunks_waiting,
        "freed_bytes": report.bytes_freed,
        "grace_s": grace_s,
        "held_by": list(report.held_by),
    }
    return text, fields, EXIT_OK
