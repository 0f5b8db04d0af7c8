"""The verb `bisect`, which finds the files behind a loss spike."""

import math
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import numpy as np

from dieselfs.errors import EXIT_PARTIAL, InvalidInput
from dieselfs.names import Location, printable
from dieselfs.units import format_duration
from dieselfs_tools.bisection.search import Cause, Unfinished, Verdict, causes_of, runs_for
from dieselfs_tools.bisection.trials import Metric, Run, Trials
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output, name_fields
from dieselfs_tools.cli.session import Session
from dieselfs_tools.commands.mounts import EXIT_NO_COMMAND
from dieselfs_tools.commands.orders import (
    OrderOptions,
    order_options,
    parsed_positions,
    plan_fields,
    share_with,
)

CAUSES_EXPECTED = 3
"""The default bound of the runs is enough for this many bad files."""


@options.verb(
    "bisect",
    "dlcmd bisect dl://imagenet/train --seed 1 --epoch 2 --step 1200-1210 --batch 256 \\",
    "    --metric 'loss ([0-9.einfa]+)' --above 8 -- ./replay.sh",
    "dlcmd bisect dl://imagenet --seed 1 --step 12 --batch 256 -- ./check.sh     # decides by its exit code",
)
@order_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--step",
    "steps",
    type=options.Parsed("FIRST[-LAST]", parsed_positions),
    required=True,
    help="The steps around the spike, counted from 0; skipped steps do not count.",
)
@click.option(
    "--metric",
    "expression",
    metavar="REGEX",
    help="The number that decides, as the output of the command has it: 'loss ([0-9.]+)'.",
)
@click.option("--above", type=float, help="A run is bad if the number is larger, or no finite number.")
@click.option("--below", type=float, help="A run is bad if the number is smaller, or no finite number.")
@click.option(
    "--timeout",
    "timeout_s",
    type=options.DURATION,
    default="1h",
    show_default=True,
    help="A run that takes longer is ended, and shows nothing.",
)
@click.option(
    "--runs",
    "runs_max",
    type=click.IntRange(2),
    help=f"The most runs of the command.  [enough for {CAUSES_EXPECTED} bad files]",
)
@click.option(
    "--into",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default="bisect",
    show_default=True,
    help="Folder of the log and of the outputs; the same command continues what is there.",
)
@options.dry_run
def bisect(
    session: Session,
    dataset: Location,
    order: OrderOptions,
    command: tuple[str, ...],
    steps: range,
    expression: str | None,
    above: float | None,
    below: float | None,
    timeout_s: float,
    runs_max: int | None,
    folder: Path,
    is_dry_run: bool,
) -> int:
    """Find the files behind a loss spike: run a command again and again, each time without some files of the steps
    around it.

    The command repeats these steps. Samplers of dieselfs leave the files out by themselves; other programs read the
    lists DIESELFS_BISECT_FILES and DIESELFS_BISECT_LEFT_OUT, or the order DIESELFS_BISECT_CURSOR. A run is good with
    exit code 0, bad with 1 to 124, and shows nothing with 125; with --metric, a number in the output decides.
    """
    from dieselfs.process.keeper import fork_keeper

    metric = _metric(expression, above, below)
    if order.batch is None:
        raise InvalidInput("--batch is missing: how many files all readers together read in one step")
    if shutil.which(command[0]) is None:
        session.output.error(f"{command[0]}: there is no such command")
        return EXIT_NO_COMMAND
    plan, _ = order.plan(session, dataset)
    shares = {step: share_with(plan, order, step) for step in (steps[0], steps[-1])}
    share = shares[steps[0]]
    positions = np.sort(np.array([one for step in steps for one in share.positions_of(step)], np.int64))
    if not len(positions):
        raise InvalidInput("this reader reads no file in these steps")
    names = plan.snapshot.path_many(plan.nodes_at(positions))
    whole, start = plan.skips.whole(positions), plan.cursor(steps[0] * share.batch)
    fields = {**plan_fields(dataset, plan), "files": len(names), "cursor": str(start)}
    fields["runs_max"] = runs_max = runs_max or runs_for(len(names), CAUSES_EXPECTED)
    session.output.aside(
        f"{len(names)} files; one bad file takes {runs_for(len(names))} runs at most, and {runs_max} are made at most; "
        f"their log is {folder}/runs.jsonl"
    )
    if is_dry_run:
        return session.output.summary("", {**fields, "dry_run": True})
    session.close()  # one thread and no connection are left: the process forks
    fork_keeper(lambda: None)
    trials = Trials(
        folder,
        command,
        start,
        whole,
        names,
        metric,
        timeout_s,
        runs_max,
        lambda run: _note(session.output, run, len(names)),
    )
    with closing(trials):
        return _search(session.output, trials, names, whole.tolist(), fields)


