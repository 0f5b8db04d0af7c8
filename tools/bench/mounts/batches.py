"""Warm reads by a training loop: batches of files with Python's `open()`, and a pause for the computation after each.

The daemon, if it is needed, sleeps during the pauses. This module reads files.
"""

import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import (
    LARGE_FILE_BYTES,
    SMALL_FILE_BYTES,
    SourceTree,
    filesystem_type,
    make_tree,
    mounted_views,
    running_home,
    shuffled,
    store_tree,
)
from bench.harness.readers import Work, python_reader, read_together

BATCH_FILES = 256
COMPUTE_S = 0.01
BATCHES, QUICK_BATCHES = 20, 8


def batches(folder: Path, scale: Scale) -> Generator[Trial]:
    """The time of the pauses does not count."""
    count = QUICK_BATCHES if scale.is_quick else BATCHES
    for file_bytes in (SMALL_FILE_BYTES, LARGE_FILE_BYTES):
        place = folder / str(file_bytes)
        tree = make_tree(place / "source", count * BATCH_FILES, file_bytes)
        with running_home(place / "home") as home:
            store_tree(home, tree.folder, tree.size_bytes)
            with mounted_views(home, place) as views:
                places = {filesystem_type(place): tree.folder, **views}
                sides = [
                    Side(name, partial(_run, tree, each), tree.files, "files", tree.size_bytes)
                    for name, each in places.items()
                ]
                for side in sides:
                    side.run()
                title = f"{tree.title} with open(), {COMPUTE_S * 1000:.0f} ms after each {BATCH_FILES}, warm"
                yield Trial(title, sides, scale.rounds, sides[0].name)


def _run(tree: SourceTree, folder: Path) -> Run:
    paths = shuffled(tree.paths())
    run = read_together([partial(_reader, folder, paths, tree.file_bytes)], tree.files)
    return replace(run, duration_s=run.duration_s - COMPUTE_S * (tree.files // BATCH_FILES))


def _reader(folder: Path, paths: Sequence[str], file_bytes: int) -> Work:
    parts = [paths[first : first + BATCH_FILES] for first in range(0, len(paths), BATCH_FILES)]
    works = [python_reader(folder, part, file_bytes) for part in parts]

    def read() -> int:
        """The computation keeps the processor, as on a machine that trains."""
        files = 0
        for work in works:
            files += work()
            end_s = time.perf_counter() + COMPUTE_S
            while time.perf_counter() < end_s:
                pass
        return files

    return read
