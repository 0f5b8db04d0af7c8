"""Reads in random order while the kernel loses its pages again and again, as on a node without free memory, beside the
local file system.

The reader reads several times as many files as the dataset has, from a new mount of the default memory. *fetched*:
bytes that the mount fetched for each byte of the dataset. This module reads files, and drops the caches of the machine.
"""

import random
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import (
    SMALL_FILE_BYTES,
    VIEWS,
    Home,
    SourceTree,
    can_drop_caches,
    drop_caches,
    fetched_bytes,
    filesystem_type,
    make_tree,
    mounted,
    running_home,
    store_tree,
)
from bench.harness.readers import python_reader, read_together
from bench.harness.stopwatch import Processes
from dieselfs.limits import MOUNT_MEMORY_BYTES

EVERY_S = 0.5
PASSES = 4
"""Reads for each file of the dataset."""


def reclaim(folder: Path, scale: Scale) -> Generator[Trial]:
    if not can_drop_caches():
        return
    tree = make_tree(folder / "source", scale.small_files // 5, SMALL_FILE_BYTES)
    with running_home(folder / "home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
        local, reads = filesystem_type(folder), PASSES * tree.files
        ways = {local: partial(_read, tree, tree.folder)}
        ways |= {view: partial(_read_mounted, tree, home, folder / view, view) for view in VIEWS}
        sides = [Side(name, way, reads, "reads", reads * tree.file_bytes) for name, way in ways.items()]
        title = f"{reads:,} reads of {tree.title}, the page cache dropped every {EVERY_S:g} s"
        yield Trial(title, sides, scale.rounds, local)


def _read(tree: SourceTree, folder: Path, processes: Processes | None = None) -> Run:
    drop_caches()
    paths = random.Random(PASSES).choices(tree.paths(), k=PASSES * tree.files)
    with _reclaiming():
        return read_together([partial(python_reader, folder, paths, tree.file_bytes)], len(paths), processes)


def _read_mounted(tree: SourceTree, home: Home, place: Path, view: str) -> Run:
    home.stop_server()
    with mounted(home, place, view=view, memory_bytes=MOUNT_MEMORY_BYTES) as mount:
        run = _read(tree, place, {"mount": [mount], "server": [home.server_process()]})
        return run.with_seen(fetched=fetched_bytes(place) / tree.size_bytes)


@contextmanager
def _reclaiming() -> Iterator[None]:
    """Drop the page cache every EVERY_S until the end of the block."""
    ended = Event()

    def drop() -> None:
        while not ended.wait(EVERY_S):
            drop_caches("1")

    thread = Thread(target=drop, name="reclaim")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
