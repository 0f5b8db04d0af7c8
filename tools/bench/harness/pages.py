"""The pages of measurements: the runs of a benchmark in a JSON file, and the tables that are made of it.

A page has the tables between two comments; what is outside of them stays. This module reads and writes files.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from bench.harness.figures import ROUNDS_MIN
from bench.harness.journal import SAME, is_dirty
from bench.harness.quiet import ROUND_LOAD_MAX
from bench.harness.report import page_table, table_lines

DOCUMENTS = Path(__file__).parents[3] / "docs"
KEPT = DOCUMENTS / "internals" / "measurements"
"""The folder of the files, and of most of the pages."""
SHARE_MIN = 0.1
"""Figures of less data decide nothing."""
STOLEN_MAX = 0.05
"""More processor seconds that the host took, as a share of the time of all runs, are other work too."""
_LINE = 120
"""Characters."""
_IN_NOTES = ("commit", "command", "load before")
"""What each table has for its own rounds."""


class PageError(Exception):
    """What is wrong with a page or with a file of runs."""


def keep(
    name: str,
    sessions: Mapping[str, Mapping[str, str]],
    results: Sequence[Mapping[str, Any]],
    folder: Path,
    is_part: bool = False,
) -> None:
    """Write the file of a benchmark. `is_part`: what the file has of other trials and tables remains, if it is of the
    same machine and data.
    """
    file, merged = folder / f"{name}.json", {_name_of(result): result for result in results}
    if is_part and file.exists():
        old = json.loads(file.read_text(encoding="utf-8"))
        sessions = {**old["sessions"], **sessions}
        if len({tuple(map(facts.get, SAME)) for facts in sessions.values()}) == 1:
            merged = {_name_of(result): result for result in old["results"]} | merged
    used = {number for result in merged.values() for number in _sessions_of(result)}
    content = {
        "benchmark": name,
        "sessions": {number: dict(facts) for number, facts in sessions.items() if number in used},
        "results": list(merged.values()),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def pages_of(
    names: Sequence[str] = (), kept: Path = KEPT, documents: Path = DOCUMENTS, has_trials: bool = False
) -> dict[Path, str]:
    """The pages of these benchmarks, or of all that have a file, and their texts with new tables. Raises PageError for
    a file without a page, for a name without a file, and, unless `has_trials`, for a table that must not be cited.
    """
    texts = {page: page.read_text(encoding="utf-8") for page in sorted(documents.glob("**/*.md"))}
    found = {}
    for file in [kept / f"{name}.json" for name in names] or sorted(kept.glob("*.json")):
        content = kept_of(file.stem, kept)
        start, end = f"<!-- python -m bench --pages {file.stem} -->\n", "<!-- end -->"
        page = next((page for page, text in texts.items() if end in text.partition(start)[2]), None)
        if page is None:
            raise PageError(f"no page below {documents} has the lines {start.strip()} and {end}")
        for result in content["results"] if not has_trials else ():
            if reasons := "; ".join(objections(result, content["sessions"])):
                title = result.get("title", _name_of(result))
                raise PageError(
                    f"{file.stem}: {title!r} is a trial, not to be cited: {reasons}. "
                    "Continue the run with --keep, or add --trials to mark it in its table"
                )
        before, _, rest = texts[page].partition(start)
        found[page] = texts[page] = f"{before}{start}{tables(content)}{end}{rest.partition(end)[2]}"
    return found


def kept_of(name: str, folder: Path = KEPT) -> dict[str, Any]:
    """The content of the file of a benchmark. Raises PageError if there is none."""
    file = folder / f"{name}.json"
    if not file.exists():
        raise PageError(f"{file} is missing: run the benchmark with --keep {folder}")
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def tables(kept: Mapping[str, Any]) -> str:
    """What stands between the comments: the machine, and for each table its rows and a note of its rounds. The head of
    a trial has the reasons why it must not be cited, and no verdicts.
    """
    sessions = kept["sessions"]
    facts = dict.fromkeys(name for each in sessions.values() for name in each if name not in _IN_NOTES)
    rows = [
        {"run": name, "": "; ".join(dict.fromkeys(each[name] for each in sessions.values() if name in each))}
        for name in facts
    ]
    lines = ["", *table_lines(rows)]
    for result in kept["results"]:
        reasons = "; ".join(objections(result, sessions))
        mark = f" (**a trial, not to be cited**: {reasons})" if reasons else ""
        lines += ["", *page_table(result, mark), "", _note(result, sessions)]
    return "\n".join([*lines, "", ""])


def objections(result: Mapping[str, Any], sessions: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Why the figures of a trial or of a table must not be cited, by rule."""
    facts, runs = [sessions[number] for number in _sessions_of(result)], _runs(result)
    if any(share_of(each["command"]) < SHARE_MIN for each in facts):
        yield f"less than {SHARE_MIN:g} of the data"
    if any(map(is_dirty, facts)):
        yield "the source was not committed"
    if seeds := result.get("seeds", 0):
        if seeds < ROUNDS_MIN:
            yield f"{_count(seeds, 'seed')}, of {ROUNDS_MIN} that are needed"
        return
    if not runs:
        yield "its rounds were not kept"
        return
    if max(_loads(runs)) > ROUND_LOAD_MAX:
        yield f"a load of {max(_loads(runs)):.1f} before a round"
    if (rounds := _rounds(result)) < ROUNDS_MIN:
        yield f"{_count(rounds, 'round')}, of {ROUNDS_MIN} that are needed"
    if _stolen(runs) > STOLEN_MAX:
        yield f"the host took {_stolen(runs):.0%} of the time"


