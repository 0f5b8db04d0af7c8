"""`dlcmd rebuild`: make the metadata of a dataset from its chunks."""

from datetime import datetime

import click

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, InvalidInput
from dieselfs.units import count
from dieselfs_tools import options
from dieselfs_tools.session import Session


def parse_time(text: str) -> int:
    """Seconds since 1970 of a date (`2026-05-01`, `2026-05-01T12:30`, local time) or of such seconds."""
    if text.isdecimal():
        return int(text)
    try:
        return max(int(datetime.fromisoformat(text).timestamp()), 0)
    except ValueError:
        raise InvalidInput(
            f"{text!r} is neither a date like 2026-05-01T12:30 nor seconds since 1970"
        ) from None


@options.verb(
    "rebuild",
    "dlcmd rebuild dl://pets",
    "dlcmd rebuild --since 2026-05-01T12:00 dl://pets      # only the newest was lost",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.option("--since", metavar="TIME", help="Use only chunks written since a date, or seconds since 1970.")
@options.dry_run
def rebuild(session: Session, dataset: str, since: str | None, is_dry_run: bool) -> int:
    """Rebuild the metadata of a dataset from its chunks. Readers are not interrupted."""
    since_s = None if since is None else parse_time(since)
    if is_dry_run:
        what = "all chunks" if since_s is None else f"chunks since {since}"
        text = f"would rebuild the metadata of dl://{dataset} from {what}"
        return session.output.summary(text, {"dry_run": True, "dataset": dataset, "since_s": since_s})
    report = session.client.rebuild(dataset, since_s)
    for reason in report.damaged:
        session.output.failure(f"dl://{dataset}", reason)
    text = f"rebuilt {dataset} from {count(report.chunks, 'chunk')}: {count(report.files, 'file')}"
    fields = {
        "dataset": dataset,
        "chunks": report.chunks,
        "entries": report.entries,
        "files": report.files,
        "generation": report.generation,
        "damaged_chunks": len(report.damaged),
    }
    return session.output.summary(text, fields, EXIT_DAMAGED if report.damaged else EXIT_OK)
