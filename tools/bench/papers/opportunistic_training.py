"""Accuracy after training in the opportunistic order: figures 7 and 8 of DeepIO, on scikit-learn's handwritten digits.

The digits are stored class by class in small chunks, the hard case. R is the memory for shuffling, as a share of the
training images. Batches come from a server, and networks are trained in memory. This module starts servers and threads.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from bench.harness.agreement import Storing
from bench.harness.figures import Scale
from bench.harness.forms import running_home
from bench.papers.digits import Entries, by_class, store_digits, write_digits
from bench.papers.lessons import Images, Subject, UniformReader, digits, learn
from dieselfs.dataset import Dataset
from dieselfs.dataset.batches import opportunistic_batches
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.quality import measure_served
from dieselfs.shuffle.spec import ReaderSpec

_FOLDER = b"train"


class PlannedReader(UniformReader):
    """The order of plans. `numbers`: of the images, by node; `group_chunks`: 0 shuffles fully."""

    def __init__(
        self, data: Dataset, numbers: Mapping[int, int], batch: int, seed: int, group_chunks: int = 0
    ) -> None:
        super().__init__(len(numbers), batch, seed)
        self._data, self._numbers, self._group_chunks = data, numbers, group_chunks

    def _plan(self) -> Plan:
        return self._data.plan(self._seed, self._epoch, self._group_chunks, folder=_FOLDER)

    def steps(self) -> Iterator[tuple[int, list[int]]]:
        nodes = self._plan().nodes().tolist()
        for first in range(0, len(nodes), self._batch):
            yield first, self._images(nodes[first : first + self._batch])

    def _images(self, nodes: Sequence[int]) -> list[int]:
        return [self._numbers[node] for node in nodes]


class OpportunisticReader(PlannedReader):
    """The order in which batches come. `buffer_bytes`: the memory for shuffling."""

    def __init__(
        self, data: Dataset, numbers: Mapping[int, int], batch: int, seed: int, buffer_bytes: int
    ) -> None:
        super().__init__(data, numbers, batch, seed)
        self._buffer_bytes = buffer_bytes
        self.entropies: list[float] = []
        """Of each epoch: the entropy of its order, as a share of that of a full shuffle."""

    def steps(self) -> Iterator[tuple[int, list[int]]]:
        plan, reader = self._plan(), ReaderSpec()
        with opportunistic_batches(
            self._data, plan, reader, self._batch, buffer_bytes=self._buffer_bytes
        ) as batches:
            for batch in batches:
                yield batch.position, self._images(batch.nodes)
        self.entropies.append(measure_served(plan, batches.log).entropy_ratio)


@dataclass(frozen=True, slots=True)
class StoredDigits:
    """A dataset of training images. `numbers`: of the images, by node; `size_bytes`: of their files."""

    data: Dataset
    numbers: Mapping[int, int]
    size_bytes: int
    subject: Subject

    def planned(self, seed: int, group_chunks: int = 0) -> PlannedReader:
        return PlannedReader(self.data, self.numbers, self.subject.batch, seed, group_chunks)

    def opportunistic(self, seed: int, percent: int) -> OpportunisticReader:
        """`percent`: of the dataset, that the memory holds."""
        buffer_bytes = percent * self.size_bytes // 100
        return OpportunisticReader(self.data, self.numbers, self.subject.batch, seed, buffer_bytes)


@contextmanager
def stored_digits(folder: Path, entries: Entries) -> Iterator[StoredDigits]:
    """The digits in this order on a server, until the end of the block. `folder`: new."""
    write_digits(folder / "digits")
    with running_home(folder / "home") as home, home.dataset(must_exist=False) as data:
        store_digits(data, entries, folder / "digits")
        snapshot, nodes = data.snapshot, data.plan(folder=_FOLDER).nodes().tolist()
        numbers = {node: int(Path(snapshot.path(node).decode()).stem) for node in nodes}
        size_bytes = sum(snapshot.stat(node).size for node in nodes)
        yield StoredDigits(data, numbers, size_bytes, _subject(set(numbers.values())))


@dataclass(frozen=True, slots=True)
class Opportunistic:
    """By R in percent: the trainings, 0 for the full shuffle, and the entropies of the orders for each seed."""

    storing: Storing
    entropies: Mapping[int, Sequence[float]]
    images: int


def opportunistic_training(folder: Path, scale: Scale, percents: Sequence[int]) -> Opportunistic:
    runs: dict[int, list[list[float]]] = {}
    entropies: dict[int, list[float]] = {}
    with stored_digits(folder / "by_class", by_class) as stored:
        for percent in percents:
            for seed in range(scale.seeds):
                reader = stored.opportunistic(seed, percent) if percent else stored.planned(seed)
                training = learn(stored.subject, seed, scale.epochs, reader)
                runs.setdefault(percent, []).append(training.accuracies)
                if isinstance(reader, OpportunisticReader):
                    entropies.setdefault(percent, []).append(fmean(reader.entropies))
        return Opportunistic(Storing("stored class by class", 0, {}, runs), entropies, len(stored.numbers))


def randomisation_level(images: int, share: float) -> float:
    """RL of DeepIO by its equations 1, 4 and 5, as they are printed. `share`: of the images, that the memory holds.

    Each image is a file, and r begins with 0; otherwise equation 4 divides by 0. A rest of the images that does not
    fill the memory is left out.
    """
    memory = int(images * share)
    number = np.arange(memory * int(1 / share))
    left = len(number) - memory * (number // memory)
    ours = memory / left / (memory - number % memory)
    full = 1 / (len(number) - number)
    return float((ours * np.log2(full)).sum() / (full * np.log2(full)).sum())


def _subject(train: set[int]) -> Subject:
    """Of all digits by their numbers; those that are not stored as training images are to test."""
    from sklearn.datasets import load_digits  # as slow to import as the rest together

    found = load_digits()
    images = torch.from_numpy((found.images / found.images.max()).astype("float32")[:, None])
    labels = torch.from_numpy(found.target.astype("int64"))
    rest = [number for number in range(len(labels)) if number not in train]
    test = Images(images[rest], labels[rest])
    return replace(digits(), train=Images(images, labels), validation=test, test=test)
