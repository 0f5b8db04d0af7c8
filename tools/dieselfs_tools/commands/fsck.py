"""`dlcmd fsck`: check a dataset."""

import click

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, EXIT_PARTIAL, Damaged
from dieselfs.units import count
from dieselfs_tools.cli import options
from dieselfs_tools.cli.dataset_choice import Result, for_each_dataset, names_with_lost
from dieselfs_tools.cli.job_watch import watched
from dieselfs_tools.cli.session import Session


@options.verb(
    "fsck",
    "dlcmd fsck dl://pets                  # headers and sizes of all chunks, metadata, snapshot",
    "dlcmd fsck --deep --repair dl://pets  # every byte; repair if possible",
    "dlcmd fsck --all                      # every dataset, for a timer",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET", required=False)
@options.flag("--all", "is_all", text="Check all datasets that you may read.")
@click.option("--deep", "is_deep", is_flag=True, help="Read every byte of every chunk.")
@click.option("--repair", "is_repair", is_flag=True, help="Repair metadata and snapshot from the chunks.")
@options.dry_run
def fsck(
    session: Session, dataset: str | None, is_all: bool, is_deep: bool, is_repair: bool, is_dry_run: bool
) -> int:
    """Compare chunks, metadata and snapshot with each other. Without --repair, or with -n, nothing is changed.

    Exit code 0: clean; 2: all problems are repaired; 5: some problems are not repaired.
    """
    is_repair = is_repair and not is_dry_run
    lost = session.client.lost_datasets() if is_all else ()

    def work(name: str) -> Result:
        if name in lost:
            raise Damaged(
                f"its metadata is lost, but its chunks exist; rebuild it: dlcmd rebuild dl://{name}"
            )
        return _fsck(session, name, is_deep, is_repair)

    return for_each_dataset(session, dataset, is_all, "checked", work, names_with_lost)


def _fsck(session: Session, dataset: str, is_deep: bool, is_repair: bool) -> Result:
    output = session.output
    with watched(output, f"fsck {dataset}") as progressed:
        report = session.client.fsck(dataset, is_deep, is_repair, progressed)
    for problem in report.problems:
        repaired = "repaired: " if problem.is_mended else ""
        output.record("problem", f"{repaired}{problem.what}", problem._asdict())
    found, unmended = report.problem_count, report.unmended_count
    verdict = f"{count(found, 'problem')}, {found - unmended:,} repaired" if found else "clean"
    text = (
        f"checked {count(report.chunks, 'chunk')} ({output.size(report.total_bytes)}) and "
        f"{report.entries:,} entries: {verdict}"
    )
    fields = {
        "dataset": dataset,
        "deep": is_deep,
        "repair": is_repair,
        "dry_run": not is_repair,
        "chunks": report.chunks,
        "entries": report.entries,
        "bytes": report.total_bytes,
        "problems": found,
        "unmended": unmended,
    }
    exit_code = EXIT_OK
    if unmended:
        exit_code = EXIT_DAMAGED
        hint = "" if is_repair else "; --repair restores metadata and snapshot"
        output.error(f"dl://{dataset}: {count(unmended, 'problem')} not repaired{hint}")
    elif found:
        exit_code = EXIT_PARTIAL
        output.error(f"dl://{dataset}: {count(found, 'problem')} found, all of them repaired")
    return text, fields, exit_code
