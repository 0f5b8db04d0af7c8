"""What figures 2 to 4 and 7 to 12 of SHADE show, of the trainings and caches of `importance`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import compress
from math import ceil
from pathlib import Path

import numpy as np

from bench.harness.figures import Scale
from bench.papers.importance import (
    BY_BATCH,
    HIT_EPOCHS,
    HIT_SAMPLES,
    LOADED_SAMPLES,
    QUICK_EPOCHS,
    QUICK_SAMPLES,
    SHARES,
    SPEED_EPOCHS,
    SPEED_SHARES,
    BatchLossReader,
    hit_ratio,
    policies,
    published_hits,
    shade_hits,
    speeds,
)
from bench.papers.lessons import Subject, Training, UniformReader, learn, synthetic
from bench.papers.paper_numbers import ACCURACY
from bench.papers.sample_loads import SampleLoads, sample_loads
from dieselfs.importance.schedule import DEFAULT_REPEATS

HITS = "hits of a request"
THROUGHPUT, LOADING, LOADING_SPREAD, CONVERGED = (
    "images a second",
    "milliseconds to load a batch",
    "standard deviation of loading",
    "seconds until converged",
)
"""Of real loading, and a model of computing. Compared are the seeds with which all trainings converge."""
AGAIN, AGAIN_LAST, THRICE_LAST, IMPORTANT = (
    "read more than once in the second epoch",
    "read more than once in the last epoch",
    "read three times or more in the last epoch",
    "scores above 30 % of the largest at the end",
)
"""Shares of the samples."""
IMPORTANCE_SHARE = 0.3
EARLY_SHARE = 0.2
"""Of the epochs, after which importance sampling is compared with all epochs of uniform sampling."""
TRAINING, UNIFORM_SAMPLING, IMPORTANCE_SAMPLING = "training", "uniform", BY_BATCH
OURS, PUBLISHED = "SHADE, repeats 3", "SHADE as published, repeats 3"

Found = tuple[str, str, Mapping[str, Sequence[float]]]
"""The title of a trial, a side, and by name its values for each seed."""


def hits_title(share: float) -> str:
    return f"hits, cache of {share:.0%}"


def speed_title(share: float) -> str:
    return f"speed, cache of {share:.0%}"


def shade_figures(folder: Path, scale: Scale, wanted: Collection[tuple[str, str]]) -> Iterator[Found]:
    """`wanted`: titles of trials, each with a side."""
    if {title for title, _ in wanted} & set(map(speed_title, SPEED_SHARES)):
        subject = synthetic(QUICK_SAMPLES if scale.is_quick else LOADED_SAMPLES)
        with sample_loads(folder, len(subject.train.labels)) as loads:
            yield from _speeds(subject, scale, wanted, loads)
    if {title for title, _ in wanted} - set(map(speed_title, SPEED_SHARES)):
        subject = synthetic(QUICK_SAMPLES if scale.is_quick else HIT_SAMPLES)
        yield from _samplings(subject, scale, wanted)


def _speeds(
    subject: Subject, scale: Scale, wanted: Collection[tuple[str, str]], loads: SampleLoads
) -> Iterator[Found]:
    titles, sides = {title for title, _ in wanted}, {side for _, side in wanted}
    shares = [share for share in SPEED_SHARES if speed_title(share) in titles]
    epochs = QUICK_EPOCHS if scale.is_quick else SPEED_EPOCHS
    for share, runs, goals in speeds(subject, epochs, scale.seeds, loads, shares, sides):
        times = {
            side: [each.times.time_to(each.accuracies, goal) for each, goal in zip(of, goals, strict=True)]
            for side, of in runs.items()
        }
        together = [None not in each for each in zip(*times.values(), strict=True)]
        for side, of in runs.items():
            found = [each.times.load_ms() for each in of]
            values = {
                THROUGHPUT: [each.times.throughput() for each in of],
                LOADING: [mean for mean, _ in found],
                LOADING_SPREAD: [spread for _, spread in found],
                CONVERGED: [each for each in compress(times[side], together) if each is not None],
            }
            yield speed_title(share), side, values


def _samplings(subject: Subject, scale: Scale, wanted: Collection[tuple[str, str]]) -> Iterator[Found]:
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    epochs = QUICK_EPOCHS if scale.is_quick else HIT_EPOCHS
    for seed in range(scale.seeds):
        for title, side, name, value in _sampled(subject, seed, epochs, wanted):
            found.setdefault((title, side), {}).setdefault(name, []).append(value)
    yield from ((title, side, values) for (title, side), values in found.items())


def _sampled(
    subject: Subject, seed: int, epochs: int, wanted: Collection[tuple[str, str]]
) -> Iterator[tuple[str, str, str, float]]:
    """For one seed: title, side, name and value."""
    samples, batch = len(subject.train.labels), subject.batch
    uniform = learn(subject, seed, epochs, UniformReader(samples, batch, seed))
    reader = BatchLossReader(samples, batch, seed)
    by_batch = learn(subject, seed, epochs, reader)
    early = ceil(EARLY_SHARE * epochs) - 1
    yield TRAINING, UNIFORM_SAMPLING, ACCURACY, max(uniform.accuracies)
    yield TRAINING, IMPORTANCE_SAMPLING, ACCURACY, max(by_batch.accuracies[: early + 1])
    for name, value in _access(by_batch, samples):
        yield TRAINING, IMPORTANCE_SAMPLING, name, value
    important = float((reader.weights > IMPORTANCE_SHARE * reader.weights.max()).mean())
    yield TRAINING, IMPORTANCE_SAMPLING, IMPORTANT, important
    caches = policies(uniform, by_batch, samples, batch)
    for share in SHARES:
        for side in sorted(side for title, side in wanted if title == hits_title(share)):
            if side == OURS:
                ratio, _ = shade_hits(subject, seed, epochs, share, DEFAULT_REPEATS)
            elif side == PUBLISHED:
                ratio, _ = published_hits(subject, seed, epochs, share)
            else:
                ratio = hit_ratio(caches[side](int(share * samples)))
            yield hits_title(share), side, HITS, ratio


def _access(training: Training, samples: int) -> Iterator[tuple[str, float]]:
    second, last = (np.bincount(training.served[epoch], minlength=samples) for epoch in (1, -1))
    yield AGAIN, float((second > 1).mean())
    yield AGAIN_LAST, float((last > 1).mean())
    yield THRICE_LAST, float((last > 2).mean())
