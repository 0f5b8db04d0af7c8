"""`dlcmd fsck`: check a dataset."""

import click

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, EXIT_PARTIAL
from dieselfs.rpc.records import FsckReport
from dieselfs.units import count
from dieselfs_tools import options
from dieselfs_tools.session import Session


@options.verb(
    "fsck",
    "dlcmd fsck dl://pets                  # headers and sizes of all chunks, metadata, snapshot",
    "dlcmd fsck --deep --repair dl://pets  # every byte; repair what is possible",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.option("--deep", "is_deep", is_flag=True, help="Read every byte of every chunk.")
@click.option("--repair", "is_repair", is_flag=True, help="Repair what is possible from the chunks.")
def fsck(session: Session, dataset: str, is_deep: bool, is_repair: bool) -> int:
    """Compare chunks, metadata and snapshot with each other.

    Exit code 0: clean; 2: all problems are repaired; 5: some problems are not repaired.
    """
    report, output = session.client.fsck(dataset, is_deep, is_repair), session.output
    for problem in report.problems:
        mended = "mended: " if problem.is_mended else ""
        fields = {"kind": problem.kind, "what": problem.what, "is_mended": problem.is_mended}
        output.record("problem", f"{mended}{problem.what}", fields)
    text = (
        f"checked {count(report.chunks, 'chunk')} ({output.size(report.total_bytes)}) and "
        f"{report.entries:,} entries: {_verdict(report)}"
    )
    fields = {
        "dataset": dataset,
        "deep": is_deep,
        "repair": is_repair,
        "chunks": report.chunks,
        "entries": report.entries,
        "bytes": report.total_bytes,
        "problems": report.problem_count,
        "unmended": report.unmended_count,
    }
    if report.unmended_count:
        hint = "" if is_repair else "; --repair mends what can be mended"
        output.error(f"dl://{dataset}: {count(report.unmended_count, 'problem')} not mended{hint}")
    elif report.problem_count:
        output.error(f"dl://{dataset}: {count(report.problem_count, 'problem')} found, all of them mended")
    return output.summary(text, fields, _exit_code(report))


def _verdict(report: FsckReport) -> str:
    if not report.problem_count:
        return "clean"
    mended = report.problem_count - report.unmended_count
    return f"{count(report.problem_count, 'problem')}, {mended:,} mended"


def _exit_code(report: FsckReport) -> int:
    if report.unmended_count:
        return EXIT_DAMAGED
    return EXIT_PARTIAL if report.problem_count else EXIT_OK
