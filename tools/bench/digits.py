"""scikit-learn's handwritten digits as a folder tree of images, and as a dataset of small chunks.

This module writes files, and waits for a server.
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from dieselfs.dataset import Dataset
from dieselfs.names import split_path
from dieselfs.transfer.upload import Failed, SourceEntry, TreeUpload, walk_source

Entries = Callable[[Failed, Path], Iterator[SourceEntry]]
"""Files of a folder in storage order."""

TEST_EVERY = 5
"""Of each class, every fifth image is a test image."""
CHUNK_BYTES = 3000
"""24 images: more chunks than CIFAR-10 has of 4 MiB."""

_SEED = 1
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
