"""A cold epoch as users get it, with the default plan, the default memory and Python's `open()`, beside the local file
system in random order; and its first batch. The clock runs before the list of a plan is read. This module reads files.
"""

from collections.abc import Callable, Generator
from functools import partial
from itertools import count
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import (
    LARGE_FILE_BYTES,
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
    shuffled,
    store_tree,
)
from bench.harness.readers import Reader, Work, python_reader, read_together
from bench.harness.stopwatch import Processes
from dieselfs.limits import MOUNT_MEMORY_BYTES
from dieselfs_client.memory.room import PAGE_COPIES

BATCH_FILES = 256


def epochs(folder: Path, scale: Scale) -> Generator[Trial]:
    if not can_drop_caches():
        return
    for files, file_bytes, is_whole in (
        (scale.small_files, SMALL_FILE_BYTES, True),
        (scale.small_files // 5, SMALL_FILE_BYTES, False),
        (scale.large_files * 12 // 5, LARGE_FILE_BYTES, True),  # more bytes than the default memory
        (scale.large_files * 3 // 5, LARGE_FILE_BYTES, False),
    ):
        place = folder / f"{files}x{file_bytes}"
        tree = make_tree(place / "source", files, file_bytes)
        with running_home(place / "home") as home:
            store_tree(home, tree.folder, tree.size_bytes)
            yield _trial(place, home, tree, files if is_whole else min(BATCH_FILES, files), scale.rounds)


def _trial(folder: Path, home: Home, tree: SourceTree, files: int, rounds: int) -> Trial:
    local, numbers = filesystem_type(folder), count()
    title = f"{tree.title}, open(), default plan, cold"
    if files == BATCH_FILES:
        title = f"the first {files} of {title}"

    def together(reader: Reader, processes: Processes) -> Run:
        return read_together([reader], files, processes, PAGE_COPIES * tree.size_bytes)

    def read_locally() -> Run:
        drop_caches()
        paths = shuffled(tree.paths())[:files]
        return together(partial(python_reader, tree.folder, paths, tree.file_bytes), {})

    def read_mounted(view: str) -> Run:
        home.stop_server()
        place, plan = folder / view, f"seed=1,epoch={next(numbers)}"
        with mounted(home, place, view=view, memory_bytes=MOUNT_MEMORY_BYTES) as mount:
            drop_caches()
            processes = {"mount": [mount], "server": [home.server_process()]}
            run = together(partial(_planned, place, plan, files, tree.file_bytes), processes)
            return run.with_seen(fetched=fetched_bytes(place) / (files * tree.file_bytes))

    ways: dict[str, Callable[[], Run]] = {
        local: read_locally,
        **{view: partial(read_mounted, view) for view in VIEWS},
    }
    sides = [Side(name, way, files, "files", files * tree.file_bytes) for name, way in ways.items()]
    return Trial(title, sides, rounds, local)


def _planned(folder: Path, plan: str, files: int, file_bytes: int) -> Work:
    def read() -> int:
        paths = (folder / ".dieselfs" / "shuffle" / plan).read_text().splitlines()[:files]
        return python_reader(folder, paths, file_bytes)()

    return read
