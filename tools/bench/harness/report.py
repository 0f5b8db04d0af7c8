"""Figures as a plain table, and as objects for JSON; tables as Markdown. No I/O."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.harness.figures import Figure, Row, Trial


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


def trial_fields(trial: Trial, figures: Sequence[Figure], left_out: Mapping[str, str]) -> dict[str, object]:
    """A trial with every single run, for JSON."""
    sides = [
        {
            **{name: getattr(figure.side, name) for name in ("name", "amount", "unit", "size_bytes")},
            **{
                name: getattr(figure, name) for name in ("durations_s", "duration_s", "rate", "ratio", "seen")
            },
            "processor_s": figure.parts,
            "series": [run.series for run in figure.runs if run.series],
        }
        for figure in figures
    ]
    return {"title": trial.title, "base": trial.base, "left_out": dict(left_out), "sides": sides}
