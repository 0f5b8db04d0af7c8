"""The page of `dlcmd report`: one HTML file with SVG charts and without scripts, which needs no other file. No I/O."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape

import numpy as np
import numpy.typing as npt

from dieselfs import __version__
from dieselfs.shuffle.quality import FULL_SHUFFLE_DISTANCE, ShuffleQuality
from dieselfs.telemetry.diagnosis import HIT_SHARE_MIN, WAITING_MIN
from dieselfs.units import count, format_duration, format_size
from dieselfs_tools.observe.epoch_report import EpochReport

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
"""The style of the charts; the page sets --quiet and --line."""

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


RANKS_SHOWN_MAX = 64
MORE_FILES_MIN = 1.02
"""More files than this many times those of the epoch are not of it alone."""
_STYLE = (
    """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --quiet: #57606a; --line: #d8dee4; }
@media (prefers-color-scheme: dark) {
:root { --back: #0d1117; --text: #e6edf3; --quiet: #9aa4af; --line: #30363d; } }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; background: var(--back); color: var(--text);
font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
p { margin: .4rem 0; } .quiet, figcaption { color: var(--quiet); }
figure { margin: .8rem 0; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
.wide { overflow-x: auto; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .6rem; margin: 1rem 0; }
dl div { border: 1px solid var(--line); border-radius: .4rem; padding: .5rem .7rem; }
dt { color: var(--quiet); } dd { margin: 0; font-size: 1.2rem; }
"""
    + STYLE
)


def page(subject: str, report: EpochReport, quality: ShuffleQuality | None) -> str:
    """`subject`: the mount or the job. `quality`: of the order, None if there is no plan or it is not known."""
    plan, began = report.plan, datetime.fromtimestamp(report.began_s, UTC)
    title = f"epoch {plan['epoch']}, seed {plan['seed']}" if plan else "all that is known"
    body = [
        f"<h1>{escape(subject)}: {title}</h1>",
        f'<p class="quiet">{began:%Y-%m-%d %H:%M:%S} UTC, {escape(format_duration(report.seconds))}; '
        f"dieselfs {escape(__version__)}</p>",
        f"<p><strong>{escape(meaning(report))}</strong></p>",
        _facts(report),
        "<h2>Throughput</h2>",
        lines("files of the plan, a second", report.ends_s, {"files": report.files}, _number),
        stacked("bytes fetched, a second, by source", report.ends_s, report.fetched, _size),
        lines("bytes put into the page cache, a second", report.ends_s, {"pushed": report.pushed}, _size),
        "<h2>Stalls</h2>",
        lines("reads that wait, on the average", report.ends_s, {"reads": report.waiting}, _number),
        stacked("seconds of the daemon's threads, a second, by cause", report.ends_s, report.spent, _number),
        bars("seconds in the epoch, by cause", report.totals()["spent_s"], _seconds),
        "<h2>Hits and memory</h2>",
        lines(
            "files that were in the page cache in time; best possible share of the dataset in memory",
            report.ends_s,
            {"in time": report.hits, "fits into memory": np.full(len(report.ends_s), report.best_hit_share)},
            _share,
            top=1.0,
        ),
        lines("memory used", report.ends_s, {"memory": report.memory_used_bytes}, _size),
        "<h2>Order</h2>",
        _order(report, quality),
        "<h2>Ranks</h2>",
        _ranks(report),
        "<h2>Daemons</h2>",
        _nodes(report),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(subject)}: {title}</title><style>{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def meaning(report: EpochReport) -> str:
    """What the figures say, in a sentence or two."""
    totals = report.totals()
    waiting, hit_share, spent_s = totals["waited_s"] / report.seconds, totals["hit_share"], totals["spent_s"]
    cause = max(spent_s, key=lambda each: spent_s[each], default="")
    if totals["failed"]:
        text = f"{count(totals['failed'], 'read')} failed: see .dieselfs/errors of the mount."
    elif waiting < WAITING_MIN:
        text = (
            f"Reading was not the limit: on the average {waiting:.2f} reads waited. If the epoch was slow, look at "
            "decoding, transforms and the model."
        )
    else:
        text = f"Reading was a limit: on the average {waiting:.2f} reads waited"
        text += (
            f", most of the time for '{cause}' ({spent_s[cause]:,.1f} s)."
            if cause and spent_s[cause]
            else "."
        )
        if hit_share is not None and hit_share < HIT_SHARE_MIN:
            text += (
                f" Only {hit_share:.0%} of the files were in memory in time: give the mount more memory, or read in "
                "smaller groups."
            )
    positions = report.plan["positions"] if report.plan else 0
    if positions and totals["files"] > MORE_FILES_MIN * positions:
        text += (
            f" In this time {totals['files']:,} files of plans were read, and the epoch has {positions:,}: other "
            "epochs read the same mounts."
        )
    return text


def _facts(report: EpochReport) -> str:
    totals = report.totals()
    hit_share = totals["hit_share"]
    fetched_bytes = sum(totals["fetched_bytes"].values())
    facts = {
        "files of plans read": f"{totals['files']:,}",
        "files a second": f"{totals['files_per_s']:,.0f}",
        "in time": "unknown" if hit_share is None else f"{hit_share:.1%}",
        "fetched": format_size(fetched_bytes),
        "reads waited": format_duration(totals["waited_s"]),
        "failed reads": f"{totals['failed']:,}",
    }
    return (
        "<dl>"
        + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
        + "</dl>"
    )


def _order(report: EpochReport, quality: ShuffleQuality | None) -> str:
    if report.plan is None:
        return "<p>No plan was read, so nothing is known of the order.</p>"
    group = report.plan["group"] or "all"
    text = f"<p>{report.plan['positions']:,} positions, groups of {group} chunks.</p>"
    if quality is None:
        return f"{text}<p>The quality of this order is not known here.</p>"
    rows = {
        "entropy ratio": (quality.entropy_ratio, 1.0),
        "mean distance moved": (quality.mean_distance, FULL_SHUFFLE_DISTANCE),
        "files that follow one of their folder": (quality.folder_repeats, quality.folder_repeats_expected),
    }
    cells = [(name, f"{ours:.1%}", f"{full:.1%}") for name, (ours, full) in rows.items()]
    return text + _table(("measure", "this order", "full shuffle"), cells)


def _ranks(report: EpochReport) -> str:
    if not report.ranks:
        return "<p>No reader of a plan is known.</p>"
    shown = report.ranks[:RANKS_SHOWN_MAX]
    names = [
        f"{each.node}, rank {each.rank}" + (f", worker {each.worker}" if each.worker else "")
        for each in shown
    ]
    rates = {name: each.positions_per_s for name, each in zip(names, shown, strict=True)}
    seconds = [each.seconds for each in report.ranks]
    longest, mean = max(seconds), sum(seconds) / len(seconds)
    balance = f"The slowest takes {longest / mean:.2f} times the mean. " if len(seconds) > 1 and mean else ""
    cells = [
        (
            name,
            f"{each.position:,}",
            f"{each.share:.1%}",
            _seconds(each.seconds),
            _number(each.positions_per_s),
        )
        for name, each in zip(names, shown, strict=True)
    ]
    rest = len(report.ranks) - len(shown)
    return (
        f"<p>{balance}Positions are as far as reads show them.</p>"
        + bars("positions of the plan passed, a second", rates, _number)
        + _table(("reader", "position", "of the plan", "time", "positions/s"), cells)
        + (f"<p>... and {rest} more</p>" if rest else "")
    )


def _nodes(report: EpochReport) -> str:
    cells = [
        (
            each.node,
            f"{each.files:,}",
            "" if each.hit_share is None else f"{each.hit_share:.1%}",
            format_size(each.fetched_bytes),
            format_size(each.pushed_bytes),
            _seconds(each.waited_s),
            f"{each.failed:,}",
            _seconds(each.cpu_s),
            f"{format_size(each.memory_used_bytes)} of {format_size(each.memory_granted_bytes)}",
        )
        for each in report.nodes
    ]
    names = ("daemon", "files", "in time", "fetched", "pushed", "reads waited", "failed", "CPU", "memory")
    return _table(names, cells)


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _number(value: float) -> str:
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:,.3g} s"


def _share(value: float) -> str:
    return f"{value:.0%}"


def _size(value: float) -> str:
    return format_size(int(value))


def fields(report: EpochReport, quality: ShuffleQuality | None) -> Mapping[str, object]:
    """The same for JSON."""
    return {
        "plan": report.plan,
        "began_s": round(report.began_s, 3),
        "seconds": round(report.seconds, 3),
        "totals": report.totals(),
        "quality": quality and asdict(quality),
        "ranks": [asdict(each) for each in report.ranks],
        "daemons": [asdict(each) for each in report.nodes],
        "points": list(report.points()),
    }
