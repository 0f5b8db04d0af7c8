"""The importance of files, and orders drawn by it, for programs that only read and write files. No I/O.

Scores, draws and repetition are those of `ImportanceSampler` (SHADE); the cache is that of this process, whose files
`read` chooses. An order stays as it is from its first request on. Losses that come later count for later epochs.
"""

import io
import stat
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes, Numbers
from dieselfs.errors import InvalidInput
from dieselfs.importance.app_cache import AppCache
from dieselfs.importance.epoch import first_epoch, later_epoch
from dieselfs.importance.schedule import DEFAULT_REPEATS, Schedule
from dieselfs.importance.score_lines import LossBatch
from dieselfs.importance.scores import Scores, scores_of
from dieselfs.names import printable
from dieselfs.shuffle.order import GroupOrder, Layout
from dieselfs.shuffle.policies import KnownLosses
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot

ORDERS_KEPT = 4
_SHOWN_MAX = 80


class FoundLosses(NamedTuple):
    """The losses of a batch as they count: shape (n,) the files and the score of each; how many there were, and their
    sum. `accuracy`: on validation data, the last one that is known.
    """

    nodes: Nodes
    scores: Scores
    losses: int
    loss_sum: float
    accuracy: float | None = None


class Admitted(NamedTuple):
    """What reads of files did: those that the cache no longer has, and how many it had."""

    released: Numbers
    hits: int


class OrderKey(NamedTuple):
    """`folder`: only the files below it."""

    folder: bytes
    seed: int
    epoch: int


def importance_order(layout: Layout, spec: PlanSpec, losses: KnownLosses | None) -> GroupOrder:
    """The order of the shuffle policy "importance". Raises InvalidInput without losses, and as `KnownLosses.drawn`."""
    if losses is None:
        raise InvalidInput(
            "an order by importance needs losses, which only a mount has: read .dieselfs/shuffle/policy=importance "
            "there, or use ImportanceSampler"
        )
    if spec.skips.end:
        raise InvalidInput("an order by importance has no skips: leave out skip=")
    return losses.drawn(spec, layout.nodes())


