"""The page of `dlcmd report`: one HTML file without scripts, which needs no other file. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape

import numpy as np

from dieselfs import __version__
from dieselfs.shuffle.quality import FULL_SHUFFLE_DISTANCE, ShuffleQuality
from dieselfs.units import format_duration, format_size
from dieselfs_tools.observe import charts
from dieselfs_tools.observe.epoch_report import EpochReport

RANKS_SHOWN_MAX = 64
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
th, td { text-align: right; padding: .2rem .5rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; } th { font-weight: 600; }
.wide { overflow-x: auto; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .6rem; margin: 1rem 0; }
dl div { border: 1px solid var(--line); border-radius: .4rem; padding: .5rem .7rem; }
dt { color: var(--quiet); } dd { margin: 0; font-size: 1.2rem; }
"""
    + charts.STYLE
)


def page(subject: str, report: EpochReport, quality: ShuffleQuality | None) -> str:
    """`subject`: the mount or the job. `quality`: of the order, None if there is no plan or it is not known."""
    plan, began = report.plan, datetime.fromtimestamp(report.began_s, UTC)
    title = f"epoch {plan['epoch']}, seed {plan['seed']}" if plan else "all that is known"
    body = [
        f"<h1>{escape(subject)}: {title}</h1>",
        f'<p class="quiet">{began:%Y-%m-%d %H:%M:%S} UTC, {escape(format_duration(report.seconds))}; '
        f"dieselfs {escape(__version__)}</p>",
        _facts(report),
        "<h2>Throughput</h2>",
        charts.lines("files of the plan, a second", report.ends_s, {"files": report.files}, _number),
        charts.stacked("bytes fetched, a second, by source", report.ends_s, report.fetched, _size),
        charts.lines(
            "bytes put into the page cache, a second", report.ends_s, {"pushed": report.pushed}, _size
        ),
        "<h2>Stalls</h2>",
        charts.lines("reads that wait, on the average", report.ends_s, {"reads": report.waiting}, _number),
        charts.stacked(
            "seconds of the daemon's threads, a second, by cause", report.ends_s, report.spent, _number
        ),
        charts.bars("seconds in the epoch, by cause", report.totals()["spent_s"], _seconds),
        "<h2>Hits and memory</h2>",
        charts.lines(
            "files that were in the page cache in time; best possible share of the dataset in memory",
            report.ends_s,
            {"in time": report.hits, "fits into memory": np.full(len(report.ends_s), report.best_hit_share)},
            _share,
            top=1.0,
        ),
        charts.lines("memory used", report.ends_s, {"memory": report.memory_used_bytes}, _size),
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


def _facts(report: EpochReport) -> str:
    totals = report.totals()
    hit_share = totals["hit_share"]
    fetched_bytes = sum(totals["fetched_bytes"].values())
    facts = {
        "files read": f"{totals['files']:,}",
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
        + charts.bars("positions of the plan passed, a second", rates, _number)
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
