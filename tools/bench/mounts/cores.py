"""A cold epoch under a plan with 1, 2, 4, ... processors, as many as the machine has: mount beside local file system;
and an upload by as many processes.

Readers, server and all processes of the mount share the processors. Each run has a new mount and server, and the
kernel's caches are dropped. This module changes the processors of this process, and of those that it starts.
"""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import (
    LARGE_FILE_BYTES,
    SMALL_FILE_BYTES,
    Home,
    SourceTree,
    can_drop_caches,
    drop_caches,
    filesystem_type,
    make_tree,
    mounted,
    put_tree,
    running_home,
    shuffled,
    store_tree,
)
from bench.harness.readers import plain_reader, planned_reader, read_together
from bench.harness.stopwatch import Processes, measure

SEED, GROUP_CHUNKS = 1, 4


def cores(folder: Path, scale: Scale) -> Generator[Trial]:
    if not can_drop_caches():
        return
    for files, file_bytes in (
        (scale.small_files, SMALL_FILE_BYTES),
        (scale.large_files // 2, LARGE_FILE_BYTES),
    ):
        place = folder / str(file_bytes)
        tree = make_tree(place / "source", files, file_bytes)
        with running_home(place / "home") as home:
            store_tree(home, tree.folder, tree.size_bytes)
            yield _Epoch(place, home, tree).trial(scale.rounds)
        if file_bytes == SMALL_FILE_BYTES:
            yield _upload(place, tree, scale.rounds)


def _upload(folder: Path, tree: SourceTree, rounds: int) -> Trial:
    """By as many processes as there are processors, from the page cache."""

    def put(processors: int) -> Run:
        with (
            limited(processors),
            TemporaryDirectory(dir=folder) as place,
            running_home(Path(place, "home")) as home,
        ):
            os.sync()
            server = {"server": [home.server_process()]}
            return measure(lambda: put_tree(home, tree.folder, jobs=processors), server)

    for path in tree.paths():
        (tree.folder / path).read_bytes()
    numbers = steps(len(os.sched_getaffinity(0)))
    sides = [
        Side(f"dlcmd put, processors: {number}", partial(put, number), tree.files, "files", tree.size_bytes)
        for number in numbers
    ]
    return Trial(f"Upload of {tree.title}", sides, rounds, sides[0].name)


def steps(processors: int) -> list[int]:
    """1, 2, 4, ... and all `processors`."""
    doubled = [1 << power for power in range(processors.bit_length())]
    return sorted({*(each for each in doubled if each <= processors), processors})


@contextmanager
def limited(processors: int) -> Iterator[None]:
    """Run this thread, and processes that it starts, on the first `processors` of its processors."""
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_of_them)[:processors])
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_of_them)


@dataclass(frozen=True, slots=True)
class _Epoch:
    folder: Path
    home: Home
    tree: SourceTree

    def trial(self, rounds: int) -> Trial:
        local, epochs = filesystem_type(self.folder), count()
        ways: dict[str, Callable[[], Run]] = {local: self._local, "mount, plan": partial(self._mount, epochs)}
        amount = self.tree.files, "files", self.tree.size_bytes
        sides = []
        for number in steps(len(os.sched_getaffinity(0))):
            for name, way in ways.items():
                run = partial(self._limited, number, way)
                sides.append(Side(f"{name}, processors: {number}", run, *amount))
        return Trial(f"{self.tree.title}, 1 reader, cold", sides, rounds, sides[0].name)

    def _limited(self, processors: int, way: Callable[[], Run]) -> Run:
        self.home.stop_server()
        with limited(processors):
            return way()

    def _local(self) -> Run:
        drop_caches()
        reader = partial(plain_reader, self.tree.folder, shuffled(self.tree.paths()), self.tree.file_bytes)
        return read_together([reader], self.tree.files)

    def _mount(self, epochs: "count[int]") -> Run:
        plan = f"seed={SEED},epoch={next(epochs)},group={GROUP_CHUNKS}"
        place = self.folder / "mount"
        with mounted(self.home, place) as mount:
            drop_caches()
            reader = partial(planned_reader, place, plan, self.tree.file_bytes)
            processes: Processes = {"mount": [mount], "server": [self.home.server_process()]}
            return read_together([reader], self.tree.files, processes)
