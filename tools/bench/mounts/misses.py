"""Reads of one large file at random places, cold, with what the mount fetches for them, and warm through a mapping. The
whole file in order, cold.

Cold: a new mount and server, less memory than the file has bytes, and the kernel's caches dropped on both sides.
*fetched*: bytes that the mount fetched for each byte that was read. This module reads files.
"""

import itertools
import mmap
import os
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import (
    VIEWS,
    Home,
    SourceTree,
    can_drop_caches,
    drop_caches,
    fetched_bytes,
    filesystem_type,
    make_tree,
    mounted,
    mounted_views,
    running_home,
    store_tree,
)
from bench.harness.readers import Work, read_together
from bench.harness.stopwatch import Processes
from dieselfs.limits import GIB, KIB, MIB
from dieselfs_client.memory.room import PAGE_COPIES

COLD_READ_BYTES, COLD_READS = 16 * KIB, 300
WARM_READ_BYTES, WARM_READS = 4 * KIB, 200_000
ORDERED_READ_BYTES = 1 * MIB
COLD_FILE_BYTES, COLD_MEMORY_BYTES, WARM_FILE_BYTES = 200 * MIB, 64 * MIB, 1 * GIB
QUICK_COLD_FILE_BYTES, QUICK_COLD_MEMORY_BYTES, QUICK_WARM_FILE_BYTES = 50 * MIB, 24 * MIB, 64 * MIB

Way = Callable[[Path, Sequence[int], int], Work]
"""Opens a file. Returns the work: read a number of bytes at each offset, and return the number of reads."""


def misses(folder: Path, scale: Scale) -> Generator[Trial]:
    if can_drop_caches():
        file_bytes = QUICK_COLD_FILE_BYTES if scale.is_quick else COLD_FILE_BYTES
        memory_bytes = QUICK_COLD_MEMORY_BYTES if scale.is_quick else COLD_MEMORY_BYTES
        tree = make_tree(folder / "cold" / "source", 1, file_bytes)
        with running_home(folder / "cold" / "home") as home:
            store_tree(home, tree.folder, tree.size_bytes)
            cold = _Cold(folder / "cold", home, tree, memory_bytes)
            for name, way in WAYS.items():
                yield cold.trial(name, way, scale.rounds)
    tree = make_tree(
        folder / "warm" / "source", 1, QUICK_WARM_FILE_BYTES if scale.is_quick else WARM_FILE_BYTES
    )
    with running_home(folder / "warm" / "home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
        if can_drop_caches():
            yield _in_order(folder / "warm", home, tree, scale.rounds)
        with mounted_views(home, folder / "warm") as views:
            yield _warm_trial({filesystem_type(folder): tree.folder, **views}, tree, scale.rounds)


# -- ways to read ---------------------------------------------------------------------------------------------


def _pread(path: Path, offsets: Sequence[int], length: int, flags: int = 0) -> Work:
    file, buffer = os.open(path, os.O_RDONLY | flags), mmap.mmap(-1, length)  # aligned, as O_DIRECT needs it
    return lambda: sum(os.preadv(file, [buffer], offset) == length for offset in offsets)


def _mapped(path: Path, offsets: Sequence[int], length: int, advice: int = mmap.MADV_NORMAL) -> Work:
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    memory.madvise(advice)
    return lambda: sum(len(memory[offset : offset + length]) == length for offset in offsets)


WAYS: dict[str, Way] = {
    "pread": _pread,
    "pread, O_DIRECT": partial(_pread, flags=os.O_DIRECT),
    "mapped": _mapped,
    "mapped, MADV_RANDOM": partial(_mapped, advice=mmap.MADV_RANDOM),
}


def _offsets(tree: SourceTree, length: int, reads: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(tree.file_bytes // length) * length for _ in range(reads)]


# -- trials ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cold:
    folder: Path
    home: Home
    tree: SourceTree
    memory_bytes: int

    def trial(self, name: str, way: Way, rounds: int) -> Trial:
        """The sides of a round read the same places."""
        local = filesystem_type(self.folder)
        amount = COLD_READS, "reads", COLD_READS * COLD_READ_BYTES
        sides = [
            Side(side, partial(self._run, side, way, itertools.count()), *amount) for side in (local, *VIEWS)
        ]
        size = f"{COLD_READ_BYTES // KIB} KiB of {self.tree.file_bytes // MIB} MiB"
        return Trial(f"{name} of {size}, cold", sides, rounds, local)

    def _run(self, side: str, way: Way, numbers: "itertools.count[int]") -> Run:
        (path,) = self.tree.paths()
        offsets = _offsets(self.tree, COLD_READ_BYTES, COLD_READS, next(numbers))

        def run(file: Path) -> Run:
            drop_caches()
            return read_together([partial(way, file, offsets, COLD_READ_BYTES)], COLD_READS)

        if side not in VIEWS:
            return run(self.tree.folder / path)
        self.home.stop_server()
        place = self.folder / side
        with mounted(self.home, place, view=side, memory_bytes=self.memory_bytes):
            before = fetched_bytes(place)
            done = run(place / path)
            fetched = (fetched_bytes(place) - before) / (COLD_READS * COLD_READ_BYTES)
        return done.with_seen(fetched=fetched)


def _in_order(folder: Path, home: Home, tree: SourceTree, rounds: int) -> Trial:
    """As `dd bs=1M` reads; the mounts have the default memory."""
    local, offsets = filesystem_type(folder), range(0, tree.file_bytes, ORDERED_READ_BYTES)
    (path,) = tree.paths()

    def read(file: Path, processes: Processes | None = None) -> Run:
        drop_caches()
        reader = partial(_pread, file, offsets, ORDERED_READ_BYTES)
        return read_together([reader], len(offsets), processes, PAGE_COPIES * tree.file_bytes)

    def run(side: str) -> Run:
        if side not in VIEWS:
            return read(tree.folder / path)
        home.stop_server()
        with mounted(home, folder / side, view=side) as mount:
            return read(folder / side / path, {"mount": [mount], "server": [home.server_process()]})

    sides = [
        Side(side, partial(run, side), len(offsets), "reads", tree.file_bytes) for side in (local, *VIEWS)
    ]
    size = f"{ORDERED_READ_BYTES // MIB} MiB of {tree.file_bytes // MIB:,} MiB"
    return Trial(f"pread of {size} in order, cold", sides, rounds, local)


def _warm_trial(places: dict[str, Path], tree: SourceTree, rounds: int) -> Trial:
    """Reads of pages through a mapping, whose page tables are filled as well."""
    (path,) = tree.paths()
    offsets = _offsets(tree, WARM_READ_BYTES, WARM_READS, 0)

    def reader(file: Path) -> Work:
        work = _mapped(file, offsets, WARM_READ_BYTES)
        work()
        return work

    def run(file: Path) -> Run:
        return read_together([partial(reader, file)], WARM_READS)

    sides = [
        Side(
            name,
            partial(run, place / path),
            WARM_READS,
            "reads",
            WARM_READS * WARM_READ_BYTES,
        )
        for name, place in places.items()
    ]
    size = f"{WARM_READ_BYTES // KIB} KiB of {tree.file_bytes // MIB} MiB"
    return Trial(f"mapped, {size}, warm", sides, rounds, sides[0].name)
