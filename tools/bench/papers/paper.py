"""The experiments of the DIESEL paper beside its numbers: table 2, figures 6 and 9 to 15.

Runs those sides of other benchmarks that correspond. Compared are ratios, as the machines differ. Each is a quotient of
medians, with the sides of a trial run in turn. A table appears when its last benchmark has ended. This module
writes files.
"""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from bench.harness.agreement import PART_EPOCHS, Storing
from bench.harness.figures import Figure, Row, Scale, Table, Trial
from bench.harness.report import trial_fields
from bench.harness.rounds import FAILURES, run_trial
from bench.papers.paper_numbers import (
    ACCURACY,
    BASE,
    BYTE_RATE,
    DURATION,
    EXPERIMENTS,
    GROUP,
    RATE,
    Compared,
    Comparison,
    Experiment,
    Measure,
    Ratio,
)
from bench.registry import begin
from lab.network import Unsuitable

DRAWING = Path(__file__).parents[3] / "docs/figures/paper.svg"
"""The default output of a run that is not quick."""
_ALIKE = 0.15
"""Ratios this near to 1 count as equal."""

Values = dict[tuple[str, str, str], Mapping[str, Sequence[float]]]
"""By benchmark, title of the trial and side: by name, its value in each round."""

Reasons = dict[tuple[str, str], str]
"""By benchmark and side: why it was not measured; the side is empty if none of them was."""


Kept = dict[tuple[str, str], Mapping[str, Any]]
"""By benchmark and title: a trial with its runs, for JSON."""


def paper(folder: Path, scale: Scale) -> Generator[Table]:
    experiments = [each for each in EXPERIMENTS if scale.wants(f"{each.where}: {each.title}")]
    file = scale.figure or (None if scale.is_quick or scale.only else DRAWING)
    if file is not None:
        from bench.papers.drawing import draw_paper  # before the measurements, as matplotlib is optional
    measured, reasons, kept = Values(), Reasons(), Kept()
    waiting, names = list(experiments), benchmarks_of(experiments)
    for number, name in enumerate(names):
        try:
            with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:
                for values in _measure(name, experiments, Path(place), scale, reasons, kept):
                    measured |= values
        except (Unsuitable, *FAILURES) as reason:
            reasons[name, ""] = f"{name}: {reason}"
        ended = {*names[: number + 1]}
        for experiment in [each for each in waiting if set(benchmarks_of([each])) <= ended]:
            waiting.remove(experiment)
            rows = rows_of(experiment, compared(experiment, measured), reasons)
            yield Table(rows, trials_of(experiment, kept), scale.seeds if "accuracy" in ended else 0)
    if file is not None:
        draw_paper([(each, compared(each, measured)) for each in experiments], file)


def _measure(
    name: str,
    experiments: Sequence[Experiment],
    folder: Path,
    scale: Scale,
    reasons: Reasons,
    kept: Kept,
) -> Iterator[Values]:
    """Run the sides of a benchmark that are compared; into `reasons`, why some failed; into `kept`, the trials."""
    if name == "accuracy":
        from bench.papers.accuracy import storings

        if scale.is_quick:
            scale = replace(scale, seeds=scale.rounds, epochs=1)
        yield from map(values_of_storing, storings(folder, scale, groups_of(experiments)))
        return
    scale = replace(scale, figure=None, only=pattern_of(name, experiments))
    with closing(begin(name, folder, scale)) as trials:
        for trial in trials:
            if isinstance(trial, Trial) and (chosen := chosen_sides(name, trial, experiments)).sides:
                found, left_out = run_trial(chosen, scale.journal)
                kept[name, trial.title] = trial_fields(chosen, found, left_out)
                reasons |= {(name, side): f"{name}, {side}: {reason}" for side, reason in left_out.items()}
                yield values_of(name, trial, found)


# -- which sides, and what their values give: no I/O ------------------------------------------------------


def measures_of(experiments: Iterable[Experiment]) -> list[Measure]:
    comparisons = (each for experiment in experiments for each in experiment.comparisons)
    return [measure for each in comparisons for measure in (each.ours, each.base)]


def benchmarks_of(experiments: Iterable[Experiment]) -> list[str]:
    """Each once, in the order of their first use."""
    return list(dict.fromkeys(measure.benchmark for measure in measures_of(experiments)))


