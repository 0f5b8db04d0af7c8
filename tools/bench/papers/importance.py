"""Importance sampling (SHADE): hits of caches, different samples of an epoch, and accuracy beside uniform sampling.

Hits, as figures 7 and 12 of SHADE have them: trainings on synthetic images give the requests; policies are simulated
over them. Requests are of uniform sampling, of importance sampling by the losses of whole batches (SHADE's
"default"), and of SHADE itself, whose requests depend on its cache. Accuracies are of trainings with and without
importance, in memory. Loads, as figures 8 to 10 have them, are real (`sample_loads`): of a typical epoch of such a
training, beside a step that computes for COMPUTING_MS (`load_times`). Convergence, as figure 11 has it, is that of
these trainings if a miss took MISS_MS.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import numpy as np

from bench.harness.agreement import accuracy_cells
from bench.harness.figures import Row, Run, Scale, Side, Table, Trial
from bench.papers.lessons import Subject, Training, UniformReader, digits, distinct, learn, synthetic
from bench.papers.sample_loads import SAMPLE_BYTES, Loads, ModelLoads, sample_loads
from bench.simulations.cache_policies import (
    Lru,
    NeverEvict,
    Priority,
    RandomEviction,
    min_hits,
    nopfs_hits,
    quiver_hits,
)
from bench.simulations.load_times import LoadTimes
from bench.simulations.published_shade import PublishedReader
from dieselfs.importance.app_cache import AppCache
from dieselfs.importance.course import Course
from dieselfs.importance.epoch import draw
from dieselfs.importance.rank_reader import RankReader
from dieselfs.importance.schedule import DEFAULT_REPEATS
from dieselfs.importance.scores import SCORE_UNITS

SHARES = (0.1, 0.2, 0.5)
"""Of the samples, that the cache has."""
REPEATS = (1.0, DEFAULT_REPEATS)
WAYS = UNIFORM_LRU, UNIFORM_NOPFS, SHADE, UNREPEATED = (
    "uniform, LRU",
    "uniform, NoPFS",
    "SHADE",
    "SHADE, no repetition",
)
UNIFORM, BY_BATCH = "uniform: ", "importance of batches: "
"""What precedes the name of a policy, by the sampling of the requests."""
SPEED_SHARES = (0.1, 0.25, 0.5, 0.75)
NEAR = 0.005
"""An accuracy this close to the best of uniform sampling counts as convergence."""
HIT_SAMPLES, QUICK_SAMPLES = 50_000, 2_000
HIT_EPOCHS, QUICK_EPOCHS = 8, 4
LOADED_SEED, LOADED_SAMPLES = 1, 20_000
SPEED_SEEDS, SPEED_EPOCHS = 5, 12
"""Enough epochs that trainings converge."""
ACCURACY_SAMPLES = 10_000
WARM_EPOCHS = 2
"""Hits are counted after these."""

Hits = Sequence[Sequence[bool]]
"""By epoch, for each request whether it is a hit."""


def importance(folder: Path, scale: Scale) -> Generator[Trial | Table]:
    samples, epochs = (QUICK_SAMPLES, QUICK_EPOCHS) if scale.is_quick else (HIT_SAMPLES, HIT_EPOCHS)
    seeds, speed_epochs = (2, epochs) if scale.is_quick else (SPEED_SEEDS, SPEED_EPOCHS)
    if any(map(scale.wants, map(loads_title, SPEED_SHARES))):
        subject = synthetic(min(samples, LOADED_SAMPLES))
        yield from load_trials(folder, subject, speed_epochs, scale)
    if scale.wants("hits"):
        yield Table(hit_rows(synthetic(samples), epochs))
    if scale.wants("speed"):
        yield Table(speed_rows(synthetic(samples), speed_epochs, seeds), seeds=seeds)
    if scale.wants("accuracy"):
        yield Table(accuracy_rows(digits(), scale), seeds=scale.seeds)
        few = QUICK_SAMPLES if scale.is_quick else ACCURACY_SAMPLES
        yield Table(accuracy_rows(synthetic(few), scale), seeds=scale.seeds)


# -- hits ----------------------------------------------------------------------------------------------------


class BatchLossReader(UniformReader):
    """SHADE's "default importance sampling": all samples of a batch have its mean loss as their score."""

    def __init__(self, samples: int, batch: int, seed: int) -> None:
        super().__init__(samples, batch, seed)
        self.weights = np.zeros(samples)
        """By sample: the score."""
        self._consumed: list[list[int]] = []

    def steps(self) -> Iterator[tuple[int, list[int]]]:
        if not self.weights.any():
            batches = super().steps()
        else:
            weights = np.maximum(self.weights * SCORE_UNITS, 1).astype(np.uint64)
            order = draw(weights, self._seed, self._epoch).tolist()
            batches = (
                (first, order[first : first + self._batch]) for first in range(0, len(order), self._batch)
            )
        for end, samples in batches:
            self._consumed.append(samples)
            yield end, samples

    def record(self, losses: Any) -> None:
        self.weights[self._consumed.pop(0)] = float(np.mean(losses))


