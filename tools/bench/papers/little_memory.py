"""Reading in chunk-wise order with memory for a part of the dataset, beside all in memory: section 6.5 of DIESEL.

Batches come through the library from a server on this machine, which shares no memory with it. With little memory, the
kernel's caches are dropped before each epoch. This module starts processes.
"""

from collections.abc import Generator
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import DATASET, SMALL_FILE_BYTES, drop_caches, make_tree
from bench.harness.readers import Work, get_batches, read_together
from dieselfs.dataset import Dataset
from dieselfs.limits import CHUNK_TARGET_BYTES
from lab.server import RunningServer, running_server, upload

LITTLE, ALL = "memory for an eighth", "all in memory"
FILES, QUICK_FILES = 65_536, 8_192
"""64 and 8 chunks, whatever the share of the data: fewer do not make several groups."""
MEMORY_SHARE, GROUPS = 8, 16
BATCH = 256


def little_memory(folder: Path, scale: Scale) -> Generator[Trial]:
    tree = make_tree(folder / "source", QUICK_FILES if scale.is_quick else FILES, SMALL_FILE_BYTES)
    with running_server(folder / "server", ["--shared-memory", "0"]) as server:
        with Dataset(server.settings(), DATASET, must_exist=False) as data:
            upload(data, tree.folder)
        little_bytes = max(tree.size_bytes // MEMORY_SHARE, 4 * CHUNK_TARGET_BYTES)
        group = max(tree.size_bytes // CHUNK_TARGET_BYTES // GROUPS, 1)
        sides = [
            Side(
                name,
                partial(_run, server, memory_bytes, group, tree.files),
                tree.files,
                "files",
                tree.size_bytes,
            )
            for name, memory_bytes in ((LITTLE, little_bytes), (ALL, 2 * tree.size_bytes))
        ]
        yield Trial(f"{tree.title}, chunk-wise order, groups of {group} chunks", sides, scale.rounds, ALL)


def _run(server: RunningServer, memory_bytes: int, group: int, files: int) -> Run:
    is_all = memory_bytes > files * SMALL_FILE_BYTES

    def reader() -> Work:
        data = Dataset(server.settings(), DATASET, memory_bytes=memory_bytes)
        if is_all:
            _epoch(data, group, 0)
        drop_caches()
        return partial(_epoch, data, group, 1)

    return read_together([reader], files, {"server": [server.process.pid]})


def _epoch(data: Dataset, group: int, epoch: int) -> int:
    return get_batches(data.get_many, BATCH, data.plan(1, epoch, group).share().paths)
