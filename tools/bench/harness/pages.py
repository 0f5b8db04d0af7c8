"""The pages of measurements: the runs of a benchmark in a JSON file, and the tables that are made of it.

A page has the tables between two comments; what is outside of them stays. This module reads and writes files.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness.figures import ROUNDS_MIN
from bench.harness.quiet import ROUND_LOAD_MAX
from bench.harness.report import page_tables, table_lines

DOCUMENTS = Path(__file__).parents[3] / "docs"
KEPT = DOCUMENTS / "internals" / "measurements"
"""The folder of the files, and of most of the pages."""
LOAD_MAX = 1.0
"""More load than this before the start is other work."""
STOLEN_MAX = 0.05
"""More processor seconds that the host took, as a share of the time of all runs, are other work too."""


class PageError(Exception):
    """What is wrong with a page or with a file of runs."""


def keep(name: str, machine: Mapping[str, str], results: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write the file of a benchmark."""
    content = {"benchmark": name, "machine": dict(machine), "results": list(results)}
    text = json.dumps(content, indent=1, ensure_ascii=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def pages_of(names: Sequence[str] = (), kept: Path = KEPT, documents: Path = DOCUMENTS) -> dict[Path, str]:
    """The pages of these benchmarks, or of all that have a file, and their texts with new tables. Raises PageError for
    a file without a page, and for a name without a file.
    """
    texts = {page: page.read_text(encoding="utf-8") for page in sorted(documents.glob("**/*.md"))}
    found = {}
    for file in [kept / f"{name}.json" for name in names] or sorted(kept.glob("*.json")):
        if not file.exists():
            raise PageError(f"{file} is missing: run the benchmark with --keep {kept}")
        start, end = f"<!-- python -m bench --pages {file.stem} -->\n", "<!-- end -->"
        page = next((page for page, text in texts.items() if end in text.partition(start)[2]), None)
        if page is None:
            raise PageError(f"no page below {documents} has the lines {start.strip()} and {end}")
        before, _, rest = texts[page].partition(start)
        made = tables(json.loads(file.read_text(encoding="utf-8")))
        found[page] = texts[page] = f"{before}{start}{made}{end}{rest.partition(end)[2]}"
    return found


def tables(kept: Mapping[str, Any]) -> str:
    """What stands between the comments: the conditions of the run, why it is no more than a trial, the tables. A trial
    has no verdicts.
    """
    reasons = list(objections(kept))
    rows = [{"run": name, "": fact} for name, fact in kept["machine"].items()]
    rows += [{"run": name, "": value} for name, value in _beside(kept)]
    rows += [{"run": "**a trial, not to be cited**", "": "; ".join(reasons)}] if reasons else []
    return "\n".join(
        ["", *table_lines(rows), *page_tables(kept["results"], has_verdicts=not reasons), "", ""]
    )


def objections(kept: Mapping[str, Any]) -> Iterator[str]:
    """Why the figures must not be cited, by rule."""
    machine, runs = kept["machine"], _runs(kept)
    if re.search(r"--(quick|share)\b", machine["command"]):
        yield "part of the data"
    if machine["commit"].endswith("-dirty"):
        yield "the source was not committed"
    if float(machine["load before"].split()[0]) > LOAD_MAX:
        yield "other work on the machine"
    if any(run["machine"].get("round_load", 0.0) > ROUND_LOAD_MAX for run in runs):
        yield "other work before a round"
    rounds = [len(side["runs"]) for side in _sides(kept)]
    if rounds and min(rounds) < ROUNDS_MIN:
        yield f"{min(rounds)} rounds, of {ROUNDS_MIN} that are needed"
    if sum(run["machine"]["stolen_s"] for run in runs) > STOLEN_MAX * sum(run["duration_s"] for run in runs):
        yield "the host took processor time"


def _beside(kept: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What happened on the machine meanwhile."""
    machines = [run["machine"] for run in _runs(kept)]
    for title, name, unit in (
        ("load before a round", "round_load", ""),
        ("load before a run", "load_before", ""),
        ("load after a run", "load_after", ""),
        ("taken by the host in a run", "stolen_s", " processor s"),
    ):
        values = [machine[name] for machine in machines if name in machine]
        if values:
            yield title, f"{min(values):.1f} to {max(values):.1f}{unit}"


def _sides(kept: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [side for result in kept["results"] for side in result.get("sides", [])]


def _runs(kept: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [run for side in _sides(kept) for run in side["runs"]]
