"""The experiments of the DIESEL paper beside its numbers: table 2, figures 6 and 9 to 15.

Runs those sides of other benchmarks that correspond. Compared are ratios, as the machines differ. Each is a quotient of
medians, with the sides of a trial run in turn. A table appears when its last benchmark has ended.
"""

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from bench.harness.agreement import PART_EPOCHS, Storing
from bench.harness.figures import Figure, Row, Scale, Table, Trial
from bench.harness.report import SHAPE, trial_fields
from bench.harness.rounds import FAILURES, run_trial
from bench.papers.paper_numbers import (
    ACCURACY,
    BASE,
    BYTE_RATE,
    DURATION,
    ENTROPY,
    EXPERIMENTS,
    GROUP,
    LEVEL,
    LEVELS,
    LOSS,
    PER_PROCESSOR,
    PROCESSOR,
    RATE,
    Compared,
    Comparison,
    Experiment,
    Measure,
    Ratio,
)
from bench.registry import begin
from lab.network import Unsuitable

_ALIKE = 0.15
"""Ratios this near to 1 count as equal."""

Values = dict[tuple[str, str, str], Mapping[str, Sequence[float]]]
"""By benchmark, title of the trial and side: by name, its value in each round."""

Reasons = dict[tuple[str, str], str]
"""By benchmark and side: why it was not measured; the side is empty if none of them was."""

Kept = dict[tuple[str, str], Mapping[str, Any]]
"""By benchmark and title: a trial with its runs, for JSON."""


def paper(folder: Path, scale: Scale) -> Generator[Table]:
    return tables_of(EXPERIMENTS, folder, scale)


def tables_of(experiments: Iterable[Experiment], folder: Path, scale: Scale) -> Generator[Table]:
    """The tables of those that the scale wants."""
    experiments = [each for each in experiments if scale.wants(f"{each.where}: {each.title}")]
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
            seeds = seeds_of(scale) if set(benchmarks_of([experiment])) <= COMPUTED.keys() else 0
            yield Table(rows, trials_of(experiment, kept), seeds)


def _measure(
    name: str,
    experiments: Sequence[Experiment],
    folder: Path,
    scale: Scale,
    reasons: Reasons,
    kept: Kept,
) -> Iterator[Values]:
    """Run the sides of a benchmark that are compared; into `reasons`, why some failed; into `kept`, the trials."""
    if name in COMPUTED:
        yield from COMPUTED[name](folder, replace(scale, seeds=seeds_of(scale)), experiments)
        return
    scale = replace(scale, figure=None, only=pattern_of(name, experiments))
    with closing(begin(name, folder, scale)) as trials:
        for trial in trials:
            if isinstance(trial, Trial) and (chosen := chosen_sides(name, trial, experiments)).sides:
                found, left_out = run_trial(chosen, scale.journal)
                kept[name, trial.title] = trial_fields(chosen, found, left_out)
                reasons |= {(name, side): f"{name}, {side}: {reason}" for side, reason in left_out.items()}
                yield values_of(name, trial, found)


def seeds_of(scale: Scale) -> int:
    return scale.rounds if scale.is_quick else scale.seeds


def _accuracy(folder: Path, scale: Scale, experiments: Sequence[Experiment]) -> Iterator[Values]:
    from bench.papers.accuracy import storings

    scale = replace(scale, epochs=1) if scale.is_quick else scale
    yield from map(values_of_storing, storings(folder, scale, groups_of(experiments)))


def _opportunistic(folder: Path, scale: Scale, experiments: Sequence[Experiment]) -> Iterator[Values]:
    from bench.papers.opportunistic_training import opportunistic_training, randomisation_level

    scale, name = replace(scale, epochs=1) if scale.is_quick else scale, "opportunistic_training"
    found = opportunistic_training(folder, scale, groups_of(experiments, name))
    yield values_of_storing(found.storing, name)
    for percent, entropies in found.entropies.items():
        level = randomisation_level(found.images, percent / 100)
        yield {(name, LEVELS, f"{GROUP}{percent}"): {LEVEL: [level], ENTROPY: entropies}}


def _regression(folder: Path, scale: Scale, experiments: Sequence[Experiment]) -> Iterator[Values]:
    from bench.papers.regression import regression

    scale, name = replace(scale, epochs=1) if scale.is_quick else scale, "regression"
    for storing in regression(folder, scale, groups_of(experiments, name)):
        yield values_of_storing(storing, name, LOSS)


