"""Orders of DeepIO: throughput from a slow store, and how random each order is (figures 9 and 13, table I of DeepIO).

Batches are read ahead through the library, with memory for a part of the dataset. The store is a local one behind a
pipe of a certain rate: after each read, the reader sleeps as long as its bytes would have taken.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import DATASET, make_tree
from dieselfs.dataset import Dataset
from dieselfs.dataset.batches import BatchReader, Ring, opportunistic_batches
from dieselfs.settings import Settings
from dieselfs.shuffle.order import chunks_of
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.quality import mean_distance_moved, measure_served, order_entropy_ratio, repeats
from dieselfs.shuffle.spec import ReaderSpec
from lab.server import running_server, upload

RATES = (50, 100, 200)
"""Of the store, MB a second."""
FILE_BYTES = 16_000
FULL_FILES, QUICK_FILES = 12_000, 1_000
BATCH, AHEAD = 128, 4
MEMORY_SHARE = 0.25
SHARES = (0.0, 0.25, 0.5, 1.0)
"""Of the dataset, that the memory holds: R of figure 13. With 0 each file is a request, in the order of a shuffle."""
COMPUTE_MS = (5, 10, 50, 100)
"""A batch's training."""
SIZES = (1_000, 16_000, 256_000)
"""Of files, with as many bytes in all."""
STORE, OPPORTUNISTIC, GROUPED, SHUFFLED = (
    "order of the store",
    "opportunistic",
    "chunk-wise, groups of an eighth",
    "ordered: a full shuffle",
)


class SlowFiles:
    """A dataset whose fetched bytes come through a pipe. Reads of several threads follow each other."""

    def __init__(self, data: Dataset, bytes_per_s: float) -> None:
        self._data, self._bytes_per_s = data, bytes_per_s
        self._lock = Lock()  # guards the two below
        self._fetched_bytes = fetched_bytes(data)
        self._free_s = 0.0

    def get_nodes(
        self, nodes: Sequence[int] | npt.NDArray[np.integer], is_shared_plan: bool = False
    ) -> list[bytes]:
        with self._lock:
            started_s = time.monotonic()
            contents = self._data.get_nodes(nodes, is_shared_plan)
            fetched = fetched_bytes(self._data)
            self._free_s = max(self._free_s, started_s) + (fetched - self._fetched_bytes) / self._bytes_per_s
            self._fetched_bytes = fetched
            time.sleep(max(self._free_s - time.monotonic(), 0))
            return contents


def fetched_bytes(data: Dataset) -> int:
    """What a dataset has fetched from its server."""
    found = data.statistics()["chunk_cache"]
    return int(found["fetched_chunk_bytes"]) + int(found["extent_bytes"])