class ScoredFiles:
    """Thread-safe."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._lock = Lock()  # guards all below
        self._scores = np.zeros(len(snapshot), np.uint32)
        self._schedule = Schedule(DEFAULT_REPEATS)
        self._accuracy: float | None = None  # the last one of this epoch
        self._cache = AppCache(len(snapshot), 0)
        self._epoch = -1
        self._loss_sum, self._losses = 0.0, 0
        self._orders: OrderedDict[OrderKey, Nodes] = OrderedDict()
        self.batches = 0
        """Counts of what came, since the start of this process."""
        self.changes = 0
        self.hits = self.reads = 0
        """Hits and reads of the files that `read` got, or that `JobFiles` counted."""
        self.from_peers = 0
        """The hits that other nodes had."""
        self.left: list[int] = []
        """The files in the cache of the previous process."""

    def take(self, batch: LossBatch) -> None:
        """Count the losses of a batch. Raises as `found`; then no loss counts."""
        self.add(self.found(batch))

    def found(self, batch: LossBatch) -> FoundLosses:
        """What the losses of a batch count; the score of a file is the rank of its loss in it. Raises InvalidInput if a
        path is no file of the snapshot.
        """
        nodes = self._snapshot.find_many(batch.paths)
        is_file = (nodes >= 0) & (self._snapshot.types(nodes) == stat.S_IFREG)
        for place in np.flatnonzero(~is_file)[:1].tolist():
            path = printable(batch.paths[place][:_SHOWN_MAX])
            raise InvalidInput(f"{path} is no file of {self._snapshot.dataset}")
        self.batches += bool(batch.paths)
        scores = scores_of(batch.losses)
        with self._lock:
            self._cache.update(nodes, scores)
        return FoundLosses(
            nodes.astype(np.uint32), scores, len(batch.losses), float(batch.losses.sum()), batch.accuracy
        )

    def add(self, found: FoundLosses) -> None:
        """Count losses; of a file that comes twice, the last one counts. Of the accuracies of an epoch, too."""
        with self._lock:
            self._scores[found.nodes] = found.scores
            self._loss_sum += found.loss_sum
            self._losses += found.losses
            if found.accuracy is not None:
                self._accuracy = found.accuracy
            self.changes += 1

    # -- the cache -------------------------------------------------------------------------------------------

    def keep(self, capacity: int, sizes: Numbers, first: Iterable[int]) -> Numbers:
        """Begin with a cache that has the files `first`, as far as they fit; returns those. `sizes`: shape (entries of
        the snapshot,), and `capacity`, in one unit.
        """
        with self._lock:
            scores = self._cache.scores
            self._cache = AppCache(len(sizes), capacity, sizes)
            self._cache.scores[:] = scores
            self._cache.restore(first)
            return self._cache.samples()

    def read(self, files: Numbers) -> Numbers:
        """Files were read, in this order; returns those that the cache no longer has: it did not keep, or evicted them.
        Its scores are those of losses that were written in this process, and those of the job with the last order.
        """
        self.hits += (admitted := self.admit(files)).hits
        self.reads += len(files)
        return admitted.released

    def admit(self, files: Numbers) -> Admitted:
        """As `read`, but counts nothing: for another process, whose readers read them."""
        released: dict[int, None] = {}
        hits = 0
        with self._lock:
            for file in files.tolist():
                access = self._cache.access(file)
                hits += access.is_hit
                released.update(dict.fromkeys(access.evicted))
                released.pop(file, None)
                if not access.is_kept:
                    released[file] = None
        return Admitted(np.array([*released], np.int64), hits)

    def forget(self, files: Iterable[int], is_full: bool = False) -> None:
        """The cache does not have these files any more. `is_full`: it can have no more than the others."""
        with self._lock:
            for file in files:
                if file in self._cache:
                    self._cache.drop(file)
            if is_full:
                self._cache.capacity = self._cache.used

    def kept(self) -> Numbers:
        """The files in the cache, ascending."""
        with self._lock:
            return self._cache.samples()

    @property
    def used(self) -> int:
        """What the files in the cache take, in the unit of its capacity."""
        return self._cache.used

    @property
    def scored(self) -> int:
        """How many files have a score."""
        return int(np.count_nonzero(self._scores))

    def order(self, key: OrderKey, files: Nodes) -> Nodes:
        """The files of an epoch, as node numbers, as many as `files`, which are those of the folder, ascending. Raises
        InvalidInput for a folder without files, or an epoch that is over.
        """
        if not len(files):
            raise InvalidInput("there are no files to draw from")
        with self._lock:
            found = self._orders.get(key)
            if found is not None:
                return found
            if key.epoch < self._epoch:
                raise InvalidInput(
                    f"the order of epoch {key.epoch} is not kept any more: the scores are those of epoch {self._epoch}"
                )
            if key.epoch > self._epoch:
                self._end_epoch()
                self._learn(np.arange(len(self._scores)), self._scores)  # also the losses of other mounts
            self._epoch = key.epoch
            scores = self._scores[files]
            if scores.any():
                schedule, cached = self._schedule, self._cache.mask()[files]
                smoothing, repeats = schedule.smoothing_units, schedule.repeats_now()
                drawn = later_epoch(scores, cached, key.seed, key.epoch, smoothing, repeats)
            else:
                drawn = first_epoch(len(files), key.seed, key.epoch)
            return self._keep(key, files[drawn.samples])

    def _end_epoch(self) -> None:
        if self._losses:
            self._schedule.end_epoch(self._loss_sum / self._losses)
            self._loss_sum, self._losses = 0.0, 0
        if self._accuracy is not None:
            self._schedule.note_accuracy(self._accuracy)
            self._accuracy = None

    def known(self, key: OrderKey) -> Nodes | None:
        """An order that is kept."""
        return self._orders.get(key)

    def adopt(self, key: OrderKey, order: Nodes, files: Nodes, scores: Scores) -> Nodes:
        """Keep an order that was drawn elsewhere, unless one is known; returns the one that is kept. `scores`: of
        `files`, at that time, or empty.
        """
        with self._lock:
            if len(scores):
                self._learn(files, scores)
            return self._orders[key] if key in self._orders else self._keep(key, order)

    def _learn(self, files: npt.NDArray[Any], scores: Scores) -> None:
        """The scores of the job, for the cache."""
        is_new = (scores > 0) & (self._cache.scores[files] != scores)
        self._cache.update(files[is_new].astype(np.int64), scores[is_new])

    def scores_at(self, files: Nodes) -> Scores:
        """Shape (n,): the scores for draws."""
        with self._lock:
            found: Scores = self._scores[files]
            return found

    def _keep(self, key: OrderKey, order: Nodes) -> Nodes:
        self._orders[key] = order
        while len(self._orders) > ORDERS_KEPT:
            self._orders.popitem(last=False)
        self.changes += 1
        return order

    def orders(self) -> list[dict[str, Any]]:
        """The orders that are kept; nodes of a job whose `check` is the same have the same order."""
        with self._lock:
            return [
                {
                    **key._asdict(),
                    "folder": printable(key.folder),
                    "check": f"{zlib.crc32(order.tobytes()):08x}",
                }
                for key, order in self._orders.items()
            ]

    # -- handover ------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """All scores and orders, about 4 bytes a file for each of them, and the numbers of the files in the cache."""
        buffer, schedule = io.BytesIO(), self._schedule
        with self._lock:
            keys = [*self._orders]
            arrays: dict[str, Any] = {
                f"order{number}": order for number, order in enumerate(self._orders.values())
            }
            arrays["folders"] = np.array([key.folder.hex() for key in keys], np.str_)
            arrays["keys"] = np.array([(key.seed, key.epoch) for key in keys], np.uint64).reshape(-1, 2)
            arrays["epoch"] = np.array([str(self._epoch)])
            loss = np.nan if schedule.loss is None else schedule.loss
            arrays["numbers"] = np.array([schedule.smoothing, loss, self._loss_sum, self._losses])
            arrays["curves"] = np.array([schedule.loss_peak, schedule.loss_change, *schedule.accuracies])
            arrays["accuracy"] = np.array([np.nan if self._accuracy is None else self._accuracy])
            arrays["kept"] = self._cache.samples()
            np.savez(buffer, scores=self._scores, **arrays)
        return buffer.getvalue()

    def load(self, content: bytes) -> None:
        """Continue from what `encode` made. Raises InvalidInput for anything else."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as found:
                scores = found["scores"].astype(np.uint32)
                smoothing, loss, loss_sum, losses = found["numbers"].tolist()
                keys = zip(found["folders"].tolist(), found["keys"].tolist(), strict=True)
                orders = {
                    OrderKey(bytes.fromhex(folder), seed, epoch): found[f"order{number}"]
                    for number, (folder, (seed, epoch)) in enumerate(keys)
                }
                epoch = int(found["epoch"][0])
                peak, change, *accuracies = found["curves"].tolist() if "curves" in found else (0.0, 0.0)
                accuracy = found["accuracy"].tolist()[0] if "accuracy" in found else np.nan
                left = found["kept"].astype(np.int64) if "kept" in found else np.empty(0, np.int64)
                loss = None if np.isnan(loss) else loss
                schedule = Schedule(DEFAULT_REPEATS, smoothing, loss, accuracies, peak, change)
                losses = int(losses)
        except Exception as error:  # zipfile and NumPy raise many kinds for a file that was written in part
            raise InvalidInput(f"not the scores of files: {error}") from None
        if scores.shape != self._scores.shape:
            raise InvalidInput(f"scores of {len(scores)} files; the snapshot has {len(self._scores)}")
        if len(left) and not 0 <= int(left.min()) <= int(left.max()) < len(scores):
            raise InvalidInput("not the scores of files: a file in the cache is none of the snapshot")
        with self._lock:
            self._accuracy = None if np.isnan(accuracy) else accuracy
            self._cache.scores[:] = scores
            self.left = left.tolist()
            self._scores, self._epoch = scores, epoch
            self._schedule = schedule
            self._loss_sum, self._losses = loss_sum, losses
            self._orders = OrderedDict(orders)
