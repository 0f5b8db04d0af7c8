"""What encryption costs: a dataset that is encrypted beside one that is not, in one process over one server."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
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
from dieselfs.settings.table import CacheOptions
from dieselfs_client.daemon.cache_daemons import start_cache, stop_cache

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

            names = {side: f"read-{side}-{size}" for side in SIDES}
            yield Trial(
                f"Read of {files:,} {title}", _reads(home, names, size, files), scale.rounds, SIDES[0]
            )
            again = _reads(home, names, size, files, passes=2)
            yield Trial(f"Second read of {files:,} {title}", again, scale.rounds, SIDES[0])
            with _cached(home, names.values()):
                reads = _reads(home, names, size, files)
                yield Trial(f"Read of {files:,} {title}, with dlcmd cache", reads, scale.rounds, SIDES[0])

        size, files = SIZES["files of 4 KiB"]

        def opened(side: str) -> Run:
            rmtree(home.folder / "cache", ignore_errors=True)
            with _dataset(home, f"read-{side}-{size}", side) as dataset:
                return measure(lambda: dataset.snapshot)

        yield Trial("First opening of the snapshot", _sides(opened, 0, files), scale.rounds, SIDES[0])


def _reads(home: Home, names: dict[str, str], size: int, files: int, passes: int = 1) -> list[Side]:
    """Readers with memory of their own; the last of `passes` is measured."""

    def read(side: str) -> Run:
        with _dataset(home, names[side], side) as dataset:
            paths = list(dataset.shuffle(seed=1))
            parts = [paths[at : at + READ_AT_ONCE] for at in range(0, len(paths), READ_AT_ONCE)]
            for _ in range(passes - 1):
                deque(map(dataset.get_many, parts), maxlen=0)
            return measure(lambda: deque(map(dataset.get_many, parts), maxlen=0))

    return _sides(read, size, files)


@contextmanager
def _cached(home: Home, names: Iterable[str]) -> Iterator[None]:
    """Daemons that share these datasets, whole, until the end of the block."""
    os.environ["DIESELFS_IDENTITY"] = str(home.folder / "identity")
    options = CacheOptions(home=str(home.folder), server="embedded")
    with ExitStack() as stack:
        for name in names:
            start_cache(name, options)
            with Dataset(_settings(home), name) as dataset:
                stack.callback(stop_cache, dataset.snapshot)
                dataset.get_many(list(dataset.files()))
        yield
    del os.environ["DIESELFS_IDENTITY"]


def _sides(run: Callable[[str], Run], size: int, files: int) -> list[Side]:
    return [Side(side, partial(run, side), files, "files", size * files) for side in SIDES]


def _dataset(home: Home, name: str, side: str) -> Dataset:
    dataset = Dataset(_settings(home), name, must_exist=False)
    record = dataset.create()
    if side == "encrypted":
        dataset.client.encrypt(record)
    return dataset


def _settings(home: Home) -> Settings:
    return Settings(home=home.folder, cache=home.folder / "cache")


def _put(dataset: Dataset, files: int, contents: list[bytes]) -> None:
    for number in range(files):
        dataset.put(f"train/{number % 100}/{number}.jpg", contents[number % len(contents)])
    dataset.flush()