def store_order(plan: Plan) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The files of a plan in the order of the store, and the chunk of each: both of shape (n,)."""
    nodes = np.sort(plan.nodes().astype(np.int64))
    at, chunks = chunks_of(plan.snapshot, nodes)
    by_chunk = np.lexsort((at, chunks))
    return nodes[at[by_chunk]], chunks[by_chunk]


class _Epoch(NamedTuple):
    duration_s: float
    fetched: int
    places: npt.NDArray[np.int64]
    """Of the files as they were served, in the order of the store."""
    chunks: npt.NDArray[np.int64]
    """Of the files as they were served."""
    entropy: float


_Reader = Callable[[SlowFiles, Plan], tuple[BatchReader, Callable[[], float]]]


def deepio(folder: Path, scale: Scale) -> Generator[Trial]:
    files, rounds = QUICK_FILES if scale.is_quick else FULL_FILES, scale.rounds
    with _running(folder, files, FILE_BYTES) as run:
        total = f"{files * FILE_BYTES / 1e6:.0f} MB"
        for rate in RATES[:1] if scale.is_quick else RATES:
            sides = [run.side(order, order, MEMORY_SHARE, rate) for order in readers(1, 1)]
            title = f"{total}, memory for {MEMORY_SHARE:.0%}, store of {rate} MB/s"
            yield Trial(title, sides, rounds, SHUFFLED)
        for compute_ms in COMPUTE_MS:
            sides = [
                run.side(share_name(share), OPPORTUNISTIC if share else SHUFFLED, share, RATES[1], compute_ms)
                for share in SHARES
            ]
            title = f"{total}, store of {RATES[1]} MB/s, {compute_ms} ms a batch, by memory"
            yield Trial(title, sides, rounds, share_name(SHARES[-1]))
    for size in SIZES:
        if scale.wants(title := f"files of {size:,} bytes, memory for {MEMORY_SHARE:.0%}"):
            count = max(files * FILE_BYTES // size, 4 * BATCH) if size > FILE_BYTES else files
            with _running(folder / str(size), count, size) as run:
                sides = [
                    run.side(order, order, MEMORY_SHARE, RATES[-1]) for order in (OPPORTUNISTIC, SHUFFLED)
                ]
                yield Trial(f"{count:,} {title}", sides, rounds, SHUFFLED)


def share_name(share: float) -> str:
    return f"R = {share:g}"


@dataclass(frozen=True, slots=True)
class _Running:
    """A dataset on a server."""

    settings: Settings
    files: int
    file_bytes: int

    def side(self, name: str, order: str, share: float, rate: float, compute_ms: float = 0) -> Side:
        run = partial(self._run, order, share, rate, compute_ms)
        return Side(name, run, self.files, "files", self.files * self.file_bytes)

    def _run(self, order: str, share: float, rate: float, compute_ms: float) -> Run:
        """With all in memory, the files have been read before."""
        total = self.files * self.file_bytes
        memory_bytes = int(2 * total if share == 1 else share * total)
        with Dataset(self.settings, DATASET, memory_bytes=memory_bytes) as data:
            if share == 1:
                data.get_nodes(data.plan(seed=1, group_chunks=0).nodes())
            epoch = _epoch(data, readers(memory_bytes, total)[order], rate, compute_ms)
        seen = {
            "x fetched": epoch.fetched / total,
            "% entropy": 100 * epoch.entropy,
            "% mean distance": 100 * mean_distance_moved(epoch.places),
            "% chunk repeats": 100 * repeats(epoch.chunks),
        }
        return Run(epoch.duration_s, seen=seen)


@contextmanager
def _running(folder: Path, files: int, file_bytes: int) -> Iterator[_Running]:
    """A server with a new dataset until the end of the block."""
    tree = make_tree(folder / "source", files, file_bytes)
    # Chunks that a server shares would not come through the pipe.
    with running_server(folder / "server", ["--shared-memory", "0"]) as server:
        with Dataset(server.settings(), DATASET, must_exist=False) as data:
            upload(data, tree.folder)
        yield _Running(server.settings(), files, file_bytes)


def readers(buffer_bytes: int, total: int) -> dict[str, _Reader]:
    """The orders, each with the reader of its batches and its entropy ratio."""

    def opportunistic(files: SlowFiles, plan: Plan) -> tuple[BatchReader, Callable[[], float]]:
        batches = opportunistic_batches(files, plan, ReaderSpec(), BATCH, buffer_bytes=buffer_bytes)
        return batches, lambda: measure_served(plan, batches.log).entropy_ratio

    def planned(files: SlowFiles, plan: Plan) -> tuple[BatchReader, Callable[[], float]]:
        chunks = int(np.count_nonzero(plan.layout.counts))
        entropy = order_entropy_ratio(len(plan), chunks, plan.spec.group_chunks)
        return BatchReader(files, Ring.of_list(plan.nodes(), BATCH, AHEAD)), lambda: entropy

    def grouped(files: SlowFiles, plan: Plan) -> tuple[BatchReader, Callable[[], float]]:
        chunks = int(np.count_nonzero(plan.layout.counts))
        group = max(chunks * buffer_bytes // total // 2, 1)
        return planned(files, Plan(plan.snapshot, replace(plan.spec, group_chunks=group), plan.layout))

    return {
        STORE: lambda files, plan: (
            BatchReader(files, Ring.of_list(store_order(plan)[0], BATCH, AHEAD)),
            lambda: 0.0,
        ),
        OPPORTUNISTIC: opportunistic,
        GROUPED: grouped,
        SHUFFLED: planned,
    }


def _epoch(data: Dataset, reader: _Reader, rate: float, compute_ms: float) -> _Epoch:
    plan = data.plan(seed=1, group_chunks=0)
    files = SlowFiles(data, rate * 1e6)
    before = fetched_bytes(data)
    started_s = time.monotonic()
    batches, entropy = reader(files, plan)
    nodes: list[int] = []
    with batches:
        for batch in batches:
            nodes += batch.nodes
            time.sleep(compute_ms / 1e3)
        duration_s = time.monotonic() - started_s
    assert sorted(nodes) == sorted(plan.nodes().tolist()), "not each file once"
    stored, chunks = store_order(plan)
    by_node = np.argsort(stored)
    places = by_node[np.searchsorted(stored[by_node], nodes)]
    return _Epoch(duration_s, fetched_bytes(data) - before, places, chunks[places], entropy())
