"""How long a step waits for its samples while it computes longer and longer: tables II and III of "Asynchronous I/O
Strategy for Large-Scale Deep Learning Applications".

A step computes by sleeping, as a GPU does for the processor. Its samples are read by workers of a `DataLoader`, ahead
of it. The first step, which also waits for the workers to start, is left out. A loader also waits where nothing is
read: for its workers to hand over tensors. *Exposed* is what waiting for samples takes longer than that. Times are
medians of the steps of all rounds. This module starts servers, mounts and processes.
"""

import time
from collections.abc import Generator, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Dataset

from bench.harness.figures import Row, Scale
from bench.harness.forms import (
    SMALL_FILE_BYTES,
    Home,
    drop_caches,
    make_tree,
    mounted,
    running_home,
    store_tree,
)
from dieselfs.telemetry.stalls import Stalls, predicted_waiting_s
from dieselfs.torch import ChunkShuffleBatchSampler, FileDataset

COMPUTING_MS = (0, 5, 10, 20, 50, 100)
_BATCH, _WORKERS, _STEPS_MAX = 256, 2, 80
_NOTHING, _FILES, _MOUNT, _LIBRARY = _KINDS = (
    "nothing read",
    "files",
    "dieselfs, mount",
    "dieselfs, library",
)

Steps = npt.NDArray[np.float64]
"""Shape (n, 2): how long each step waited and computed, in seconds."""


class _Numbers(Dataset[int]):
    """Samples that are not read."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index


def exposed_io(folder: Path, scale: Scale) -> Generator[Iterable[Row]]:
    tree = make_tree(folder / "tree", min(scale.small_files, _BATCH * _STEPS_MAX), SMALL_FILE_BYTES)
    with running_home(folder / "home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
        rows: dict[str, list[Row]] = {kind: [] for kind in _KINDS}
        reading_s: dict[str, float] = {}
        for computing_ms in COMPUTING_MS:
            nothing_s, steps = 0.0, dict[str, list[Steps]]()
            for _ in range(scale.rounds):  # kinds in turn, so that all see the same load
                for kind in _KINDS:
                    stalls = _train(kind, folder, home, tree.files, computing_ms / 1e3)
                    steps.setdefault(kind, []).append(stalls.steps[1:])
            for kind in _KINDS:
                waiting_s, computed_s = np.median(np.concatenate(steps[kind]), axis=0).tolist()
                reading_s.setdefault(kind, waiting_s)
                nothing_s = waiting_s if kind == _NOTHING else nothing_s
                predicted_s = predicted_waiting_s(reading_s[kind] - reading_s[_NOTHING], computing_ms / 1e3)
                rows[kind].append(
                    {
                        "samples from": kind,
                        "computing, ms a step": computing_ms,
                        "waiting, ms a step": (waiting_s * 1e3, "{:.1f}"),
                        "exposed, ms a step": (max(waiting_s - nothing_s, 0.0) * 1e3, "{:.1f}"),
                        "predicted": (predicted_s * 1e3, "{:.1f}"),
                        "waiting, % of the time": (100 * waiting_s / (waiting_s + computed_s), "{:.0f}"),
                    }
                )
        yield [row for of_kind in rows.values() for row in of_kind]


def _train(kind: str, folder: Path, home: Home, files: int, computing_s: float) -> Stalls:
    """One cold epoch."""
    drop_caches()
    if kind == _NOTHING:
        return _epoch(DataLoader(_Numbers(files), _BATCH, num_workers=_WORKERS), Stalls(), computing_s)
    if kind == _LIBRARY:
        with FileDataset("dl://bench", loader=len, home=home.folder) as dataset:
            return _ordered_epoch(dataset, computing_s)
    if kind == _FILES:
        with FileDataset(folder / "tree", loader=len) as dataset:
            return _ordered_epoch(dataset, computing_s)
    with mounted(home, folder / "mount"), FileDataset(folder / "mount", loader=len) as dataset:
        return _ordered_epoch(dataset, computing_s)


def _ordered_epoch(dataset: FileDataset, computing_s: float) -> Stalls:
    sampler = ChunkShuffleBatchSampler(dataset, _BATCH, seed=1)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=_WORKERS)
    return _epoch(loader, sampler.stalls, computing_s)


def _epoch(loader: Iterable[object], stalls: Stalls, computing_s: float) -> Stalls:
    for _ in stalls.timed(loader):
        time.sleep(computing_s)
    return stalls
