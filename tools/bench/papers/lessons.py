"""Trainings in memory, in the order of any sampler: digits, and synthetic images of the shape of CIFAR-10. No I/O."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bench.papers.digits import BATCH_SAMPLES, LEARNING_RATE, MOMENTUM, TEST_EVERY, small_network

_CLASSES = 10
_PATTERNS = 8
"""Of each class of the synthetic images."""
_TEST_IMAGES = 4_000
_HIDDEN = 32


class Reader(Protocol):
    """The order of a training: `RankReader` has these."""

    def set_epoch(self, epoch: int) -> None: ...

    def steps(self) -> Iterator[tuple[int, list[int]]]: ...

    def consume(self) -> Any: ...

    def record(self, losses: Any) -> None: ...

    def note_accuracy(self, accuracy: float) -> None: ...


class UniformReader:
    """Each sample once in each epoch, in random order."""

    def __init__(self, samples: int, batch: int, seed: int) -> None:
        self._samples, self._batch, self._seed = samples, batch, seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def steps(self) -> Iterator[tuple[int, list[int]]]:
        order = np.random.default_rng([self._seed, self._epoch]).permutation(self._samples)
        for first in range(0, self._samples, self._batch):
            yield min(first + self._batch, self._samples), order[first : first + self._batch].tolist()

    def consume(self) -> None: ...

    def record(self, losses: Any) -> None: ...

    def note_accuracy(self, accuracy: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Images:
    """Images and labels, a part of them to validate while training, another to test."""

    images: torch.Tensor
    labels: torch.Tensor


def accuracy(network: nn.Module, images: Images) -> float:
    network.eval()
    with torch.no_grad():
        found = network(images.images.float()).argmax(dim=1)
    return float((found == images.labels).float().mean())


def mean_loss(network: nn.Module, images: Images) -> float:
    """The mean squared error of a regression."""
    network.eval()
    with torch.no_grad():
        return float(nn.functional.mse_loss(network(images.images.float()), images.labels))


@dataclass(frozen=True, slots=True)
class Subject:
    """What is learned: data, and the network for a seed. `loss`: with a `reduction`; `score`: of a trained network, by
    images.
    """

    title: str
    train: Images
    validation: Images
    test: Images
    network: Callable[[int], nn.Module]
    batch: int
    learning_rate: float
    loss: Callable[..., torch.Tensor] = nn.functional.cross_entropy
    score: Callable[[nn.Module, Images], float] = accuracy


@dataclass(slots=True)
class Training:
    """A training. `accuracies`: the scores on the test images, after each epoch; `served`: by epoch, the samples in
    order; `batch_losses`: by epoch, the mean loss of each batch.
    """

    accuracies: list[float] = field(default_factory=list)
    served: list[list[int]] = field(default_factory=list)
    batch_losses: list[list[float]] = field(default_factory=list)


def digits() -> Subject:
    """scikit-learn's handwritten digits, 1,437 to learn from, as in the accuracy of chunk-wise order."""
    from sklearn.datasets import load_digits  # as slow to import as the rest together

    found = load_digits()
    images = torch.from_numpy(found.images.astype(np.float32)[:, None] / found.images.max())
    labels = torch.from_numpy(found.target.astype(np.int64))
    numbers = np.arange(len(labels))
    test = numbers % TEST_EVERY == 0
    validation, tested = numbers[test][::2], numbers[test][1::2]
    return Subject(
        "digits",
        Images(images[~test], labels[~test]),
        Images(images[validation], labels[validation]),
        Images(images[tested], labels[tested]),
        small_network,
        BATCH_SAMPLES,
        LEARNING_RATE,
    )


def synthetic(samples: int, seed: int = 7) -> Subject:
    """Images of 32 x 32 pixels in 3 colours: smooth patterns of ten classes, with noise that differs from image to
    image, so that some are easy and some hard.
    """
    random = np.random.default_rng(seed)
    coarse = random.normal(size=(_CLASSES, _PATTERNS, 3, 4, 4)).astype(np.float32)
    patterns = coarse.repeat(8, axis=3).repeat(8, axis=4).reshape(_CLASSES, _PATTERNS, -1)

    def drawn(count: int) -> Images:
        labels = random.integers(0, _CLASSES, count)
        clear = patterns[labels, random.integers(0, _PATTERNS, count)]
        others = patterns[random.integers(0, _CLASSES, count), random.integers(0, _PATTERNS, count)]
        hardness = random.beta(1, 3, count).astype(np.float32)[:, None]
        images: npt.NDArray[np.float32] = clear * (1 - 0.6 * hardness) + others * 0.6 * hardness
        images += 2 * (0.5 + hardness) * random.standard_normal(images.shape, np.float32)
        return Images(torch.from_numpy(images).half(), torch.from_numpy(labels))

    return Subject(
        f"{samples:,} synthetic images of 32 x 32 x 3",
        drawn(samples),
        drawn(_TEST_IMAGES),
        drawn(_TEST_IMAGES),
        _perceptron,
        128,
        0.05,
    )


def _perceptron(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3 * 32 * 32, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _CLASSES))


def learn(
    subject: Subject,
    seed: int,
    epochs: int,
    reader: Reader,
    weights: Callable[[], npt.NDArray[np.float64]] | None = None,
) -> Training:
    """Train a new network in the order of `reader`. `weights`: of the losses of the batch that was consumed last. One
    thread, so that the same order gives the same accuracies.
    """
    torch.set_num_threads(1)
    network = subject.network(seed)
    optimizer = torch.optim.SGD(network.parameters(), subject.learning_rate, MOMENTUM)
    training, train = Training(), subject.train
    for epoch in range(epochs):
        reader.set_epoch(epoch)
        network.train()
        served: list[int] = []
        batch_losses: list[float] = []
        for _, samples in reader.steps():
            reader.consume()
            optimizer.zero_grad()
            outputs = network(train.images[samples].float())
            losses = subject.loss(outputs, train.labels[samples], reduction="none")
            factors = 1.0 if weights is None else torch.from_numpy(weights()).float()
            (losses * factors).mean().backward()
            optimizer.step()
            reader.record(losses.detach().numpy())
            served += samples
            batch_losses.append(float(losses.detach().mean()))
        reader.note_accuracy(subject.score(network, subject.validation))
        training.accuracies.append(subject.score(network, subject.test))
        training.served.append(served)
        training.batch_losses.append(batch_losses)
    return training


def distinct(served: Sequence[Sequence[int]], samples: int) -> float:
    """The mean share of the samples that an epoch has."""
    return float(np.mean([len(set(epoch)) / samples for epoch in served]))