def pattern_of(name: str, experiments: Iterable[Experiment]) -> str:
    """Of the titles of a benchmark's trials that are compared."""
    return "|".join(
        {measure.trial: None for measure in measures_of(experiments) if measure.benchmark == name}
    )


def trials_of(experiment: Experiment, kept: Kept) -> list[Mapping[str, Any]]:
    """The trials whose sides an experiment compares."""
    measures = measures_of([experiment])
    return [
        fields
        for (name, title), fields in kept.items()
        if any(name == each.benchmark and re.search(each.trial, title) for each in measures)
    ]


def groups_of(experiments: Iterable[Experiment]) -> list[int]:
    """The group sizes whose accuracies are compared."""
    sides = {each.side for each in measures_of(experiments) if each.benchmark == "accuracy"}
    return sorted(int(side.removeprefix(GROUP)) for side in sides)


def chosen_sides(name: str, trial: Trial, experiments: Iterable[Experiment]) -> Trial:
    """The trial with the sides that a comparison needs, if any."""
    wanted = {
        measure.side or trial.base
        for measure in measures_of(experiments)
        if measure.benchmark == name and re.search(measure.trial, trial.title)
    }
    return replace(trial, sides=[side for side in trial.sides if side.name in wanted], base=None)


def values_of(name: str, trial: Trial, found: Iterable[Figure]) -> Values:
    """The base of the trial also stands under BASE."""
    measured = Values()
    for figure in found:
        durations_s, side = figure.durations_s, figure.side
        values: dict[str, Sequence[float]] = {
            RATE: [side.amount / each for each in durations_s],
            BYTE_RATE: [side.size_bytes / each for each in durations_s],
            DURATION: durations_s,
            **{what: [run.seen[what] for run in figure.runs if what in run.seen] for what in figure.seen},
        }
        for known_as in (side.name, *([BASE] if side.name == trial.base else [])):
            measured[name, trial.title, known_as] = values
    return measured


def values_of_storing(storing: Storing) -> Values:
    """The mean accuracy of the last epochs of each run, by group size."""
    return {
        ("accuracy", storing.title, f"{GROUP}{group}"): {
            ACCURACY: [fmean(run[-PART_EPOCHS:]) for run in runs]
        }
        for group, runs in storing.runs.items()
    }


def compared(experiment: Experiment, measured: Values) -> list[Compared]:
    def ratio(comparison: Comparison) -> Ratio | None:
        ours, base = _rounds(comparison.ours, measured), _rounds(comparison.base, measured)
        if not ours or not base or not min(base):
            return None
        return Ratio(median(ours) / median(base), min(ours) / max(base), max(ours) / min(base))

    return [Compared(each.what, each.paper, ratio(each)) for each in experiment.comparisons]


def _rounds(measure: Measure, measured: Values) -> Sequence[float]:
    values: Sequence[float] = ()
    for (name, title, side), found in measured.items():
        if name == measure.benchmark and side == measure.side and re.search(measure.trial, title):
            values = found.get(measure.value, ())
    return values


def rows_of(
    experiment: Experiment, found: Iterable[Compared], reasons: Mapping[tuple[str, str], str]
) -> Iterator[Row]:
    """A row for each ratio, and one for what differs here. `reasons`: why something was not measured, by benchmark and
    side.
    """
    head, is_whole = f"{experiment.where}: {experiment.title}", True
    for what, paper, here in found:
        is_whole = is_whole and here is not None
        yield {
            head: what,
            "paper": "not printed" if paper is None else _short(paper),
            "here": "not measured" if here is None else _short(here.median),
            "rounds": ""
            if here is None or here.low == here.high
            else f"{_short(here.low)} to {_short(here.high)}",
            "here : paper": "" if not paper or here is None else _short(here.median / paper),
            "shape": "" if paper is None or here is None else _shape(paper, here.median),
        }
    own = [reason for (name, _), reason in reasons.items() if name in benchmarks_of([experiment])]
    lacks = "" if is_whole or not own else f"; not measured: {'; '.join(own)}"
    yield {
        head: f"*differs:* {experiment.differs}{lacks}",
        "paper": "",
        "here": "",
        "rounds": "",
        "here : paper": "",
        "shape": "",
    }


def _shape(paper: float, here: float) -> str:
    return "same" if _direction(paper) == _direction(here) else "other"


def _direction(ratio: float) -> int:
    """Whether a side is slower (-1), alike, or faster (1)."""
    return (ratio > 1 + _ALIKE) - (ratio < 1 - _ALIKE)


def _short(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
