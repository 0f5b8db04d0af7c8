"""The course of a training under importance sampling: its epoch, scores, cache and schedule, for all ranks. No I/O.

Every rank has an equal course. It changes only by what all ranks know: the samples that a step reads, and records that
were exchanged. So orders need no exchange, and nothing depends on time.
"""

from collections.abc import Iterable, Mapping
from math import fsum
from typing import Any, NamedTuple

import numpy as np

from dieselfs.arrays import Numbers, Positions
from dieselfs.errors import InvalidInput
from dieselfs.importance.app_cache import AppCache
from dieselfs.importance.epoch import Epoch, first_epoch, later_epoch
from dieselfs.importance.schedule import DEFAULT_REPEATS, Schedule
from dieselfs.importance.scores import Losses, Scores, scores_of
from dieselfs.shuffle.spec import SEED_MAX

REPEATS_MAX = 100.0
STATE_VERSION = 1
_NEWER = "loss_peak", "loss_change"
"""States of version 0.1 have none of them."""


class Records(NamedTuple):
    """What a rank learned of samples: four arrays of shape (n,)."""

    positions: Positions
    samples: Numbers
    scores: Scores
    losses: Losses


class _Base(NamedTuple):
    """What the order of an epoch is made of."""

    scores: Scores
    cached: Numbers
    smoothing: int
    repeats: float