def policies(
    uniform: Training, by_batch: Training, samples: int, batch: int
) -> dict[str, Callable[[int], Hits]]:
    """By the sampling of the requests and the policy: the hits of a cache, by its size in samples."""
    over_uniform: dict[str, Callable[[int], Hits]] = {
        "LRU": partial(_lru, uniform.served),
        "MIN (Belady)": partial(_min, uniform.served),
        "CoorDL": lambda size: _simulated(NeverEvict(size), uniform.served),
        "Quiver, emulated": partial(_quiver, uniform.served),
    }
    over_batches: dict[str, Callable[[int], Hits]] = {
        "LRU": partial(_lru, by_batch.served),
        "LFU": lambda size: _simulated(Priority(size), by_batch.served),
        "random": lambda size: _simulated(RandomEviction(size), by_batch.served),
        "priority": lambda size: _by_batch_loss(Priority(size, False), by_batch, batch),
        "priority, LFU": lambda size: _by_batch_loss(Priority(size), by_batch, batch),
        "APP": lambda size: _by_batch_loss(_Scored(samples, size), by_batch, batch),
        "CoorDL": lambda size: _simulated(NeverEvict(size), by_batch.served),
        "Quiver, emulated": partial(_quiver, by_batch.served),
        "MIN (Belady)": partial(_min, by_batch.served),
    }
    return {
        **{f"{UNIFORM}{name}": hits_of for name, hits_of in over_uniform.items()},
        **{f"{BY_BATCH}{name}": hits_of for name, hits_of in over_batches.items()},
    }


def hit_rows(subject: Subject, epochs: int) -> Iterator[Row]:
    """For each policy its hits at each size of the cache, and relative to LRU under uniform sampling."""
    samples, batch = len(subject.train.labels), subject.batch
    uniform = learn(subject, 1, epochs, UniformReader(samples, batch, 1))
    by_batch = learn(subject, 1, epochs, BatchLossReader(samples, batch, 1))
    base = {share: hit_ratio(_simulated(Lru(int(share * samples)), uniform.served)) for share in SHARES}

    def row(name: str, hits_of: Callable[[int], Hits], served: Sequence[Sequence[int]] | None) -> Row:
        ratios = {share: hit_ratio(hits_of(int(share * samples))) for share in SHARES}
        different = "" if served is None else f"{distinct(served[WARM_EPOCHS:], samples):.0%}"
        cells = {f"hits at {share:.0%}": f"{ratio:.1%}" for share, ratio in ratios.items()}
        tenth = SHARES[0]
        return {
            f"hits, {subject.title}": name,
            **cells,
            "x LRU, uniform, at 10%": f"{ratios[tenth] / max(base[tenth], 1e-9):.1f}",
            "different samples": different,
        }

    first = {f"{UNIFORM}LRU": uniform.served, f"{BY_BATCH}LRU": by_batch.served}
    for name, hits_of in policies(uniform, by_batch, samples, batch).items():
        yield row(name, hits_of, first.get(name))
    for repeats in REPEATS:
        ours = {share: shade_hits(subject, 1, epochs, share, repeats) for share in SHARES}
        equal = {
            share: (hit_ratio(_lru(training.served, int(share * samples))), training)
            for share, (_, training) in ours.items()
        }
        yield _shade_row(subject, f"SHADE's draws, repeats {repeats:g}: LRU", equal, base[SHARES[0]])
        yield _shade_row(subject, f"SHADE, repeats {repeats:g}", ours, base[SHARES[0]])
    always = {share: shade_hits(subject, 1, epochs, share, DEFAULT_REPEATS, False) for share in SHARES}
    yield _shade_row(subject, f"SHADE, repeats {DEFAULT_REPEATS:g} in every epoch", always, base[SHARES[0]])
    found = {share: published_hits(subject, 1, epochs, share) for share in SHARES}
    yield _shade_row(subject, "SHADE as published, repeats 3", found, base[SHARES[0]])


