"""Reading in chunk-wise order with memory for a part of the dataset, beside all in the memory of a job, and all in the
own memory: section 6.5 of DIESEL.

One node of a network reads batches through the library, over TLS. The kernel's caches are dropped before each run, but
what a job or the library holds remains. This module starts processes.
"""

from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import SMALL_FILE_BYTES, SourceTree, drop_caches
from bench.harness.readers import Work, get_batches, read_together
from bench.jobs.pool_hosts import DATASET, RunningJob, Stage, on_host, running_job, running_stage
from dieselfs.dataset import Dataset
from dieselfs.limits import CHUNK_TARGET_BYTES
from lab.cluster import Cluster

LITTLE, JOB, ALL = "memory for an eighth", "all in the memory of a job", "all in memory"
NODES = 4
FILES, QUICK_FILES = 65_536, 8_192
"""64 and 8 chunks, whatever the share of the data: fewer do not make several groups."""
MEMORY_SHARE, GROUPS = 8, 16
BATCH = 256


def little_memory(folder: Path, scale: Scale) -> Generator[Trial]:
    """Raises Unsuitable."""
    tree = SourceTree(folder / "source", QUICK_FILES if scale.is_quick else FILES, SMALL_FILE_BYTES)
    little_bytes = max(tree.size_bytes // MEMORY_SHARE, 4 * CHUNK_TARGET_BYTES)
    group = max(tree.size_bytes // CHUNK_TARGET_BYTES // GROUPS, 1)
    with running_stage(tree, NODES) as stage, running_job(stage, 2 * tree.size_bytes) as job:
        job.load()
        epochs = {
            LITTLE: lambda: _opened(stage, little_bytes),
            JOB: lambda: job.connect(little_bytes),
            ALL: lambda: _opened(stage, 2 * tree.size_bytes),
        }
        sides = [
            Side(
                name,
                partial(_run, stage, job, opened, group, name == ALL),
                tree.files,
                "files",
                tree.size_bytes,
            )
            for name, opened in epochs.items()
        ]
        yield Trial(f"{tree.title}, chunk-wise order, groups of {group} chunks", sides, scale.rounds, ALL)


def _opened(stage: Stage, memory_bytes: int) -> Dataset:
    """Of no job. Called in a process with a host's environment."""
    cluster: Cluster = stage.cluster
    return Dataset(cluster.settings(stage.hosts[0]), DATASET, memory_bytes=memory_bytes)


def _run(stage: Stage, job: RunningJob, opened: Callable[[], Dataset], group: int, is_held: bool) -> Run:
    """`is_held`: the library has read everything before."""

    def reader() -> Work:
        data = opened()
        if is_held:
            _epoch(data, group, 0)
        drop_caches()
        return partial(_epoch, data, group, 1)

    (storage,) = stage.cluster.storages
    processes = {"daemons": [each.pid for each in job.daemons], "server": [storage.server.process.pid]}
    return read_together([partial(on_host, stage.hosts[0], reader)], stage.tree.files, processes)


def _epoch(data: Dataset, group: int, epoch: int) -> int:
    return get_batches(data.get_many, BATCH, data.plan(1, epoch, group).share().paths)
