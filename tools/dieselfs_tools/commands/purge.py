"""`dlcmd purge`: win back the room of deleted files."""

import click

from dieselfs.dataset import DEFAULT_GRACE_S
from dieselfs.errors import EXIT_OK
from dieselfs_tools import options
from dieselfs_tools.session import Session
from dieselfs_tools.units import count, format_duration


@options.verb(
    "purge",
    "dlcmd purge -n dl://pets              # say what would be won",
    "dlcmd purge --grace 7d dl://pets      # mounts may be a week old",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.option(
    "--grace",
    "grace_s",
    type=options.DURATION,
    default=DEFAULT_GRACE_S,
    help="How long what is deleted stays for those who still read an older generation. [24h]",
)
@options.dry_run
def purge(session: Session, dataset: str, grace_s: int, is_dry_run: bool) -> int:
    """Merge chunks with holes into full ones, and remove chunks of which nothing has been alive for the grace time."""
    report = session.client.purge(dataset, grace_s, is_dry_run)
    would, output = "would have " if is_dry_run else "", session.output
    text = (
        f"{would}removed {count(report.chunks_removed, 'chunk')} ({output.size(report.bytes_freed)}), "
        f"{would}rewritten {report.chunks_rewritten:,} with holes; "
        f"{report.chunks_waiting:,} wait for the grace time of {format_duration(grace_s)}"
    )
    fields = {
        "dry_run": is_dry_run,
        "dataset": dataset,
        "removed_chunks": report.chunks_removed,
        "rewritten_chunks": report.chunks_rewritten,
        "waiting_chunks": report.chunks_waiting,
        "freed_bytes": report.bytes_freed,
        "grace_s": grace_s,
    }
    return output.summary(text, fields, EXIT_OK)