def share_of(command: str) -> float:
    """The share of the data that a command measures on; 0 for a quick run."""
    if re.search(r"--quick\b", command):
        return 0.0
    share = re.search(r"--share[ =]([\d.]+)", command)
    return float(share[1]) if share else 1.0


def _note(result: Mapping[str, Any], sessions: Mapping[str, Mapping[str, str]]) -> str:
    """Of which rounds a table is."""
    facts, runs = [sessions[number] for number in _sessions_of(result)], _runs(result)
    commits, commands = (list(dict.fromkeys(each[name] for each in facts)) for name in ("commit", "command"))
    parts = [f"Commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}"]
    if seeds := result.get("seeds", 0):
        parts.append(f"{seeds} seeds; does not depend on load")
    elif runs:
        loads = _loads(runs)
        parts.append(_count(_rounds(result), "round"))
        parts.append(f"load before a round {min(loads):.1f} to {max(loads):.1f}")
        parts.append(f"taken by the host {_stolen(runs):.1%}")
    text = f"*{'; '.join(parts)}.* {' '.join(f'`{each}`' for each in commands)}"
    return fill(text, _LINE, break_long_words=False, break_on_hyphens=False)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _loads(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Before the round of each run; before the run itself, where that was not kept."""
    return [run["machine"].get("round_load", run["machine"]["load_before"]) for run in runs]


def _stolen(runs: Sequence[Mapping[str, Any]]) -> float:
    """Processor seconds that the host took, as a share of the time of the runs."""
    took_s = sum(run["machine"].get("took_s", run["duration_s"]) for run in runs)
    return float(sum(run["machine"]["stolen_s"] for run in runs) / took_s)


def _name_of(result: Mapping[str, Any]) -> str:
    """The title of a trial; of a table, the head of its first column. Several trials of a title have other sides."""
    if "title" in result:
        return f"{result['title']}: {', '.join(side['name'] for side in result['sides'])}"
    return next(iter(result["rows"][0])) if result["rows"] else ""


def _sessions_of(result: Mapping[str, Any]) -> list[str]:
    """Their numbers."""
    found = [str(run["machine"]["session"]) for run in _runs(result)] or [str(result["session"])]
    return list(dict.fromkeys(found))


def _rounds(result: Mapping[str, Any]) -> int:
    """Of the side with the fewest."""
    return min(len(side["runs"]) for side in _sides(result))


def _sides(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    trials = [result] if "title" in result else result.get("trials", ())
    return [side for trial in trials for side in trial["sides"]]


def _runs(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [run for side in _sides(result) for run in side["runs"]]
