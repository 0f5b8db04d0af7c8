"""`dlcmd rebuild`: make the metadata of a dataset from its chunks."""

from collections.abc import Mapping
from datetime import datetime

import click

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, DieselfsError, InvalidInput
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
    if is_all == (dataset is not None):
        raise InvalidInput("give one dataset (dl://DATASET), or --all")
    names = [dataset] if dataset is not None else _all_datasets(session)
    exit_code = EXIT_OK
    for name in names:
        try:
            exit_code = max(exit_code, _rebuild(session, name, since, since_s, is_dry_run, is_all))
        except DieselfsError as error:
            if not is_all:
                raise
            session.output.failure(f"dl://{name}", str(error))
            exit_code = max(exit_code, error.exit_code)
    if not is_all:
        return exit_code
    done = "would rebuild" if is_dry_run else "rebuilt"
    return session.output.summary(
        f"{done} {count(len(names), 'dataset')}", {"dry_run": is_dry_run, "datasets": len(names)}, exit_code
    )


def _all_datasets(session: Session) -> list[str]:
    """Names of the datasets with and without metadata, sorted."""
    known = [dataset.name for dataset in session.client.datasets()]
    return sorted({*known, *session.client.lost_datasets()})


def _rebuild(
    session: Session, dataset: str, since: str | None, since_s: int | None, is_dry_run: bool, is_all: bool
) -> int:
    """Rebuild one dataset, and print the result: the summary or, with `is_all`, one record of many."""
    if is_dry_run:
        what = "all chunks" if since_s is None else f"chunks since {since}"
        text = f"would rebuild the metadata of dl://{dataset} from {what}"
        return _print(
            session, text, {"dry_run": True, "dataset": dataset, "since_s": since_s}, EXIT_OK, is_all
        )
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
    return _print(session, text, fields, EXIT_DAMAGED if report.damaged else EXIT_OK, is_all)


def _print(
    session: Session, text: str, fields: Mapping[str, object], exit_code: int, is_one_of_many: bool
) -> int:
    if is_one_of_many:
        session.output.detail("dataset", text, fields)
        return exit_code
    return session.output.summary(text, fields, exit_code)
