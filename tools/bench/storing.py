"""What came of training on a dataset that was stored in one way, and the table of it. No I/O."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from bench.agreement import CONFIDENCE, TOLERANCE, difference

LAST_EPOCHS = 5
"""The accuracy of a run is the mean over so many epochs at its end."""
FIRST_EPOCHS = 5
"""And how fast it learned is the mean over so many at its beginning."""


@dataclass(frozen=True, slots=True)
class Storing:
    """How the digits are stored, and what came of it by group size: `repeats`, the share of images that follow one of
    their class, and `runs`, the accuracies by seed, then by epoch.
    """

    title: str
    chunks: int
    repeats: dict[int, float]
    runs: dict[int, list[list[float]]]


def group_name(group: int, chunks: int) -> str:
    return f"G = {group} ({group / chunks:.0%})" if group else "full shuffle"


def storing_lines(storing: Storing) -> Iterator[str]:
    """The figures of a storing, as Markdown; differences are from the full shuffle, in percentage points."""
    full = storing.runs[0]
    yield (
        f"| {storing.title}, {storing.chunks} chunks | class repeats | first {FIRST_EPOCHS} epochs | difference | "
        f"last {LAST_EPOCHS} epochs | difference | within {100 * TOLERANCE:g} point, {CONFIDENCE:.0%} sure |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for group, runs in storing.runs.items():
        cells = [group_name(group, storing.chunks), f"{storing.repeats[group]:.0%}"]
        parts = [(early(runs), early(full)), (late(runs), late(full))]
        for ours, others in parts:
            cells += [
                f"{100 * fmean(ours):.1f} ± {100 * stdev(ours):.1f} %",
                points(ours, others) if group else "",
            ]
        verdict = " / ".join("yes" if difference(*part).agrees else "no" for part in parts)
        yield "| " + " | ".join([*cells, verdict if group else ""]) + " |"


def early(runs: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(run[:FIRST_EPOCHS]) for run in runs]


def late(runs: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(run[-LAST_EPOCHS:]) for run in runs]


def points(ours: Sequence[float], others: Sequence[float]) -> str:
    found = difference(ours, others)
    return f"{100 * found.mean:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
