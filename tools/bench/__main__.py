"""`python -m bench`: runs benchmarks, prints a table for each trial, and cleans up after an interrupt."""

import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import tee
from pathlib import Path
from typing import Any

import click

from bench.harness.figures import FULL, QUICK, Scale, Table, Trial
from bench.harness.forms import filesystem_type
from bench.harness.journal import Journal
from bench.harness.pages import DOCUMENTS, PageError, keep, kept_of, pages_of
from bench.harness.quiet import QUIET_TIMEOUT_S, ROUND_LOAD_MAX, NotQuiet, current_load, quiet_load
from bench.harness.report import row_fields, table_lines, trial_fields, trial_lines
from bench.harness.rounds import run_trial
from bench.registry import BENCHMARKS, ONLY_IF_NAMED, begin
from lab.network import Unsuitable

DRAWN = ("paper", "other_papers")
"""Benchmarks with a picture below docs/figures, made of the rounds that are kept."""


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("names", nargs=-1, type=click.Choice([*BENCHMARKS]))
@click.option("--quick", is_flag=True, help="A short run on small data, to test the benchmark.")
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Measure on this share of the data.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Runs of each side.")
@click.option(
    "--only",
    default="",
    metavar="PATTERN",
    help="Run the trials whose titles match (of `paper`: the tables), such as '1 Gb/s, 1 ms' or 'Figure 9'; with "
    "--keep, what the file has of others remains.",
)
@click.option("--kills", type=click.IntRange(min=2), help="Nodes that `failover` loses.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(tempfile.gettempdir()),
    help="Working folder, on the file system to compare with; needs 25 GB.  [the folder for temporary files]",
)
@click.option(
    "--keep",
    "kept",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Also write all runs of each benchmark to NAME.json in this folder. If it is cut off, the same command "
    "continues with the rounds that it lacks.",
)
@click.option(
    "--when-quiet",
    is_flag=True,
    help=f"Wait before each round until the load is {ROUND_LOAD_MAX} or less; give up after {QUIET_TIMEOUT_S:g} s.",
)
@click.option(
    "--pages",
    is_flag=True,
    help="Measure nothing: make the tables and pictures of the pages from docs/internals/measurements/NAME.json again.",
)
@click.option(
    "--trials",
    is_flag=True,
    help="With --pages: also write tables that must not be cited, each marked as a trial.",
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    help="Draw the results of `failover`, `accuracy`, `paper` or `other_papers` as SVG.",
)
def main(
    names: tuple[str, ...],
    quick: bool,
    share: float,
    rounds: int | None,
    only: str,
    kills: int | None,
    folder: Path,
    kept: Path | None,
    when_quiet: bool,
    pages: bool,
    trials: bool,
    figure: Path | None,
) -> None:
    """Measure dieselfs and its alternatives on this machine: all benchmarks, or those named."""
    if pages:
        try:
            for page, text in pages_of(names, has_trials=trials).items():
                page.write_text(text, encoding="utf-8")
            for name in names or DRAWN:
                if name in DRAWN:
                    draw(name, kept_of(name)["results"], DOCUMENTS / "figures" / f"{name}.svg")
        except PageError as error:
            raise click.ClickException(str(error)) from error
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what users start is compiled
    if figure is not None and find_spec("matplotlib") is None:
        raise click.ClickException(
            "--figure needs matplotlib, which is not installed: pip install matplotlib"
        )
    scale = (QUICK if quick else FULL).part(share)
    scale = replace(
        scale, rounds=rounds or scale.rounds, kills=kills or scale.kills, figure=figure, only=only
    )
    data = "quick" if quick else f"a share of {share:g}"
    facts = {**machine_facts(folder, sys.argv[1:]), "data": data}
    for name, fact in facts.items():
        print(f"{name + ':':14} {fact}")
    with tempfile.TemporaryDirectory(
        prefix="dieselfs-bench-", dir=folder.resolve(), ignore_cleanup_errors=True
    ) as place:
        for name in names or [name for name in BENCHMARKS if name not in ONLY_IF_NAMED]:
            journal = Journal(
                kept and kept / f"{name}.json.part", facts, quiet_load if when_quiet else current_load
            )
            if journal.rounds_left:
                print(f"\n{name}: continues after the {journal.rounds_left} rounds in {kept}")
            try:
                measured = run_benchmark(name, Path(place, name), replace(scale, journal=journal))
            except NotQuiet as error:
                raise click.ClickException(f"{name}: {error}") from error
            if only and not measured:
                raise click.ClickException(f"{name}: no trial's title matches {only!r}; nothing was kept")
            if kept is not None:
                keep(name, journal.sessions, measured, kept, is_part=bool(only))
            journal.end()
            if figure is not None:
                draw(name, measured, figure)


def draw(name: str, results: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw what a benchmark has measured, if it is one of those that are drawn here."""
    from bench.papers.drawing import draw_failover, draw_paper  # matplotlib is optional

    if name == "failover":
        draw_failover(results, file)
    elif name in DRAWN:
        draw_paper(results, file)


def run_benchmark(name: str, folder: Path, scale: Scale) -> list[dict[str, Any]]:
    """Run it in a new folder and print its tables; its trials and tables, for JSON."""
    folder.mkdir()
    measured = []
    journal = scale.journal or Journal()
    try:
        with closing(begin(name, folder, scale)) as results:
            for result in results:
                if isinstance(result, Trial):
                    if not scale.wants(result.title):
                        continue
                    found, left_out = run_trial(result, journal)
                    print()
                    print(*trial_lines(result, found, left_out), sep="\n", flush=True)
                    measured.append(trial_fields(result, found, left_out))
                else:
                    table = result if isinstance(result, Table) else Table(result)
                    shown, rows = tee(table.rows)
                    print()
                    for line in table_lines(shown):
                        print(line, flush=True)
                    measured.append(row_fields(replace(table, rows=rows), journal.session))
    except Unsuitable as reason:
        print(f"{name}: left out, {reason}")
    return measured


def machine_facts(folder: Path, arguments: list[str]) -> dict[str, str]:
    """The machine, the software, the file system of `folder`, and the command."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "processors": f"{len(os.sched_getaffinity(0))} x {model[1] if model else platform.machine()}",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": filesystem_type(folder),
        "Python": platform.python_version(),
        "commit": commit_of(Path(__file__).parents[2]) or "unknown: not a git checkout",
        "command": f"python -m bench {shlex.join(arguments)}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "load before": f"{os.getloadavg()[0]:.1f} processes",
        "user": "root" if os.getuid() == 0 else "not root: nothing is measured with caches dropped",
    }


def commit_of(repository: Path) -> str:
    """Of its source, with "-dirty" if more than documents is not committed; "" outside of a repository. Documents do
    not count, as a run writes its rounds there.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return git("describe", "--always", "--abbrev=10") + ("-dirty" if changed else "")


if __name__ == "__main__":
    main()
