"""`dlcmd rebuild`: make the metadata of a dataset from its chunks."""

from datetime import datetime

import click

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, InvalidInput
from dieselfs.units import count
from dieselfs_tools.cli import options
from dieselfs_tools.cli.dataset_choice import Result, for_each_dataset, names_with_lost
from dieselfs_tools.cli.job_watch import watched
from dieselfs_tools.cli.session import Session


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
    "dlcmd rebuild --all                                   # every dataset, also lost ones",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET", required=False)
@options.flag(
    "--all", "is_all", text="Rebuild all datasets that you may read, also those whose metadata is lost."
)
@click.option("--since", metavar="TIME", help="Use only chunks written since a date, or seconds since 1970.")
@options.dry_run
def rebuild(session: Session, dataset: str | None, is_all: bool, since: str | None, is_dry_run: bool) -> int:
    """Rebuild the metadata of a dataset from its chunks. Readers and writers are not interrupted."""
    since_s = None if since is None else parse_time(since)

    def work(name: str) -> Result:
        return _rebuild(session, name, since, since_s, is_dry_run)

    done = "would rebuild" if is_dry_run else "rebuilt"
    return for_each_dataset(session, dataset, is_all, done, work, names_with_lost, {"dry_run": is_dry_run})


def _rebuild(
    session: Session, dataset: str, since: str | None, since_s: int | None, is_dry_run: bool
) -> Result:
    if is_dry_run:
        what = "all chunks" if since_s is None else f"chunks since {since}"
        text = f"would rebuild the metadata of dl://{dataset} from {what}"
        return text, {"dry_run": True, "dataset": dataset, "since_s": since_s}, EXIT_OK
    with watched(session.output, f"rebuild {dataset}") as progressed:
        report = session.client.rebuild(dataset, since_s, progressed)
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
    return text, fields, EXIT_DAMAGED if report.damaged else EXIT_OK
