"""Figures as a plain table, and as objects for JSON. No I/O."""

from collections.abc import Sequence

from bench.figures import Aim, Figure, Quantity, Trial

_HEADINGS = ("", "median s", "min - max s", "per s", "MB/s", "ratio", "aim")


def trial_lines(trial: Trial, figures: Sequence[Figure]) -> list[str]:
    """The table of a trial: a title, headings, and a line for each side."""
    heads = [trial.title, *_HEADINGS[1:]]
    heads[5] = f"x {trial.base}" if trial.base else ""
    rows = [heads, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = []
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:6], widths[1:6], strict=True)),
        ]
        lines.append("  ".join([*cells, row[6]]).rstrip())
    for figure in figures:
        if figure.parts:
            spent = ", ".join(f"{name} {duration_s:.2f}" for name, duration_s in figure.parts.items())
            lines.append(f"    processor seconds of {figure.side.name.strip()}: {spent}")
    return lines


def _cells(figure: Figure) -> list[str]:
    side, ratio = figure.side, figure.ratio
    return [
        f"  {side.name}",
        _short(figure.duration_s),
        f"{_short(min(figure.durations_s))} - {_short(max(figure.durations_s))}",
        f"{figure.rate:,.0f} {side.unit}" if side.unit else "",
        f"{figure.byte_rate / 1e6:,.0f}" if side.size_bytes else "",
        "" if ratio is None else f"{ratio:.2f}",
        verdict(figure),
    ]


def _short(duration_s: float) -> str:
    return (
        f"{duration_s:.2f}"
        if duration_s >= 1
        else f"{duration_s:.3g}"
        if duration_s >= 1e-3
        else f"{duration_s:.1e}"
    )


def aim_text(aim: Aim, unit: str, base: str | None) -> str:
    return aim.quantity.value.format(aim.bound, unit=unit, base=base)


def verdict(figure: Figure) -> str:
    """What was aimed at, and by how much it is missed; empty without an aim."""
    aim, reached = figure.side.aim, figure.reached
    if aim is None or reached is None:
        return ""
    text = aim_text(aim, figure.side.unit, figure.base.name if figure.base else None)
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
                "aim": verdict(figure),
            }
            for figure in figures
        ],
    }
