"""Loading batches with the API of a framework and with ours: table I of DeepIO, on a disk and in a tmpfs.

The framework is PyTorch instead of TensorFlow: a `DataLoader` without workers reads files in random order. Ours are
`Dataset.batches`, in the opportunistic order. Both read from the same file system, and make each batch one tensor.
"""

from collections.abc import Generator, Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import Home, SourceTree, drop_caches, make_tree, running_home, store_tree
from bench.harness.stopwatch import measure

BATCH = 128
SIZES = (3_000, 256_000)
"""Of files: those of CIFAR-10, and of the paper's larger dataset."""
TOTAL_BYTES, QUICK_TOTAL_BYTES = 480_000_000, 2_000_000
FILES_MAX = 40_000
DATA_LOADER, LIBRARY = "PyTorch's DataLoader", "dieselfs, batches"
DISK, MEMORY = "on a disk, cold", "in a tmpfs"


class _Files(Dataset[torch.Tensor]):
    """The files of a tree as tensors of bytes."""

    def __init__(self, tree: SourceTree) -> None:
        self._paths = [tree.folder / path for path in tree.paths()]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.fromfile(self._paths[index], np.uint8))


def loading(folder: Path, scale: Scale) -> Generator[Trial]:
    with TemporaryDirectory(dir="/dev/shm", prefix="dieselfs-bench-") as memory:
        for place, where in ((folder, DISK), (Path(memory), MEMORY)):
            for size in SIZES:
                files = min((QUICK_TOTAL_BYTES if scale.is_quick else TOTAL_BYTES) // size, FILES_MAX)
                tree = make_tree(place / f"{size}" / "source", max(files, BATCH), size)
                with running_home(place / f"{size}" / "home") as home:
                    store_tree(home, tree.folder, tree.size_bytes)
                    sides = [
                        Side(
                            name,
                            partial(read, tree, home, where == DISK),
                            tree.files,
                            "files",
                            tree.size_bytes,
                        )
                        for name, read in ((DATA_LOADER, _load), (LIBRARY, _draw))
                    ]
                    yield Trial(
                        f"{tree.title}, batches of {BATCH}, {where}", sides, scale.rounds, DATA_LOADER
                    )


def _load(tree: SourceTree, _: Home, is_cold: bool) -> Run:
    loader = DataLoader(_Files(tree), BATCH, shuffle=True)
    if is_cold:
        drop_caches()
    return measure(partial(_consume, loader, tree))


def _draw(tree: SourceTree, home: Home, is_cold: bool) -> Run:
    def read() -> None:
        with data.batches(BATCH, seed=1) as batches:
            tensors = (
                torch.frombuffer(bytearray().join(batch.contents), dtype=torch.uint8).view(
                    -1, tree.file_bytes
                )
                for batch in batches
            )
            _consume(tensors, tree)

    with home.dataset() as data:
        data.snapshot  # noqa: B018  # fetched before the clock runs
        if is_cold:
            drop_caches()
        return measure(read, {"server": [home.server_process()]})


def _consume(batches: Iterable[torch.Tensor], tree: SourceTree) -> None:
    total_bytes = sum(batch.numel() for batch in batches)
    assert total_bytes == tree.size_bytes, f"read {total_bytes} of {tree.size_bytes} bytes"
