"""scikit-learn's handwritten digits as a folder tree of images, as a dataset of small chunks, and as a lesson.

A lesson is training through a mount, in the order of one group size, as Figure 13 of DIESEL compares it. This module
writes files, and waits for a server.
"""

import io
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from dieselfs.dataset import Dataset
from dieselfs.names import split_path
from dieselfs.torch import ChunkShuffleBatchSampler, FolderDataset
from dieselfs.transfer.upload import Failed, SourceEntry, TreeUpload, walk_source

Entries = Callable[[Failed, Path], Iterator[SourceEntry]]
"""Files of a folder in storage order."""

TEST_EVERY = 5
"""Of each class, every fifth image is a test image."""
CHUNK_BYTES = 3000
"""24 images: more chunks than CIFAR-10 has of 4 MiB."""
BATCH_SAMPLES = 32
LEARNING_RATE = 0.02
MOMENTUM = 0.9

_SEED = 1
_BRIGHTEST = 16
"""Pixels of the data set are numbers from 0 to 16."""


def write_digits(folder: Path) -> None:
    """Write 1,797 PNG images of 8 x 8 pixels as `train/CLASS/NUMBER.png` and `test/CLASS/NUMBER.png`."""
    from sklearn.datasets import load_digits  # as slow to import as the rest together

    digits = load_digits()
    seen = [0] * 10
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target.tolist(), strict=True)):
        part = "test" if seen[label] % TEST_EVERY == 0 else "train"
        seen[label] += 1
        place = folder / part / str(label)
        place.mkdir(parents=True, exist_ok=True)
        grey = (pixels * (255 / _BRIGHTEST)).round().astype(np.uint8)
        Image.fromarray(grey).save(place / f"{number:04}.png")


def by_class(failed: Failed, source: Path) -> Iterator[SourceEntry]:
    """In the order of paths, as `dlcmd put` walks a folder."""
    yield from sorted(walk_source(os.fsencode(source), b"", failed), key=lambda entry: split_path(entry.path))


def mixed(failed: Failed, source: Path) -> Iterator[SourceEntry]:
    """In random order, `test/` and `train/` separately."""
    entries = list(by_class(failed, source))
    random.Random(_SEED).shuffle(entries)
    yield from sorted(entries, key=lambda entry: entry.path.partition(b"/")[0])


def store_digits(data: Dataset, entries: Entries, source: Path) -> None:
    """Store the folder of `write_digits` in this order."""
    upload = TreeUpload(data.client, data.create(), None, jobs=1, chunk_bytes=CHUNK_BYTES)
    report = upload.run(lambda failed: entries(failed, source))
    assert not report.failures, report.failures
    data.refresh()


# -- training --------------------------------------------------------------------------------------------


def load_pixels(content: bytes) -> torch.Tensor:
    """The pixels of an image file, as numbers from 0 to 1, in one channel."""
    with Image.open(io.BytesIO(content)) as image:
        return torch.from_numpy(np.asarray(image, np.float32)[None] / 255)


def small_network(seed: int) -> nn.Module:
    """Two convolutions with batch normalisation, like the networks of the figure; 6,138 weights."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )


@dataclass(frozen=True, slots=True)
class Lesson:
    """A mounted dataset of digits: training and test images."""

    train: FolderDataset
    images: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def on(cls, mountpoint: Path) -> "Lesson":
        with FolderDataset(mountpoint / "test", loader=load_pixels) as test:
            images, labels = zip(*test.__getitems__(range(len(test))), strict=True)
        return cls(
            FolderDataset(mountpoint / "train", loader=load_pixels), torch.stack(images), torch.tensor(labels)
        )

    def learn(self, seed: int, group_chunks: int, epochs: int) -> list[float]:
        """Train a new network; its accuracy on the test images after each epoch.

        `seed`: of the initial weights and of the order; `group_chunks`: 0 shuffles fully. One thread, so that the same
        order gives the same accuracies.
        """
        torch.set_num_threads(1)
        network = small_network(seed)
        optimizer = torch.optim.SGD(network.parameters(), LEARNING_RATE, MOMENTUM)
        sampler = ChunkShuffleBatchSampler(self.train, BATCH_SAMPLES, seed=seed, group_chunks=group_chunks)
        loader = DataLoader(self.train, batch_sampler=sampler)
        accuracies = []
        for _ in range(epochs):
            network.train()
            for images, labels in sampler.consumed(loader):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(images), labels).backward()
                optimizer.step()
            accuracies.append(self._accuracy(network))
        return accuracies

    def _accuracy(self, network: nn.Module) -> float:
        network.eval()
        with torch.no_grad():
            found = network(self.images).argmax(dim=1)
        return float((found == self.labels).float().mean())
