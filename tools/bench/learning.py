"""Training on digits through a mount, in the order of one group size: what Figure 13 of DIESEL compares."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from dieselfs.torch import ChunkShuffleBatchSampler, FolderDataset

BATCH_SAMPLES = 32
LEARNING_RATE = 0.02
MOMENTUM = 0.9


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
