"""scikit-learn's handwritten digits as a folder tree of images, and a small network that learns them.

This module writes files.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

TEST_EVERY = 5
"""Of each class, every fifth image is kept back to measure the accuracy with."""
_BRIGHTEST = 16
"""Pixels of the data set are numbers from 0 to 16."""


def write_digits(folder: Path) -> None:
    """Write 1,797 PNG images of 8 x 8 pixels as `train/CLASS/NUMBER.png` and `test/CLASS/NUMBER.png`."""
    digits = load_digits()
    seen = np.zeros(10, int)
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        part = "test" if seen[label] % TEST_EVERY == 0 else "train"
        seen[label] += 1
        place = folder / part / str(label)
        place.mkdir(parents=True, exist_ok=True)
        grey = (pixels * (255 / _BRIGHTEST)).round().astype(np.uint8)
        Image.fromarray(grey).save(place / f"{number:04}.png")


def load_pixels(content: bytes) -> torch.Tensor:
    """The pixels of an image file, as numbers from 0 to 1, in one channel."""
    import io

    with Image.open(io.BytesIO(content)) as image:
        return torch.from_numpy(np.asarray(image, np.float32)[None] / 255)


def small_network(seed: int) -> nn.Module:
    """Two convolutions with batch normalisation, as the networks of DIESEL's figure 13 have it, and 7,000 weights."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )
