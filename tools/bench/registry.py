"""The benchmarks by their names: a new one is its module and a row of this table. No I/O of its own."""

from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.harness.figures import Scale

BENCHMARKS = {
    "upload": "storage",
    "snapshot": "storage",
    "one_file_more": "storage",
    "selection": "storage",
    "listing": "mounts",
    "reading": "mounts",
    "epochs": "mounts",
    "reclaim": "mounts",
    "calls": "mounts",
    "programs": "mounts",
    "batches": "mounts",
    "misses": "mounts",
    "idle": "mounts",
    "checkpoints": "mounts",
    "cores": "mounts",
    "resilience": "mounts",
    "encryption": "storage",
    "compression": "storage",
    "rebuild": "storage",
    "copies": "storage",
    "stores": "storage",
    "read_sizes": "storage",
    "requests": "storage",
    "servers": "storage",
    "server_workers": "storage",
    "transfer": "jobs",
    "pool": "jobs",
    "failover": "jobs",
    "weights": "jobs",
    "hit_ratios": "jobs",
    "job_simulation": "simulations",
    "pool_simulation": "simulations",
    "accuracy": "papers",
    "importance": "papers",
    "deepio": "papers",
    "loading": "papers",
    "paper_training": "papers",
    "exposed_io": "papers",
    "strategies": "papers",
    "lmdbio": "papers",
    "lmdbio_disk": "papers",
    "lmdbio_ceph": "rivals",
    "tokens": "mounts",
    "workers": "mounts",
    "disk": "storage",
    "importance_mount": "papers",
    "prediction": "jobs",
    "metrics": "mounts",
    "little_memory": "papers",
    "paper": "papers",
    "other_papers": "papers",
    "rivals": "rivals",
}
"""The folder of the module of this name; its function of this name is the benchmark."""

ONLY_IF_NAMED = ["paper", "other_papers", "rivals", "one_file_more"]
"""`paper` and `other_papers` run parts of the others, `rivals` takes hours, and `one_file_more` is for much memory."""


def begin(name: str, folder: Path, scale: Scale) -> Generator[Any]:
    """A benchmark in an empty folder: yields its trials and tables. Closing it cleans up."""
    module = import_module(f"bench.{BENCHMARKS[name]}.{name}")
    results: Generator[Any] = getattr(module, name)(folder, scale)
    return results
