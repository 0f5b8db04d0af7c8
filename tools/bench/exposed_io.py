"""How long a step waits for its samples while it computes longer and longer: tables II and III of "Asynchronous I/O
Strategy for Large-Scale Deep Learning Applications".

A step computes by sleeping, as a GPU does for the processor. Its samples are read by workers of a `DataLoader`, ahead
of it. The first step, which also waits for the workers to start, is left out. This module starts servers, mounts and
processes.
"""

import time
from collections.abc import Generator, Iterable
from pathlib import Path

from torch.utils.data import DataLoader

from bench.figures import Row, Scale
from bench.forms import SMALL_FILE_BYTES, Home, drop_caches, make_tree, mounted, running_home, store_tree
from dieselfs.stalls import Stalls, predicted_waiting_s
from dieselfs.torch import ChunkShuffleBatchSampler, FileDataset

COMPUTING_MS = (0, 5, 10, 20, 50, 100)
_BATCH, _WORKERS, _STEPS_MAX = 256, 2, 80


def exposed_io(folder: Path, scale: Scale) -> Generator[Iterable[Row]]:
    tree = make_tree(folder / "tree", min(scale.small_files, _BATCH * _STEPS_MAX), SMALL_FILE_BYTES)
    with running_home(folder / "home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
        rows = []
        for name in ("files", "dieselfs, mount", "dieselfs, library"):
            reading_s = 0.0
            for computing_ms in COMPUTING_MS:
                stalls = _train(name, folder, home, computing_ms / 1e3)
                waiting_s, computed_s = stalls.steps[1:].mean(0).tolist()
                reading_s = reading_s if computing_ms else waiting_s
                causes = stalls.summary()["waiting_by_cause_s"]
                most = max(causes, key=lambda cause: float(causes[cause])) if causes else ""
                rows.append(
                    {
                        "samples from": name,
                        "computing, ms a step": computing_ms,
                        "waiting, ms a step": (waiting_s * 1e3, "{:.1f}"),
                        "predicted": (predicted_waiting_s(reading_s, computing_ms / 1e3) * 1e3, "{:.1f}"),
                        "waiting, % of the time": (100 * waiting_s / (waiting_s + computed_s), "{:.0f}"),
                        "mostly for": most,
                    }
                )
        yield rows


def _train(name: str, folder: Path, home: Home, computing_s: float) -> Stalls:
    """One cold epoch."""
    if name == "dieselfs, library":
        drop_caches()
        with FileDataset("dl://bench", loader=len, home=home.folder) as dataset:
            return _epoch(dataset, computing_s)
    if name == "files":
        drop_caches()
        with FileDataset(folder / "tree", loader=len) as dataset:
            return _epoch(dataset, computing_s)
    drop_caches()
    with mounted(home, folder / "mount"), FileDataset(folder / "mount", loader=len) as dataset:
        return _epoch(dataset, computing_s)


def _epoch(dataset: FileDataset, computing_s: float) -> Stalls:
    sampler = ChunkShuffleBatchSampler(dataset, _BATCH, seed=1)
    for _ in sampler.consumed(DataLoader(dataset, batch_sampler=sampler, num_workers=_WORKERS)):
        time.sleep(computing_s)
    return sampler.stalls
