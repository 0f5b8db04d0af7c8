"""What encryption costs: a dataset that is encrypted beside one that is not, in one process over one server.

An embedded server lends its memory with plain chunks; over TCP, both sides have memory of their own.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from shutil import rmtree

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import running_home
from bench.harness.stopwatch import measure
from dieselfs.dataset import Dataset
from dieselfs.limits import MIB
from dieselfs.settings import Settings
from dieselfs.settings.table import CacheOptions
from dieselfs_client.daemon.cache_daemons import start_cache, stop_cache
from lab.server import running_server

SIDES = ("plain", "encrypted")
SIZES = {"files of 4 KiB": (4096, 8192), "files of 128 KiB": (131_072, 512), "files of 4 MiB": (4 * MIB, 16)}
"""By what a trial is called: bytes of a file, and files."""
READ_AT_ONCE = 256


def encryption(folder: Path, scale: Scale) -> Generator[Trial]:
    with running_home(folder / "home") as home:
        settings = Settings(home=home.folder, cache=home.folder / "cache")
        for title, size, files in _sizes(scale):
            yield _puts(settings, title, size, files, scale.rounds)
            names = _stored(settings, size, files)
            yield Trial(f"Read of {title}", _reads(settings, names, size, files), scale.rounds, SIDES[0])
            again = _reads(settings, names, size, files, passes=2)
            yield Trial(f"Second read of {title}", again, scale.rounds, SIDES[0])
            with _cached(settings, names.values()):
                reads = _reads(settings, names, size, files)
                yield Trial(f"Read of {title}, with dlcmd cache", reads, scale.rounds, SIDES[0])
        yield _openings(settings, scale)
    with running_server(folder / "server") as server:
        settings = server.settings(server.user("bench", all_datasets="admin"))
        for title, size, files in _sizes(scale):
            reads = _reads(settings, _stored(settings, size, files), size, files)
            yield Trial(f"Read of {title}, over TCP", reads, scale.rounds, SIDES[0])


def _sizes(scale: Scale) -> Iterator[tuple[str, int, int]]:
    """What the files of a trial are called, the bytes of each, and their number."""
    for title, (size, files) in SIZES.items():
        files = max(files // 8, 2) if scale.is_quick else files
        yield f"{files:,} {title}", size, files


def _puts(settings: Settings, title: str, size: int, files: int, rounds: int) -> Trial:
    numbers, contents = count(), _contents(size, files)

    def put(side: str) -> Run:
        with _dataset(settings, f"put-{side}-{size}-{next(numbers)}", side) as dataset:
            return measure(lambda: _put(dataset, files, contents))

    return Trial(f"Put of {title}", _sides(put, size, files), rounds, SIDES[0])


def _openings(settings: Settings, scale: Scale) -> Trial:
    _, size, files = next(_sizes(scale))

    def opened(side: str) -> Run:
        rmtree(settings.cache, ignore_errors=True)
        with _dataset(settings, _name(side, size), side) as dataset:
            return measure(lambda: dataset.snapshot)

    return Trial("First opening of the snapshot", _sides(opened, 0, files), scale.rounds, SIDES[0])


def _name(side: str, size: int) -> str:
    return f"read-{side}-{size}"


def _stored(settings: Settings, size: int, files: int) -> dict[str, str]:
    """The names of new datasets with the same files, by side."""
    contents = _contents(size, files)
    for side in SIDES:
        with _dataset(settings, _name(side, size), side) as dataset:
            _put(dataset, files, contents)
    return {side: _name(side, size) for side in SIDES}


def _contents(size: int, files: int) -> list[bytes]:
    return [os.urandom(size) for _ in range(min(files, 64))]


def _reads(settings: Settings, names: dict[str, str], size: int, files: int, passes: int = 1) -> list[Side]:
    """Readers with memory of their own; the last of `passes` is measured."""

    def read(side: str) -> Run:
        with _dataset(settings, names[side], side) as dataset:
            paths = list(dataset.shuffle(seed=1))
            parts = [paths[at : at + READ_AT_ONCE] for at in range(0, len(paths), READ_AT_ONCE)]
            for _ in range(passes - 1):
                deque(map(dataset.get_many, parts), maxlen=0)
            return measure(lambda: deque(map(dataset.get_many, parts), maxlen=0))

    return _sides(read, size, files)


@contextmanager
def _cached(settings: Settings, names: Iterable[str]) -> Iterator[None]:
    """Daemons that share these datasets, whole, until the end of the block."""
    os.environ["DIESELFS_IDENTITY"] = str(settings.home / "identity")
    options = CacheOptions(home=str(settings.home), server="embedded")
    with ExitStack() as stack:
        for name in names:
            start_cache(name, options)
            with Dataset(settings, name) as dataset:
                stack.callback(stop_cache, dataset.snapshot)
                dataset.get_many(list(dataset.files()))
        yield
    del os.environ["DIESELFS_IDENTITY"]


def _sides(run: Callable[[str], Run], size: int, files: int) -> list[Side]:
    return [Side(side, partial(run, side), files, "files", size * files) for side in SIDES]


def _dataset(settings: Settings, name: str, side: str) -> Dataset:
    dataset = Dataset(settings, name, must_exist=False)
    record = dataset.create()
    if side == "encrypted":
        dataset.client.encrypt(record)
    return dataset


def _put(dataset: Dataset, files: int, contents: list[bytes]) -> None:
    for number in range(files):
        dataset.put(f"train/{number % 100}/{number}.jpg", contents[number % len(contents)])
    dataset.flush()
