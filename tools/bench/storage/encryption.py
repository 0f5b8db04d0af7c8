"""What encryption costs: a dataset that is encrypted beside one that is not, in one process over one server."""

import os
from collections.abc import Callable, Generator
from functools import partial
from itertools import count
from pathlib import Path
from shutil import rmtree

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import Home, running_home
from bench.harness.stopwatch import measure
from dieselfs.dataset import Dataset
from dieselfs.limits import MIB
from dieselfs.settings import Settings

SIDES = ("plain", "encrypted")
SIZES = {"files of 4 KiB": (4096, 8192), "files of 128 KiB": (131_072, 512), "files of 4 MiB": (4 * MIB, 16)}
"""By what a trial is called: bytes of a file, and files."""
READ_AT_ONCE = 256


def encryption(folder: Path, scale: Scale) -> Generator[Trial]:
    numbers = count()
    with running_home(folder / "home") as home:
        for title, (size, files) in SIZES.items():
            if scale.is_quick:
                files = max(files // 8, 2)
            contents = [os.urandom(size) for _ in range(min(files, 64))]

            def put(side: str, size: int = size, files: int = files, contents: list[bytes] = contents) -> Run:
                with _dataset(home, f"put-{side}-{size}-{next(numbers)}", side) as dataset:
                    return measure(lambda: _put(dataset, files, contents))

            yield Trial(f"Put of {files:,} {title}", _sides(put, size, files), scale.rounds, SIDES[0])
            for side in SIDES:
                with _dataset(home, f"read-{side}-{size}", side) as dataset:
                    _put(dataset, files, contents)

            def read(side: str, size: int = size) -> Run:
                with _dataset(home, f"read-{side}-{size}", side) as dataset:
                    paths = list(dataset.shuffle(seed=1))
                    parts = [paths[at : at + READ_AT_ONCE] for at in range(0, len(paths), READ_AT_ONCE)]
                    return measure(lambda: [dataset.get_many(part) for part in parts])

            yield Trial(f"Read of {files:,} {title}", _sides(read, size, files), scale.rounds, SIDES[0])

        size, files = SIZES["files of 4 KiB"]

        def opened(side: str) -> Run:
            rmtree(home.folder / "cache", ignore_errors=True)
            with _dataset(home, f"read-{side}-{size}", side) as dataset:
                return measure(lambda: dataset.snapshot)

        yield Trial("First opening of the snapshot", _sides(opened, 0, files), scale.rounds, SIDES[0])


def _sides(run: Callable[[str], Run], size: int, files: int) -> list[Side]:
    return [Side(side, partial(run, side), files, "files", size * files) for side in SIDES]


def _dataset(home: Home, name: str, side: str) -> Dataset:
    dataset = Dataset(Settings(home=home.folder, cache=home.folder / "cache"), name, must_exist=False)
    record = dataset.create()
    if side == "encrypted":
        dataset.client.encrypt(record)
    return dataset


def _put(dataset: Dataset, files: int, contents: list[bytes]) -> None:
    for number in range(files):
        dataset.put(f"train/{number % 100}/{number}.jpg", contents[number % len(contents)])
    dataset.flush()