def _shade_row(subject: Subject, name: str, runs: dict[float, tuple[float, Training]], base: float) -> Row:
    samples = len(subject.train.labels)
    differents = [f"{distinct(run.served[WARM_EPOCHS:], samples):.0%}" for _, run in runs.values()]
    return {
        f"hits, {subject.title}": name,
        **{f"hits at {share:.0%}": f"{ratio:.1%}" for share, (ratio, _) in runs.items()},
        "x LRU, uniform, at 10%": f"{runs[SHARES[0]][0] / max(base, 1e-9):.1f}",
        "different samples": " / ".join(differents),
    }


class _Counting:
    """A reader whose hits are counted when an epoch ends. `uses_accuracy`: whether it repeats as accuracies say."""

    def __init__(self, reader: RankReader | PublishedReader, uses_accuracy: bool = True) -> None:
        self._reader = reader
        self._uses_accuracy = uses_accuracy
        self.ratios: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def note_accuracy(self, accuracy: float) -> None:
        found = self._reader.statistics()
        self.ratios.append(found["hits"] / found["reads"])
        if self._uses_accuracy:
            self._reader.note_accuracy(accuracy)


def shade_hits(
    subject: Subject, seed: int, epochs: int, share: float, repeats: float, uses_accuracy: bool = True
) -> tuple[float, Training]:
    """The hits of a request, with a cache for a share of the samples."""
    samples = len(subject.train.labels)
    reader: Any = _Counting(
        RankReader(Course(samples, seed, int(share * samples), repeats=repeats), subject.batch), uses_accuracy
    )
    training = learn(subject, seed, epochs, reader)
    return fmean(reader.ratios[WARM_EPOCHS:]), training


def published_hits(subject: Subject, seed: int, epochs: int, share: float) -> tuple[float, Training]:
    samples = len(subject.train.labels)
    reader: Any = _Counting(PublishedReader(samples, subject.batch, seed, int(share * samples)))
    training = learn(subject, seed, epochs, reader)
    return fmean(reader.ratios[WARM_EPOCHS:]), training


class _Scored:
    """The APP cache, with scores as numbers."""

    def __init__(self, samples: int, capacity: int) -> None:
        self._cache = AppCache(samples, capacity)

    def access(self, sample: int) -> bool:
        return self._cache.access(sample).is_hit

    def update(self, samples: Sequence[int], score: float) -> None:
        scores = np.full(len(samples), max(score * SCORE_UNITS, 1)).astype(np.uint32)
        self._cache.update(np.asarray(samples), scores)


def _simulated(cache: Any, served: Sequence[Sequence[int]]) -> Hits:
    return [[cache.access(sample) for sample in epoch] for epoch in served]


def _lru(served: Sequence[Sequence[int]], size: int) -> Hits:
    return _simulated(Lru(size), served)


def _by_batch_loss(cache: Any, training: Training, batch: int) -> Hits:
    """As `_simulated`; after each batch, its mean loss is the score of its samples."""
    hits: list[list[bool]] = []
    for epoch, losses in zip(training.served, training.batch_losses, strict=True):
        hits.append([])
        for number, loss in enumerate(losses):
            samples = epoch[number * batch : (number + 1) * batch]
            hits[-1] += [cache.access(sample) for sample in samples]
            cache.update(samples, loss)
    return hits


def _min(served: Sequence[Sequence[int]], size: int) -> Hits:
    hits = min_hits([sample for epoch in served for sample in epoch], size)
    ends = np.cumsum([len(epoch) for epoch in served]).tolist()
    return [hits[end - len(epoch) : end] for end, epoch in zip(ends, served, strict=True)]


def _quiver(served: Sequence[Sequence[int]], size: int) -> Hits:
    cached: set[int] = set()
    return [quiver_hits(epoch, cached, size) for epoch in served]


