"""Accuracy after training in the opportunistic order: figures 7 and 8 of DeepIO, on scikit-learn's handwritten digits.

The digits are stored class by class in small chunks, the hard case. R is the memory for shuffling, as a share of the
training images. Batches come from a server, and networks are trained in memory. This module starts servers and threads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from bench.harness.agreement import Storing
from bench.harness.figures import Scale
from bench.harness.forms import running_home
from bench.papers.digits import by_class, store_digits, write_digits
from bench.papers.lessons import Images, Subject, UniformReader, digits, learn
from dieselfs.dataset import Dataset
from dieselfs.dataset.batches import opportunistic_batches
from dieselfs.shuffle.spec import ReaderSpec

_FOLDER = b"train"


class OpportunisticReader(UniformReader):
    """The order in which batches come. `numbers`: of the images, by node; `buffer_bytes`: 0 shuffles fully."""

    def __init__(
        self, data: Dataset, numbers: Mapping[int, int], batch: int, seed: int, buffer_bytes: int
    ) -> None:
        super().__init__(len(numbers), batch, seed)
        self._data, self._numbers, self._buffer_bytes = data, numbers, buffer_bytes

    def steps(self) -> Iterator[tuple[int, list[int]]]:
        plan = self._data.plan(self._seed, self._epoch, 0, folder=_FOLDER)
        if not self._buffer_bytes:
            nodes = plan.nodes().tolist()
            for first in range(0, len(nodes), self._batch):
                yield first, [self._numbers[node] for node in nodes[first : first + self._batch]]
            return
        reader = ReaderSpec()
        with opportunistic_batches(
            self._data, plan, reader, self._batch, buffer_bytes=self._buffer_bytes
        ) as batches:
            for batch in batches:
                yield batch.position, [self._numbers[node] for node in batch.nodes]


def opportunistic_training(folder: Path, scale: Scale, percents: Sequence[int]) -> Storing:
    """By R in percent, and 0 for the full shuffle: the accuracies by seed, then by epoch."""
    write_digits(folder / "digits")
    with running_home(folder / "home") as home, home.dataset(must_exist=False) as data:
        store_digits(data, by_class, folder / "digits")
        snapshot, nodes = data.snapshot, data.plan(folder=_FOLDER).nodes().tolist()
        numbers = {node: int(Path(snapshot.path(node).decode()).stem) for node in nodes}
        total = sum(snapshot.stat(node).size for node in nodes)
        subject = _subject(set(numbers.values()))
        runs = {
            percent: [
                learn(
                    subject,
                    seed,
                    scale.epochs,
                    OpportunisticReader(data, numbers, subject.batch, seed, percent * total // 100),
                ).accuracies
                for seed in range(scale.seeds)
            ]
            for percent in percents
        }
    return Storing("stored class by class", 0, {}, runs)


def _subject(train: set[int]) -> Subject:
    """Of all digits by their numbers; those that are not stored as training images are to test."""
    found = load_digits()
    images = torch.from_numpy((found.images / found.images.max()).astype("float32")[:, None])
    labels = torch.from_numpy(found.target.astype("int64"))
    rest = [number for number in range(len(labels)) if number not in train]
    test = Images(images[rest], labels[rest])
    return replace(digits(), train=Images(images, labels), validation=test, test=test)