def _shade(folder: Path, scale: Scale, experiments: Sequence[Experiment]) -> Iterator[Values]:
    from bench.papers.shade import shade_figures

    name = "importance"
    wanted = {(each.trial, each.side) for each in measures_of(experiments) if each.benchmark == name}
    for title, side, values in shade_figures(folder, scale, wanted):
        yield {(name, title, side): values}


COMPUTED: dict[str, Callable[[Path, Scale, Sequence[Experiment]], Iterator[Values]]] = {
    "accuracy": _accuracy,
    "opportunistic_training": _opportunistic,
    "regression": _regression,
    "importance": _shade,
}
"""What depends on seeds, and but for loading not on the machine."""


# -- which sides, and what their values give: no I/O ------------------------------------------------------


def measures_of(experiments: Iterable[Experiment]) -> list[Measure]:
    comparisons = (each for experiment in experiments for each in experiment.comparisons)
    return [measure for each in comparisons for measure in (each.ours, each.base) if measure is not None]


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


def groups_of(experiments: Iterable[Experiment], name: str = "accuracy") -> list[int]:
    """The group sizes, or other numbers, whose accuracies are compared."""
    sides = {each.side for each in measures_of(experiments) if each.benchmark == name}
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
            **_processor_values(figure),
            **{what: [run.seen[what] for run in figure.runs if what in run.seen] for what in figure.seen},
        }
        for known_as in (side.name, *([BASE] if side.name == trial.base else [])):
            measured[name, trial.title, known_as] = values
    return measured


def _processor_values(figure: Figure) -> dict[str, Sequence[float]]:
    """Empty where no processor time was counted."""
    spent_s = [sum(run.parts.values()) for run in figure.runs]
    if not spent_s or not min(spent_s):
        return {}
    return {PROCESSOR: spent_s, PER_PROCESSOR: [figure.side.amount / each for each in spent_s]}


def values_of_storing(storing: Storing, name: str = "accuracy", value: str = ACCURACY) -> Values:
    """The mean accuracy, or what else a score is, of the last epochs of each run, by group size."""
    return {
        (name, storing.title, f"{GROUP}{group}"): {value: [fmean(run[-PART_EPOCHS:]) for run in runs]}
        for group, runs in storing.runs.items()
    }


def compared(experiment: Experiment, measured: Values) -> list[Compared]:
    def ratio(comparison: Comparison) -> Ratio | None:
        ours = _rounds(comparison.ours, measured)
        base = _rounds(comparison.base, measured) if comparison.base is not None else (1.0,)
        if not ours or not base or not min(base):
            return None
        return Ratio(median(ours) / median(base), min(ours) / max(base), max(ours) / min(base))

    def spent(comparison: Comparison) -> str:
        both = [each._replace(value=PROCESSOR) for each in (comparison.ours, comparison.base) if each]
        found = [_rounds(each, measured) for each in both]
        return " : ".join(_short(median(each)) if each else "?" for each in found) if any(found) else ""

    there = len(os.sched_getaffinity(0))
    return [
        Compared(
            each.what,
            each.paper,
            ratio(each),
            spent(each),
            each.processors * (each.processors > there),
            each.base is None,
        )
        for each in experiment.comparisons
    ]


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
    for what, paper, here, spent, lacks, is_share in found:
        is_whole = is_whole and here is not None
        yield {
            head: what,
            "paper": "not printed" if paper is None else _short(paper),
            "here": "not measured" if here is None else _short(here.median),
            "rounds": ""
            if here is None or here.low == here.high
            else f"{_short(here.low)} to {_short(here.high)}",
            "here : paper": "" if not paper or here is None else _short(here.median / paper),
            "processor s": spent,
            SHAPE: _shape(paper, here.median, lacks, is_share) if here is not None else "",
        }
    own = [reason for (name, _), reason in reasons.items() if name in benchmarks_of([experiment])]
    unmeasured = "" if is_whole or not own else f"; not measured: {'; '.join(own)}"
    yield {
        head: f"*differs:* {experiment.differs}{unmeasured}",
        "paper": "",
        "here": "",
        "rounds": "",
        "here : paper": "",
        "processor s": "",
        SHAPE: "",
    }


def _shape(paper: float | None, here: float, lacks: int, is_share: bool) -> str:
    if lacks:
        return f"undecided: needs {lacks} processors"
    if paper is None:
        return ""
    if is_share:
        return "other" if _direction(here / paper) else "same"
    return "same" if _direction(paper) == _direction(here) else "other"


def _direction(ratio: float) -> int:
    """Whether a side is slower (-1), alike, or faster (1)."""
    return (ratio > 1 + _ALIKE) - (ratio < 1 - _ALIKE)


def _short(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