def hit_ratio(hits: Hits) -> float:
    return fmean(fmean(epoch) for epoch in hits[WARM_EPOCHS:])


# -- speed ---------------------------------------------------------------------------------------------------


class _HitCounter:
    """A reader that notes the misses of each batch."""

    def __init__(self, reader: RankReader) -> None:
        self._reader = reader
        self.misses: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def set_epoch(self, epoch: int) -> None:
        self._reader.set_epoch(epoch)
        self.misses.append([])

    def consume(self) -> None:
        course = self._reader.course
        missed = course.hits - course.reads
        self._reader.consume()
        self.misses[-1].append(course.reads - course.hits + missed)


def _misses(hits: Hits, batch: int) -> list[list[int]]:
    """By epoch, of each batch."""
    return [
        [epoch[first : first + batch].count(False) for first in range(0, len(epoch), batch)] for epoch in hits
    ]


class Speed(NamedTuple):
    """One training: its times, and how its network learned."""

    times: LoadTimes
    accuracies: Sequence[float]


def loads_title(share: float) -> str:
    return f"SHADE: loading an epoch, cache of {share:.0%}"


def load_trials(folder: Path, subject: Subject, epochs: int, scale: Scale) -> Iterator[Trial]:
    """For each size of the cache: an epoch of one training with each sampling and cache, loaded for real. It is the
    one with the median of the hits, as SHADE repeats samples in some epochs only.
    """
    samples, batch = len(subject.train.labels), subject.batch
    uniform = learn(subject, LOADED_SEED, epochs, UniformReader(samples, batch, LOADED_SEED))
    with sample_loads(folder, samples) as loads:
        for share in SPEED_SHARES:
            if not scale.wants(loads_title(share)):
                continue
            sides = []
            for way in WAYS:
                training, misses = cached(subject, epochs, share, way, LOADED_SEED, uniform)
                later = sorted(range(WARM_EPOCHS, epochs), key=lambda epoch: sum(misses[epoch]))
                epoch = later[len(later) // 2]
                run = partial(loaded, loads, training.served[epoch], batch, misses[epoch])
                sides.append(Side(way, run, samples, "images", samples * SAMPLE_BYTES))
            yield Trial(loads_title(share), sides, scale.rounds, UNIFORM_LRU)


def loaded(loads: Loads, served: Sequence[int], batch: int, misses: Sequence[int]) -> Run:
    """Load the batches of an epoch. It takes as long as if a step computed for COMPUTING_MS meanwhile."""
    times = LoadTimes([misses], len(served), loads.loads_ms(served, batch, misses))
    mean_ms, spread_ms = times.load_ms()
    seen = {
        "% hits": 100 * times.hit_ratio(0),
        "ms to load a batch": mean_ms,
        "standard deviation": spread_ms,
    }
    return Run(times.epochs_s()[0], seen=seen)


def cached(
    subject: Subject, epochs: int, share: float, way: str, seed: int, uniform: Training
) -> tuple[Training, list[list[int]]]:
    """A training of this seed, and by epoch the misses of each batch. `uniform`: that with uniform sampling."""
    samples, batch = len(subject.train.labels), subject.batch
    size = int(share * samples)
    if way == UNIFORM_LRU:
        return uniform, _misses(_lru(uniform.served, size), batch)
    if way == UNIFORM_NOPFS:
        return uniform, _misses(nopfs_hits(uniform.served, size), batch)
    course = Course(samples, seed, size, repeats=DEFAULT_REPEATS if way == SHADE else 1.0)
    counter = _HitCounter(RankReader(course, batch))
    return learn(subject, seed, epochs, counter), counter.misses


def speed_rows(subject: Subject, epochs: int, seeds: int) -> Iterator[Row]:
    """For each size of the cache: throughput, loading of a batch, and when the training converges (figures 8 to 11).
    Means over the seeds, ratios of equal seeds.
    """
    for share, runs, goals in speeds(subject, epochs, seeds, ModelLoads()):
        for name, of_seeds in runs.items():
            yield {
                f"speed, {subject.title}, {seeds} seeds, cache of": f"{share:.0%}",
                "sampling and cache": name,
                **_speed_cells(of_seeds, runs[UNIFORM_LRU], goals),
            }


def speeds(
    subject: Subject,
    epochs: int,
    seeds: int,
    loads: Loads,
    shares: Sequence[float] = SPEED_SHARES,
    ways: Collection[str] = WAYS,
) -> Iterator[tuple[float, dict[str, list[Speed]], list[float]]]:
    """For each size of the cache, by sampling and cache: the trainings of all seeds. Last, the accuracies at which
    those count as converged, by seed.
    """
    samples, batch = len(subject.train.labels), subject.batch
    uniform = [learn(subject, seed, epochs, UniformReader(samples, batch, seed)) for seed in range(seeds)]
    goals = [max(training.accuracies) - NEAR for training in uniform]

    def speed(share: float, way: str, seed: int) -> Speed:
        training, misses = cached(subject, epochs, share, way, seed, uniform[seed])
        loads_ms = loads.loads_ms(training.served[-1], batch, misses[-1])
        return Speed(LoadTimes(misses, samples, loads_ms), training.accuracies)

    for share in shares:
        runs = {way: [speed(share, way, seed) for seed in range(seeds)] for way in WAYS if way in ways}
        yield share, runs, goals


def _speed_cells(speeds: Sequence[Speed], base: Sequence[Speed], goals: Sequence[float]) -> dict[str, str]:
    """Convergence is compared for the seeds with which both trainings reach their goal."""
    loads = [speed.times.load_ms() for speed in speeds]
    rates = [speed.times.throughput() for speed in speeds]
    usual = [speed.times.throughput() for speed in base]
    pairs = [
        (ours.times.time_to(ours.accuracies, goal), theirs.times.time_to(theirs.accuracies, goal))
        for ours, theirs, goal in zip(speeds, base, goals, strict=True)
    ]
    reached = [ours_s for ours_s, _ in pairs if ours_s is not None]
    sooner = [theirs_s / ours_s for ours_s, theirs_s in pairs if ours_s and theirs_s]
    return {
        "hits": f"{fmean(speed.times.hit_ratio(WARM_EPOCHS) for speed in speeds):.0%}",
        "images a second": _spread(rates, ",.0f"),
        "x LRU": _spread([ours / theirs for ours, theirs in zip(rates, usual, strict=True)], ".2f"),
        "loading a batch, ms": f"{fmean(mean for mean, _ in loads):.1f} ± {fmean(within for _, within in loads):.1f}",
        "converged": f"{len(reached)} of {len(speeds)}",
        "after, s": _spread(reached, ".1f") if reached else "",
        "x sooner than LRU": _spread(sooner, ".2f") if sooner else "",
    }


def _spread(values: Sequence[float], form: str) -> str:
    """The mean, and the standard deviation over the seeds."""
    return f"{fmean(values):{form}} ± {pstdev(values):{form}}"


# -- accuracy ------------------------------------------------------------------------------------------------


def accuracy_rows(subject: Subject, scale: Scale) -> Iterator[Row]:
    """Differences are from uniform sampling with the same seed, in percentage points."""
    samples, batch = len(subject.train.labels), subject.batch
    epochs = scale.epochs if scale.is_quick else max(scale.epochs, 10)

    def shade(seed: int, repeats: float = 3.0, is_weighted: bool = False) -> Training:
        reader = RankReader(Course(samples, seed, int(0.1 * samples), repeats=repeats), batch)
        return learn(subject, seed, epochs, reader, reader.loss_weights if is_weighted else None)

    kinds: dict[str, Callable[[int], Training]] = {
        "uniform": lambda seed: learn(subject, seed, epochs, UniformReader(samples, batch, seed)),
        "SHADE": shade,
        "SHADE, weighted losses": partial(shade, is_weighted=True),
        "SHADE, no repetition": partial(shade, repeats=1.0),
        "SHADE as published": lambda seed: learn(
            subject, seed, epochs, PublishedReader(samples, batch, seed, int(0.1 * samples))
        ),
    }
    runs: dict[str, list[list[float]]] = {}
    for name, train in kinds.items():
        trained = [train(seed) for seed in range(scale.seeds)]
        runs[name] = [training.accuracies for training in trained]
        different = fmean(distinct(training.served[1:], samples) for training in trained)
        row = {f"accuracy, {subject.title}, cache of 10%": name, "different samples": f"{different:.0%}"}
        yield row | accuracy_cells(runs[name], runs["uniform"])
