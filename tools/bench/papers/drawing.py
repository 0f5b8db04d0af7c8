"""SVG figures of the documentation: rates around losses, accuracy over epochs, ratios beside a paper's. This
module writes files."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bench.harness.agreement import Storing, group_name
from bench.jobs.failover import AFTER_S, BACK_SHARE, BEFORE_S, shares, smoothed

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "dieselfs"  # equal data gives an equal file
mpl.rcParams["svg.fonttype"] = "none"

_THIN = 3
"""Single runs are drawn with one point in _THIN."""
_LOWEST = 0.6
"""Accuracies below are cut off."""
_JOB_COLOURS = {"its job": "#c0392b", "another job": "#2980b9"}
_THERE, _HERE = "#000000", "#c0392b"
"""Colours of the paper's numbers and of ours."""
_GROUP_COLOURS = {1: "#c0392b", 5: "#e67e22", 15: "#2980b9", 30: "#16a085", 0: "#000000"}


@contextmanager
def _panels(count: int, height: float, label: str, file: Path) -> Iterator[list[Axes]]:
    figure = Figure(figsize=(9, height), layout="constrained")
    panels: list[Axes] = list(np.atleast_1d(figure.subplots(1, count, sharey=True)))
    yield panels
    for panel in panels:
        panel.grid(alpha=0.25, linewidth=0.5)
    panels[0].set_ylabel(label)
    panels[0].legend(fontsize=8, loc="lower right")
    figure.savefig(file, metadata={"Date": None})


def draw_failover(trials: Sequence[Mapping[str, Any]], file: Path) -> None:
    """A panel for each side: for each job all runs, thin, and their mean, relative to the mean before the loss."""
    series = {
        side["name"]: [run["series"] for run in side["runs"] if "series" in run]
        for trial in trials
        for side in trial.get("sides", [])
    }
    sides = {name: runs for name, runs in series.items() if runs}
    with _panels(len(sides), 3.2, "files read, as a share of before", file) as panels:
        for panel, (name, runs) in zip(panels, sides.items(), strict=True):
            for job, colour in _JOB_COLOURS.items():
                rates = [smoothed(shares(run[job])) for run in runs]
                seconds = np.linspace(-BEFORE_S, AFTER_S, len(rates[0]), endpoint=False)
                for each in rates:
                    panel.plot(seconds[::_THIN], each[::_THIN], color=colour, alpha=0.2, linewidth=0.5)
                panel.plot(seconds, np.mean(rates, axis=0), color=colour, linewidth=1.4, label=job)
            panel.axvline(0, color="black", linewidth=0.6, linestyle=":")
            panel.axhline(BACK_SHARE, color="black", linewidth=0.6, linestyle=":")
            panel.set_title(f"{name}, {len(runs)} times", fontsize=10)
            panel.set_xlabel("seconds")
            panel.set_xlim(-BEFORE_S, AFTER_S)
            panel.set_ylim(0, 1.3)


def draw_accuracy(storings: Sequence[Storing], file: Path) -> None:
    """A panel for each storage order: mean and standard deviation over the seeds."""
    with _panels(len(storings), 3.6, "accuracy on the test images", file) as panels:
        for panel, storing in zip(panels, storings, strict=True):
            for group, runs in storing.runs.items():
                epochs, colour = np.arange(1, len(runs[0]) + 1), _GROUP_COLOURS[group]
                mean, spread = np.mean(runs, axis=0), np.std(runs, axis=0, ddof=1)
                label, style = group_name(group, storing.chunks), "-" if group else "--"
                panel.plot(epochs, mean, style, color=colour, linewidth=1.3, label=label)
                panel.fill_between(
                    epochs, mean - spread, mean + spread, color=colour, alpha=0.12, linewidth=0
                )
            panel.set_title(f"{storing.title}, {storing.chunks} chunks", fontsize=10)
            panel.set_xlabel("epoch")
            panel.set_xlim(1, len(runs[0]))
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            panel.set_ylim(_LOWEST, 1)
            panel.legend(fontsize=8, loc="lower right")


class _Ratio(NamedTuple):
    """A row of a table that compares. `paper`: None if it prints no number; `here`: lowest, median and highest."""

    what: str
    paper: float | None
    here: tuple[float, float, float] | None


def draw_paper(tables: Sequence[Mapping[str, Any]], file: Path) -> None:
    """A panel for each table of ratios, as kept for JSON, all on one logarithmic axis. A line for each ratio: in the
    paper a ring, here the median and, of several rounds, the range.
    """
    found = [(next(iter(table["rows"][0])), _ratios(table["rows"])) for table in tables]
    counts = [len(ratios) for _, ratios in found]
    figure = Figure(figsize=(9, 1 + 0.5 * len(found) + 0.24 * sum(counts)), layout="constrained")
    panels: list[Axes] = list(
        np.atleast_1d(
            figure.subplots(len(found), 1, sharex=True, height_ratios=[each + 0.6 for each in counts])
        )
    )
    for panel, (title, ratios) in zip(panels, found, strict=True):
        for line, each in enumerate(ratios):
            if each.paper:
                panel.scatter(each.paper, line, s=64, facecolors="none", edgecolors=_THERE, linewidths=1.4)
            if each.here is not None:
                low, median, high = each.here
                panel.plot([low, high], [line, line], color=_HERE, linewidth=1.6, solid_capstyle="butt")
                panel.scatter(median, line, s=20, color=_HERE, marker="D", zorder=3)
        panel.set_title(title, fontsize=9, loc="left")
        panel.set_yticks(range(len(ratios)), [each.what for each in ratios], fontsize=8)
        panel.set_ylim(len(ratios) - 0.3, -0.7)
        panel.axvline(1, color="black", linewidth=0.8, linestyle=":")
        panel.grid(alpha=0.25, linewidth=0.5)
    last = panels[-1]
    last.set_xscale("log")
    last.xaxis.set_major_formatter("{x:g}")
    last.set_xlabel("ratio: equal at 1", fontsize=9)
    signs = [
        Line2D([], [], color=_THERE, marker="o", markersize=8, markerfacecolor="none", linestyle="none"),
        Line2D([], [], color=_HERE, marker="D", markersize=4.5, linewidth=1.6),
    ]
    labels = ["the paper, if it prints a number other than 0", "here: median and range of the rounds"]
    figure.legend(signs, labels, fontsize=8, loc="outside upper right", ncols=2, frameon=False)
    figure.savefig(file, metadata={"Date": None})


def _ratios(rows: Sequence[Mapping[str, str]]) -> list[_Ratio]:
    """Of the rows of a table; the last one says what differs."""
    found = []
    for row in rows[:-1]:
        paper, here = _number(row["paper"]), _number(row["here"])
        low, _, high = row["rounds"].partition(" to ")
        spread = None if here is None else (_number(low) or here, here, _number(high) or here)
        found.append(_Ratio(next(iter(row.values())), paper, spread))
    return found


def _number(cell: str) -> float | None:
    """None for words."""
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None
