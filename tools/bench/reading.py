"""Reading every file once, in random order, by one process: the mount, the local file system, the library.

Cold: a new mount or connection, and the kernel's caches dropped on both sides. Warm: the same files once more. The
library is asked in the chunk-wise order too, which is what it is made for; it keeps no more than a few chunks.
"""

import os
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.figures import Aim, Quantity, Run, Side, Trial
from bench.homes import Home, mounted, running_home, upload_tree
from bench.machine import filesystem_type
from bench.scale import Scale
from bench.stopwatch import measure
from bench.trees import (
    LARGE_FILE_BYTES,
    SMALL_FILE_BYTES,
    SourceTree,
    can_drop_caches,
    drop_caches,
    make_tree,
    shuffled,
)
from dieselfs.dataset import Dataset

WARM_AIM = Aim(Quantity.RATIO, 0.7)
BATCH_FILES = 256
GROUP_CHUNKS = 8
"""Of the chunk-wise order: the library's memory for chunks is twice that."""

RANDOM_GETS = 5000
"""Single gets in fully random order are a request each, so a part of the files has to do."""

Reading = Callable[[Dataset, Sequence[str]], None]


def reading(folder: Path, scale: Scale) -> Generator[Trial]:
    for files, file_bytes in ((scale.small_files, SMALL_FILE_BYTES), (scale.large_files, LARGE_FILE_BYTES)):
        tree = make_tree(folder / f"source-{file_bytes}", files, file_bytes)
        with running_home(folder / f"home-{file_bytes}") as home:
            upload_tree(home, tree)
            if can_drop_caches():
                yield _cold(home, folder / "mount", tree, scale.rounds)
            yield from _warm(home, folder / "mount", tree, scale.rounds)


def _cold(home: Home, mountpoint: Path, tree: SourceTree, rounds: int) -> Trial:
    local, paths = filesystem_type(tree.folder), shuffled(tree.paths())
    with home.dataset() as dataset:
        in_chunks = list(dataset.shuffle(group_chunks=GROUP_CHUNKS))
    some = paths[:RANDOM_GETS]
    return Trial(
        f"{_title(tree)}, cold",
        [
            _side(tree, "mount", partial(_read_new_mount, home, mountpoint, paths), paths),
            _side(tree, "mount, after find", partial(_read_new_mount, home, mountpoint, paths, True), paths),
            _side(tree, local, partial(_read_cold, tree.folder, paths), paths),
            _side(tree, "library, get", partial(_ask, home, _get, some), some),
            _side(tree, "library, get, chunk-wise", partial(_ask, home, _get, in_chunks), in_chunks),
            _side(
                tree, "library, get_many, chunk-wise", partial(_ask, home, _get_many, in_chunks), in_chunks
            ),
        ],
        rounds,
        base=local,
    )


def _warm(home: Home, mountpoint: Path, tree: SourceTree, rounds: int) -> Generator[Trial]:
    local, paths = filesystem_type(tree.folder), shuffled(tree.paths())
    with mounted(home, mountpoint) as mount:
        for folder in (mountpoint, tree.folder):
            _read(folder, paths)
        daemon = {"daemon": mount.process}
        for read, how, aim in ((_read, "open and read", WARM_AIM), (_load, "Python's open()", None)):
            sides = [
                _side(tree, "mount", partial(_timed, read, mountpoint, paths, daemon), paths, aim),
                _side(tree, local, partial(_timed, read, tree.folder, paths), paths),
            ]
            yield Trial(f"{_title(tree)}, warm, {how}", sides, rounds, base=local)


def _title(tree: SourceTree) -> str:
    return f"Reading {tree.files:,} files of {tree.file_bytes:,} bytes"


def _side(
    tree: SourceTree, name: str, run: Callable[[], Run], paths: Sequence[str], aim: Aim | None = None
) -> Side:
    return Side(name, run, len(paths), "files", len(paths) * tree.file_bytes, aim)


def _read(folder: Path, paths: Sequence[str]) -> None:
    """With the plain system calls."""
    prefix = f"{folder}/"
    for path in paths:
        descriptor = os.open(prefix + path, os.O_RDONLY)
        os.read(descriptor, os.fstat(descriptor).st_size)
        os.close(descriptor)


def _load(folder: Path, paths: Sequence[str]) -> None:
    """As most programs in Python do. Before Python 3.14, `open` asks of every file whether it is a terminal."""
    prefix = f"{folder}/"
    for path in paths:
        with open(prefix + path, "rb") as file:
            file.read()


def _timed(
    read: Callable[[Path, Sequence[str]], None],
    folder: Path,
    paths: Sequence[str],
    processes: Mapping[str, int] | None = None,
) -> Run:
    return measure(lambda: read(folder, paths), processes)


def _read_cold(folder: Path, paths: Sequence[str]) -> Run:
    drop_caches()
    return _timed(_read, folder, paths)


def _read_new_mount(home: Home, mountpoint: Path, paths: Sequence[str], is_walked: bool = False) -> Run:
    """`is_walked`: the files were listed before, as most training programs do at their start."""
    with mounted(home, mountpoint) as mount:
        processes = {"daemon": mount.process, "server": home.server_process()}
        drop_caches()
        if is_walked:
            subprocess.run(["find", mountpoint], stdout=subprocess.DEVNULL, check=True)
        return _timed(_read, mountpoint, paths, processes)


def _ask(home: Home, read: Reading, paths: Sequence[str]) -> Run:
    with home.dataset() as dataset:
        dataset.snapshot  # noqa: B018  # fetched before the clock runs
        drop_caches()
        return measure(lambda: read(dataset, paths), {"server": home.server_process()})


def _get(dataset: Dataset, paths: Sequence[str]) -> None:
    for path in paths:
        dataset.get(path)


def _get_many(dataset: Dataset, paths: Sequence[str]) -> None:
    for first in range(0, len(paths), BATCH_FILES):
        dataset.get_many(paths[first : first + BATCH_FILES])
