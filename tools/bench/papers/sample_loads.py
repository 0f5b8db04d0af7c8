"""Loads the batches of a training for real: misses from a server over a link, hits from the memory of the node. This
module starts processes, reads and writes files, and waits for sockets.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from bench.harness.forms import can_drop_caches, drop_caches, make_tree
from dieselfs.dataset import Dataset
from dieselfs.limits import MIB
from dieselfs.samples.sample_store import SampleStore, new_name
from lab.cluster import running_cluster
from lab.network import Network
from lab.server import upload

SAMPLE_BYTES = 12_000
MISS_MS = 0.25
"""Of a miss, in a model: as from a store over a network with a few loaders."""
LINK_BYTES_PER_S = 125_000_000
_DATASET = "samples"
_LIBRARY_BYTES = 1 * MIB
"""So little that the library is no second cache."""


class Loads(Protocol):
    """How batches are loaded."""

    def loads_ms(self, served: Sequence[int], batch: int, misses: Sequence[int]) -> list[float]:
        """How long each batch of an epoch takes to load. `misses`: of each batch; which of its samples they are does
        not matter.
        """
        ...


class ModelLoads:
    """Each miss takes MISS_MS, and a hit no time."""

    def loads_ms(self, served: Sequence[int], batch: int, misses: Sequence[int]) -> list[float]:
        return [missed * MISS_MS for missed in misses]


class SampleLoads:
    """`paths`: by sample; `store`: has all samples."""

    def __init__(self, dataset: Dataset, store: SampleStore, paths: Sequence[str]) -> None:
        self._dataset, self._store, self._paths = dataset, store, paths

    def loads_ms(self, served: Sequence[int], batch: int, misses: Sequence[int]) -> list[float]:
        """As of `Loads`. Begins with cold caches of the kernel, where this process may drop them."""
        if can_drop_caches():
            drop_caches("1")
        found = []
        for number, missed in enumerate(misses):
            samples = served[number * batch : (number + 1) * batch]
            began_s = time.perf_counter()
            if missed:
                self._dataset.get_many([self._paths[sample] for sample in samples[:missed]])
            for sample in samples[missed:]:
                assert self._store.read(sample) is not None
            found.append((time.perf_counter() - began_s) * 1e3)
        return found


@contextmanager
def sample_loads(folder: Path, samples: int, sample_bytes: int = SAMPLE_BYTES) -> Iterator[SampleLoads]:
    """A server with this many samples, behind a link, until the end of the block, which is in a network namespace.
    `folder`: a new one. Raises Unsuitable.
    """
    tree = make_tree(folder / "source", samples, sample_bytes)
    paths = tree.paths()
    store = SampleStore(new_name())
    try:
        for sample, path in enumerate(paths):
            store.write(sample, (tree.folder / path).read_bytes())
        with Network() as net, running_cluster(net, servers=1) as cluster:
            host = net.host("trainer")
            settings = cluster.settings(host)
            with host.inside(), Dataset(settings, _DATASET, must_exist=False) as dataset:
                upload(dataset, tree.folder)
            net.rate(cluster.storages[0].host, LINK_BYTES_PER_S)
            with host.inside(), Dataset(settings, _DATASET, memory_bytes=_LIBRARY_BYTES) as dataset:
                dataset.get(paths[0])  # connects, and fetches the snapshot
                yield SampleLoads(dataset, store, paths)
    finally:
        store.close()
