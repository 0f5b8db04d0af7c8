"""`python -m bench.failover_figure RUNS.json FIGURE.svg`: the rates around the losses that `bench failover` measured.

This module reads and writes files.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.failover_dip import AFTER_S, BACK_SHARE, BEFORE_S, Rates, shares, smoothed

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "dieselfs"  # the same figures give the same file
mpl.rcParams["svg.fonttype"] = "none"

_THIN = 3
"""One of so many points is enough for single runs, and makes a small file."""
_COLOURS = {"its job": "#c0392b", "another job": "#2980b9"}


def draw(sides: Mapping[str, Sequence[Mapping[str, Sequence[float]]]], file: Path) -> None:
    """A panel for each side: of each job all runs, thin, and their mean, as shares of the mean before the loss."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels: list[Axes] = list(np.atleast_1d(figure.subplots(1, len(sides), sharey=True)))
    for panel, (name, runs) in zip(panels, sides.items(), strict=True):
        for job, colour in _COLOURS.items():
            rates = [smoothed(shares(run[job])) for run in runs]
            _curves(panel, rates, job, colour)
        panel.axvline(0, color="black", linewidth=0.6, linestyle=":")
        panel.axhline(BACK_SHARE, color="black", linewidth=0.6, linestyle=":")
        panel.set_title(f"{name}, {len(runs)} times", fontsize=10)
        panel.set_xlabel("seconds")
        panel.set_xlim(-BEFORE_S, AFTER_S)
        panel.set_ylim(0, 1.3)
        panel.grid(alpha=0.25, linewidth=0.5)
    panels[0].set_ylabel("files read, as a share of before")
    panels[0].legend(fontsize=8, loc="lower right")
    figure.savefig(file, metadata={"Date": None})


def _curves(panel: Axes, rates: Sequence[Rates], label: str, colour: str) -> None:
    seconds = np.linspace(-BEFORE_S, AFTER_S, len(rates[0]), endpoint=False)
    for each in rates:
        panel.plot(seconds[::_THIN], each[::_THIN], color=colour, alpha=0.2, linewidth=0.5)
    panel.plot(seconds, np.mean(rates, axis=0), color=colour, linewidth=1.4, label=label)


def main(runs: Path, figure: Path) -> None:
    trials = json.loads(runs.read_text())["trials"]
    sides = {side["name"]: side["series"] for trial in trials for side in trial["sides"] if side["series"]}
    draw(sides, figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
