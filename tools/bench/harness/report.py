"""Figures as a plain table, and as objects for JSON; tables as Markdown. No I/O."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.harness.figures import Figure, Row, Run, RunFailed, Side, Table, Trial
from bench.harness.figures import figures as figures_of

VERDICT, SHAPE = "verdict", "shape"
"""The heads of the columns that trials do not have: of a benchmark's verdicts, and of those beside a paper."""


def trial_lines(trial: Trial, figures: Sequence[Figure], left_out: Mapping[str, str]) -> list[str]:
    """A head, a line for each side, and the reasons of those left out, without empty columns."""
    most = max((figure.side.amount for figure in figures if figure.side.unit == "files"), default=0)
    heads = [
        trial.title,
        *("median s", "min - max s", "per s", "MB/s", f"x {trial.base}", "processor s", "seen"),
    ]
    cells = [_cells(figure, most) for figure in figures]
    columns = [0, *(column for column in range(1, len(heads)) if any(row[column] for row in cells))]
    rows = [[row[column] for column in columns] for row in (heads, *cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    ]
    return [*lines, *(f"  {name}: left out, {reason}" for name, reason in left_out.items())]


def _cells(figure: Figure, most: float) -> list[str]:
    """`most`: files of a side."""
    side, ratio, durations_s = figure.side, figure.ratio, figure.durations_s
    return [
        f"  {side.name}{f' ({side.amount:,} files)' if side.unit == 'files' and side.amount < most else ''}",
        _short(figure.duration_s),
        f"{_short(min(durations_s))} - {_short(max(durations_s))}" if len(durations_s) > 1 else "",
        f"{figure.rate:,.0f} {side.unit}" if side.unit else "",
        f"{figure.byte_rate / 1e6:,.0f}" if side.size_bytes else "",
        "" if ratio is None else f"{ratio:.2f}",
        ", ".join(f"{name} {duration_s:.2f}" for name, duration_s in figure.parts.items()),
        ", ".join(f"{name} {_count(value)}" for name, value in figure.seen.items()),
    ]


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _short(duration_s: float) -> str:
    return f"{duration_s:.2f}" if duration_s >= 1 else f"{duration_s:.3g}"


def table_lines(rows: Iterable[Row]) -> Iterator[str]:
    """A table, line by line, as its rows are computed."""
    for number, row in enumerate(rows):
        for cells in [row, ["---"] * len(row)] if number == 0 else []:
            yield f"| {' | '.join(cells)} |"
        yield f"| {' | '.join(map(_cell, row.values()))} |"


def _cell(cell: Any) -> str:
    value, form = cell if isinstance(cell, tuple) else (cell, "{}" if isinstance(cell, str) else "{:,}")
    return str(form.format(value))


def trial_rows(trial: Trial, figures: Sequence[Figure], left_out: Mapping[str, str]) -> Iterator[Row]:
    """A row of a page for each side, with medians, the ranges of the rounds, and the verdict."""
    base = trial.base or ""
    for figure in figures:
        yield {
            trial.title: figure.side.name,
            "seconds (rounds)": _spread(figure.duration_s, figure.durations_s, _short),
            "a second": f"{figure.rate:,.0f} {figure.side.unit}" if figure.side.unit else "",
            "processor seconds": ", ".join(f"{name} {spent_s:.2f}" for name, spent_s in figure.parts.items()),
            "seen": ", ".join(f"{name} {_count(value)}" for name, value in figure.seen.items()),
            f"x {base} (rounds)": _spread(figure.ratio, figure.ratios, "{:.2f}".format)
            if figure.ratio is not None and figure.side.name != base
            else "",
            VERDICT: figure.verdict,
        }
    for name, reason in left_out.items():
        yield {trial.title: f"{name}: left out, {reason}"}


def page_table(result: Mapping[str, Any], mark: str) -> Iterator[str]:
    """The table of a page from what was kept of a trial or a table, without columns that are empty. `mark`: why it is a
    trial, behind its title; it then has no verdicts.
    """
    rows = list(result["rows"] if "rows" in result else trial_rows(*read_trial(result)))
    title, *heads = rows[0] if rows else [""]
    heads = [
        head
        for head in heads
        if any(row.get(head) for row in rows) and not (mark and head in (VERDICT, SHAPE))
    ]
    yield from table_lines(
        {f"{title}{mark}": row.get(title, ""), **{head: row.get(head, "") for head in heads}} for row in rows
    )


def _spread(middle: float, values: Sequence[float], form: Callable[[float], str]) -> str:
    return f"{form(middle)} ({form(min(values))} to {form(max(values))})" if len(values) > 1 else form(middle)


_SIDE_FIELDS = ("name", "amount", "unit", "size_bytes")


def trial_fields(trial: Trial, figures: Sequence[Figure], left_out: Mapping[str, str]) -> dict[str, Any]:
    """A trial with every single run, for JSON."""
    sides = [
        {
            **{name: getattr(figure.side, name) for name in _SIDE_FIELDS},
            "runs": [{name: value for name, value in asdict(run).items() if value} for run in figure.runs],
        }
        for figure in figures
    ]
    return {"title": trial.title, "base": trial.base, "left_out": dict(left_out), "sides": sides}


def read_trial(fields: Mapping[str, Any]) -> tuple[Trial, list[Figure], Mapping[str, str]]:
    """The trial of `trial_fields`, which cannot be run again, its figures, and what was left out."""
    sides = [Side(run=_over, **{name: side[name] for name in _SIDE_FIELDS}) for side in fields["sides"]]
    runs = {side["name"]: [Run(**run) for run in side["runs"]] for side in fields["sides"]}
    trial = Trial(fields["title"], sides, max(map(len, runs.values()), default=0), fields["base"])
    return trial, figures_of(trial, runs), fields["left_out"]


def _over() -> Run:
    raise RunFailed("it has been run")


def row_fields(table: Table, session: int) -> dict[str, Any]:
    """A table that is no trial, for JSON, with its cells as the page has them."""
    rows = [{head: _cell(cell) for head, cell in row.items()} for row in table.rows]
    return {"rows": rows, "session": session, "seeds": table.seeds, "trials": [*table.trials]}