def _metric(expression: str | None, above: float | None, below: float | None) -> Metric | None:
    """Raises InvalidInput if the options do not go together."""
    if expression is None:
        if above is not None or below is not None:
            raise InvalidInput("--above and --below need --metric: the number that they limit")
        return None
    if above is None and below is None:
        raise InvalidInput("--metric needs --above or --below: which numbers are bad")
    for option, limit in (("--above", above), ("--below", below)):
        if limit is not None and math.isnan(limit):
            raise InvalidInput(f"{option} nan: no number is larger or smaller; give a number")
    try:
        re.compile(expression)
    except re.error as error:
        raise InvalidInput(f"--metric {expression!r} is no regular expression: {error}") from None
    return Metric(expression, above, below)


def _note(output: Output, run: Run, files: int) -> None:
    fields = {name: getattr(run, name) for name in run.__slots__}
    if output.is_json:
        output.record("run", "", fields)
    value = "" if run.metric is None else f" ({run.metric:g})"
    took = format_duration(run.seconds)
    output.aside(f"run {run.run}: {run.files} of {files} files left out: {run.verdict}{value}, {took}")


def _search(
    output: Output, trials: Trials, names: list[bytes], whole: list[int], fields: dict[str, Any]
) -> int:
    """Print the causes. Raises InvalidInput if a run of all files is not bad, or one of none not good."""
    files = range(len(names))
    if (verdict := trials(files)) is not Verdict.BAD:
        raise InvalidInput(
            f"the run with all {len(files)} files is {verdict}, not bad: it has not repeated the spike; see "
            f"{trials.output_of(1)}"
        )
    if (verdict := trials(())) is not Verdict.GOOD:
        raise InvalidInput(
            f"the run without the {len(files)} files is {verdict}, not good: the cause is elsewhere, or the command "
            f"reads them all the same, in another order; see {trials.output_of(2)}"
        )
    found: list[Cause] = []
    reason = ""
    try:
        for cause in causes_of(len(files), trials):
            found.append(cause)
            _show(output, cause, len(found), names, whole)
    except Unfinished as error:
        reason = str(error)
        if error.cause is not None:
            found.append(error.cause)
            _show(output, error.cause, len(found), names, whole)
    fields |= {"runs": trials.runs, "causes": len(found)}
    if reason:
        output.error(f"unfinished: {reason}")
        return output.summary("", {**fields, "unfinished": reason}, EXIT_PARTIAL)
    if any(cause.among for cause in found):
        output.error("undecided: too few runs had a result; of the files with a ?, at least one is bad")
        return output.summary("", fields, EXIT_PARTIAL)
    bad = sum(len(cause.files) for cause in found)
    text = f"{bad} of {len(files)} files, in {trials.runs} runs; without what is named the command is good"
    return output.summary(text, fields)


def _show(output: Output, cause: Cause, number: int, names: list[bytes], whole: list[int]) -> None:
    """A line for each file: `?` before one of several, of which at least one is bad; `&` before those that are bad
    together.
    """
    for file, is_decided in [
        *((file, True) for file in cause.files),
        *((file, False) for file in cause.among),
    ]:
        is_single = len(cause.files) + bool(cause.among) == 1
        sign = "?" if not is_decided else " " if is_single else "&"
        fields = {
            "cause": number,
            "position": whole[file],
            **name_fields(names[file]),
            "is_decided": is_decided,
        }
        output.record("cause", f"{sign} {printable(names[file])}", fields)
