"""Accuracy over epochs as a figure: a panel for each way to store, a curve for each group size.

This module writes a file.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.storing import Storing, group_name

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "dieselfs"  # the same figures give the same file
mpl.rcParams["svg.fonttype"] = "none"

_COLOURS = {1: "#c0392b", 5: "#e67e22", 15: "#2980b9", 30: "#16a085", 0: "#000000"}
_LOWEST = 0.6
"""Accuracies below are cut off."""


def draw(storings: Sequence[Storing], file: Path) -> None:
    """Means over the seeds, and the standard deviation on both sides of them."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels: list[Axes] = list(figure.subplots(1, len(storings), sharey=True))
    for panel, storing in zip(panels, storings, strict=True):
        for group, runs in storing.runs.items():
            epochs = np.arange(1, len(runs[0]) + 1)
            mean, spread = np.mean(runs, axis=0), np.std(runs, axis=0, ddof=1)
            label, style = group_name(group, storing.chunks), "-" if group else "--"
            panel.plot(epochs, mean, style, color=_COLOURS[group], linewidth=1.3, label=label)
            panel.fill_between(
                epochs, mean - spread, mean + spread, color=_COLOURS[group], alpha=0.12, linewidth=0
            )
        panel.set_title(f"{storing.title}, {storing.chunks} chunks", fontsize=10)
        panel.set_xlabel("epoch")
        panel.set_xlim(1, len(runs[0]))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set_ylim(_LOWEST, 1)
        panel.grid(alpha=0.25, linewidth=0.5)
        panel.legend(fontsize=8, loc="lower right")
    panels[0].set_ylabel("accuracy on the test images")
    figure.savefig(file, metadata={"Date": None})