class Course:
    """Begins with epoch 0. Used by one thread."""

    def __init__(
        self,
        samples: int,
        seed: int = 0,
        capacity: int = 0,
        sizes: Numbers | None = None,
        repeats: float = DEFAULT_REPEATS,
    ) -> None:
        """`capacity`: of the cache, in samples, or in bytes if `sizes` has their sizes. Raises InvalidInput."""
        if samples < 1:
            raise InvalidInput("there are no samples to draw from")
        if not 0 <= seed <= SEED_MAX:
            raise InvalidInput(f"seed is {seed}: give a whole number from 0 to {SEED_MAX}")
        if capacity < 0:
            raise InvalidInput(f"the cache has {capacity}: give 0 or more")
        if not 1 <= repeats <= REPEATS_MAX:
            raise InvalidInput(f"repeats is {repeats}: give a number from 1 to {REPEATS_MAX:g}")
        self.samples, self.seed = samples, seed
        self.cache = AppCache(samples, capacity, sizes)
        self.schedule = Schedule(repeats)
        self.epoch = -1
        self.hits = self.reads = 0
        """Hits and reads of the samples of this epoch so far."""
        self._pending: list[Records] = []  # of this rank alone
        self._loss_sum, self._losses = 0.0, 0
        self._base: _Base | None = None
        self._order: Epoch | None = None
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch; for the present one nothing changes. Raises InvalidInput."""
        if epoch == self.epoch:
            return
        if not 0 <= epoch <= SEED_MAX:
            raise InvalidInput(f"epoch is {epoch}: give a whole number from 0 to {SEED_MAX}")
        if self._pending:
            raise InvalidInput(
                "losses were recorded that other ranks do not have: exchange them before the next epoch"
            )
        if self._losses:
            self.schedule.end_epoch(self._loss_sum / self._losses)
        self._loss_sum, self._losses, self.hits, self.reads = 0.0, 0, 0, 0
        self.epoch, self._base, self._order = epoch, None, None

    @property
    def order(self) -> Epoch:
        """The order of this epoch, made at first use: an accuracy noted before counts for it."""
        if self._order is None:
            base = self._base = self._base or _Base(
                self.cache.scores.copy(),
                self.cache.samples(),
                self.schedule.smoothing_units,
                self.schedule.repeats_now(),
            )
            self._order = self._order_of(base)
        return self._order

    def _order_of(self, base: _Base) -> Epoch:
        if not base.scores.any():
            return first_epoch(self.samples, self.seed, self.epoch)
        cached = np.zeros(self.samples, np.bool_)
        cached[base.cached] = True
        return later_epoch(base.scores, cached, self.seed, self.epoch, base.smoothing, base.repeats)

    def read(self, start: int, end: int) -> list[int]:
        """The ranks read positions `start` up to but not `end`; returns the samples of them that the cache no longer
        has: those that it did not keep, and those that were evicted.
        """
        released: dict[int, None] = {}
        for sample in self.order.samples[start:end].tolist():
            access = self.cache.access(sample)
            self.hits += access.is_hit
            self.reads += 1
            released.update(dict.fromkeys(access.evicted))
            released.pop(sample, None)
            if not access.is_kept:
                released[sample] = None
        return [*released]

    # -- records -------------------------------------------------------------------------------------------

    def record(self, positions: Positions, samples: Numbers, losses: Losses) -> None:
        """This rank has the losses of a batch: three arrays of shape (n,). They count at `take`."""
        self._pending.append(Records(positions, samples, scores_of(losses), losses))

    def pending(self) -> Records:
        """What this rank recorded since the last `take`, to be exchanged."""
        return _joined(self._pending)

    def take(self, of_ranks: Iterable[Records]) -> None:
        """Count the records of all ranks, the own ones among them. Of a sample that came twice, the later counts."""
        records = _joined([*of_ranks])
        self._pending = []
        if not len(records.samples):
            return
        by_position = np.argsort(records.positions, kind="stable")
        self.cache.update(records.samples[by_position], records.scores[by_position])
        self._loss_sum = fsum([self._loss_sum, *records.losses[by_position].tolist()])
        self._losses += len(records.losses)

    # -- state ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Numbers, and arrays of about 12 bytes a sample. Raises InvalidInput with records that were not exchanged."""
        if self._pending:
            raise InvalidInput("losses were recorded that other ranks do not have: exchange them first")
        schedule, order, base = self.schedule, self.order, self._base
        assert order is self._order and base is not None
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "repeats": schedule.repeats,
            "smoothing": schedule.smoothing,
            "loss": schedule.loss,
            "loss_peak": schedule.loss_peak,
            "loss_change": schedule.loss_change,
            "accuracies": [*schedule.accuracies],
            "loss_sum": self._loss_sum,
            "losses": self._losses,
            "hits": self.hits,
            "reads": self.reads,
            "scores": self.cache.scores.copy(),
            "counts": self.cache.counts.copy(),
            "cached": self.cache.samples(),
            "epoch_scores": base.scores,
            "epoch_cached": base.cached,
            "epoch_smoothing": base.smoothing,
            "epoch_repeats": base.repeats,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Raises InvalidInput if it is of another number of samples, or damaged; then the course
        is as before.
        """
        missing = [name for name in Course(1).state() if name not in state and name not in _NEWER]
        if missing:
            raise InvalidInput(f"not a state of an importance sampler: it has no {missing[0]!r}")
        if state["version"] != STATE_VERSION:
            raise InvalidInput(f"the state has version {state['version']}, this dieselfs has {STATE_VERSION}")
        if len(state["scores"]) != self.samples:
            raise InvalidInput(
                f"the state is of {len(state['scores'])} samples, the dataset has {self.samples}: use the dataset, "
                "the tag and the folder of that job"
            )
        cache = AppCache(self.samples, self.cache.capacity, self.cache.sizes)
        cache.scores[:], cache.counts[:] = state["scores"], state["counts"]
        cache.restore(_within(state["cached"], self.samples))
        base = _Base(
            np.array(state["epoch_scores"], np.uint32),
            np.array(_within(state["epoch_cached"], self.samples), np.int64),
            int(state["epoch_smoothing"]),
            float(state["epoch_repeats"]),
        )
        if len(base.scores) != self.samples:
            raise InvalidInput("the state is damaged: its arrays have different lengths")
        loss = state["loss"]
        self.schedule = Schedule(
            float(state["repeats"]),
            float(state["smoothing"]),
            None if loss is None else float(loss),
            [float(accuracy) for accuracy in state["accuracies"]],
            *(float(state.get(name, 0.0)) for name in _NEWER),
        )
        self.seed, self.epoch, self.cache, self._base = int(state["seed"]), int(state["epoch"]), cache, base
        self.hits, self.reads = int(state["hits"]), int(state["reads"])
        self._loss_sum, self._losses = float(state["loss_sum"]), int(state["losses"])
        self._pending = []
        self._order = None


def _joined(records: list[Records]) -> Records:
    return Records(
        np.concatenate([np.zeros(0, np.int64), *(one.positions for one in records)]),
        np.concatenate([np.zeros(0, np.int64), *(one.samples for one in records)]),
        np.concatenate([np.zeros(0, np.uint32), *(one.scores for one in records)]),
        np.concatenate([np.zeros(0, np.float64), *(one.losses for one in records)]),
    )


def _within(samples: Any, count: int) -> list[int]:
    """Samples of a state. Raises InvalidInput if one does not exist."""
    found = np.asarray(samples, np.int64)
    if len(found) and not (int(found.min()) >= 0 and int(found.max()) < count):
        raise InvalidInput("the state is damaged: it names a sample that does not exist")
    return [int(sample) for sample in found]
