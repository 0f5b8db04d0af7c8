"""Figures as a plain table, and as objects for JSON. No I/O."""

from collections.abc import Sequence

from bench.figures import Aim, Figure, Quantity, Trial

_HEADINGS = ("median s", "min - max s", "per s", "MB/s", "ratio", "processor s", "seen")


def trial_lines(trial: Trial, figures: Sequence[Figure]) -> list[str]:
    """The table of a trial: its title with the headings, then a line for each side, and why others are not there.

    Empty columns are left out.
    """
    heads = [*_HEADINGS[:4], f"x {trial.base}", *_HEADINGS[5:]]
    cells = [_cells(figure) for figure in figures]
    columns = [column for column in range(len(heads)) if any(row[column] for row in cells)]
    rows = [[trial.title, *(heads[column] for column in columns), "aim"]]
    for figure, row in zip(figures, cells, strict=True):
        rows.append([f"  {figure.side.name}", *(row[column] for column in columns), verdict(figure)])
    if not any(row[-1] for row in rows[1:]):
        rows[0][-1] = ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place in (0, len(widths) - 1) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [*lines, *(f"  {name}: left out, {reason}" for name, reason in trial.left_out.items())]


def _cells(figure: Figure) -> list[str]:
    side, ratio = figure.side, figure.ratio
    return [
        _short(figure.duration_s),
        f"{_short(min(figure.durations_s))} - {_short(max(figure.durations_s))}"
        if len(figure.runs) > 1
        else "",
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


def aim_text(aim: Aim, unit: str, rivals: Sequence[str]) -> str:
    return aim.quantity.value.format(aim.bound, unit=unit, base=" and of ".join(rivals))


def verdict(figure: Figure) -> str:
    """What was aimed at, and by how much it is missed; empty without an aim."""
    aim, reached = figure.side.aim, figure.reached
    if aim is None or reached is None:
        return ""
    text = aim_text(aim, figure.side.unit, [rival.side.name for rival in figure.rivals])
    if reached >= 1:
        return f"{text}: reached"
    if aim.quantity is Quantity.DURATION_S:
        return f"{text}: missed, {1 / reached:.2f} times as long"
    return f"{text}: missed by {1 - reached:.0%}"


def trial_fields(trial: Trial, figures: Sequence[Figure]) -> dict[str, object]:
    """A trial with every single run, for JSON."""
    return {
        "title": trial.title,
        "base": trial.base,
        "left_out": dict(trial.left_out),
        "sides": [
            {
                "name": figure.side.name.strip(),
                "amount": figure.side.amount,
                "unit": figure.side.unit,
                "size_bytes": figure.side.size_bytes,
                "durations_s": figure.durations_s,
                "duration_s": figure.duration_s,
                "rate": figure.rate,
                "ratio": figure.ratio,
                "processor_s": figure.parts,
                "seen": figure.seen,
                "series": [run.series for run in figure.runs if run.series],
                "aim": verdict(figure),
            }
            for figure in figures
        ],
    }
