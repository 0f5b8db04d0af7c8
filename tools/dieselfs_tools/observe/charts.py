"""Charts as SVG inside of HTML, drawn with the colours of the page's style sheet. No I/O."""

from collections.abc import Callable, Mapping, Sequence
from html import escape

import numpy as np
import numpy.typing as npt

WIDTH, HEIGHT = 720, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 8, 8, 24
_TICKS = 4
_BAR, _GAP, _LABEL = 16, 8, 190

STYLE = """
svg { width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: var(--quiet); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .track { fill: var(--line); }
.c0 { --c: #0072b2; } .c1 { --c: #e69f00; } .c2 { --c: #009e73; } .c3 { --c: #cc79a7; } .c4 { --c: #d55e00; }
.c5 { --c: #56b4e9; } .c6 { --c: #999999; }
svg .area { fill: var(--c); } svg .curve { fill: none; stroke: var(--c); stroke-width: 1.6; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 .9em; background: var(--c); }
"""
"""Of what this module draws; the page sets --quiet and --line."""

Values = npt.NDArray[np.float64]
Format = Callable[[float], str]


def stacked(title: str, ends_s: Values, series: Mapping[str, Values], shown: Format) -> str:
    """Areas above each other, in the order of `series`. All arrays: shape (n,), a value for the time up to each end."""
    top = _nice(float(sum(series.values(), np.zeros(len(ends_s))).max(initial=0.0)))
    below = np.zeros(len(ends_s))
    drawn = []
    for number, values in enumerate(series.values()):
        above = below + np.nan_to_num(values)
        outline = _steps(ends_s, above, top) + _steps(ends_s, below, top)[::-1]
        drawn.append(f'<polygon class="area c{number}" points="{_points(outline)}"/>')
        below = above
    return _figure(title, drawn, ends_s, top, shown, _legend(series))


def lines(title: str, ends_s: Values, series: Mapping[str, Values], shown: Format, top: float = 0.0) -> str:
    """Curves over each other; NaN is left out. `top`: the end of the scale at least."""
    largest = max((float(np.nan_to_num(values).max(initial=0.0)) for values in series.values()), default=0.0)
    scale = max(top, _nice(largest) if largest > top else 0.0) or 1.0
    drawn = []
    for number, values in enumerate(series.values()):
        known = ~np.isnan(values)
        for first, end in _runs(known):
            starts_s = np.concatenate(([0.0], ends_s[:-1]))[first:end]
            steps = _steps(ends_s[first:end], values[first:end], scale, starts_s, float(ends_s[-1]))
            drawn.append(f'<polyline class="curve c{number}" points="{_points(steps)}"/>')
    return _figure(title, drawn, ends_s, scale, shown, _legend(series) if len(series) > 1 else "")


def bars(title: str, values: Mapping[str, float], shown: Format) -> str:
    """A horizontal bar for each value."""
    largest = max(values.values(), default=0.0) or 1.0
    height = len(values) * (_BAR + _GAP) + _GAP
    width = WIDTH - _LABEL - 110
    drawn = []
    for number, (name, value) in enumerate(values.items()):
        y = _GAP + number * (_BAR + _GAP)
        length = max(width * value / largest, 0.0)
        drawn.append(
            f'<text x="{_LABEL - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="track" x="{_LABEL}" y="{y}" width="{width}" height="{_BAR}"/>'
            f'<rect class="area c0" x="{_LABEL}" y="{y}" width="{length:.1f}" height="{_BAR}"/>'
            f'<text x="{_LABEL + width + 8}" y="{y + 12}">{escape(shown(value))}</text>'
        )
    said = ", ".join(f"{name} {shown(value)}" for name, value in values.items())
    return _framed(title, said, height, drawn, "")


def _steps(
    ends_s: Values, values: Values, top: float, starts_s: Values | None = None, whole_s: float = 0.0
) -> list[tuple[float, float]]:
    """The outline of values that hold from one end to the next."""
    starts = np.concatenate(([0.0], ends_s[:-1])) if starts_s is None else starts_s
    whole = whole_s or float(ends_s[-1])
    found = []
    for start_s, end_s, value in zip(starts, ends_s, values, strict=True):
        y = _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - float(value) / top)
        found += [(_x(float(start_s), whole), y), (_x(float(end_s), whole), y)]
    return found


def _x(time_s: float, whole_s: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * time_s / whole_s


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _runs(known: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The ranges of neighbours that are true."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], known, [False])).astype(np.int8)))
    return [(int(first), int(end)) for first, end in edges.reshape(-1, 2)]


def _nice(largest: float) -> float:
    """The end of a scale: 1, 2, 2.5 or 5 times a power of ten."""
    if largest <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(largest))
    return float(next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= largest * 0.999))


def _figure(title: str, drawn: list[str], ends_s: Values, top: float, shown: Format, legend: str) -> str:
    frame = []
    for number in range(_TICKS + 1):
        y = _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - number / _TICKS)
        value = escape(shown(top * number / _TICKS))
        frame.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        frame.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value}</text>')
        time_s = float(ends_s[-1]) * number / _TICKS
        anchor = "start" if number == 0 else "end" if number == _TICKS else "middle"
        x = _x(time_s, float(ends_s[-1]))
        frame.append(f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{time_s:.4g} s</text>')
    said = f"over {float(ends_s[-1]):.4g} seconds; the scale ends at {shown(top)}"
    return _framed(title, said, HEIGHT, frame + drawn, legend)


def _legend(series: Mapping[str, Values]) -> str:
    keys = (f'<span class="key c{number}"></span>{escape(name)}' for number, name in enumerate(series))
    return "".join(keys)


def _framed(title: str, said: str, height: int, drawn: Sequence[str], legend: str) -> str:
    label = escape(f"{title}: {said}", quote=True)
    return (
        f"<figure><figcaption>{escape(title)} {legend}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(drawn)}</svg></figure>\n'
    )
