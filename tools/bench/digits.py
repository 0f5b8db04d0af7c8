"""scikit-learn's handwritten digits as a folder tree of images. This module writes files."""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

TEST_EVERY = 5
"""Of each class, every fifth image is kept back to measure the accuracy with."""
_BRIGHTEST = 16
"""Pixels of the data set are numbers from 0 to 16."""


def write_digits(folder: Path) -> None:
    """Write 1,797 PNG images of 8 x 8 pixels as `train/CLASS/NUMBER.png` and `test/CLASS/NUMBER.png`."""
    digits = load_digits()
    seen = [0] * 10
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target.tolist(), strict=True)):
        part = "test" if seen[label] % TEST_EVERY == 0 else "train"
        seen[label] += 1
        place = folder / part / str(label)
        place.mkdir(parents=True, exist_ok=True)
        grey = (pixels * (255 / _BRIGHTEST)).round().astype(np.uint8)
        Image.fromarray(grey).save(place / f"{number:04}.png")
