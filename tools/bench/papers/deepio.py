"""Orders of DeepIO: throughput from a slow store, and how random each order is (figure 13 and table I of DeepIO).

Batches are read ahead through the library, with memory for a quarter of the dataset. The store is a local one behind a
pipe of a certain rate: after each read, the reader sleeps as long as its bytes would have taken.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.harness.figures import Row, Scale
from bench.harness.forms import DATASET, make_tree
from dieselfs.dataset import Dataset
from dieselfs.dataset.batches import BatchReader, ListDraw, opportunistic_batches
from dieselfs.shuffle.order import chunks_of
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.quality import mean_distance_moved, measure_served, order_entropy_ratio, repeats
from dieselfs.shuffle.spec import ReaderSpec
from lab.server import running_server, upload

RATES = (50, 100, 200)
"""Of the store, MB a second."""
FILE_BYTES = 16_000
FULL_FILES, QUICK_FILES = 12_000, 2_000
BATCH, AHEAD = 128, 4
MEMORY_SHARE = 0.25
COMPUTE_MS = (0, 10, 50)
"""A batch's training, in the table of overlap."""


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


def deepio(folder: Path, scale: Scale) -> Generator[Iterable[Row]]:
    files = QUICK_FILES if scale.is_quick else FULL_FILES
    source = folder / "source"
    make_tree(source, files, FILE_BYTES)
    total = files * FILE_BYTES
    # Chunks that a server shares would not come through the pipe.
    with running_server(folder / "server", ["--shared-memory", "0"]) as server:
        settings = server.settings()
        with Dataset(settings, DATASET, must_exist=False) as data:
            upload(data, source)
        rounds = min(scale.rounds, 3)

        def run(order: str, rate: float, compute_ms: float) -> _Epoch:
            with Dataset(settings, DATASET, memory_bytes=int(MEMORY_SHARE * total)) as data:
                return _epoch(data, readers(total)[order], rate, compute_ms)

        yield _rate_rows(run, total, rounds)
        yield _overlap_rows(run, rounds)


def readers(total: int) -> dict[str, _Reader]:
    """The orders, each with the reader of its batches and its entropy ratio."""
    buffer_bytes = int(MEMORY_SHARE * total)

    def opportunistic(files: SlowFiles, plan: Plan) -> tuple[BatchReader, Callable[[], float]]:
        batches = opportunistic_batches(files, plan, ReaderSpec(), BATCH, buffer_bytes=buffer_bytes)
        return batches, lambda: measure_served(plan, batches.log).entropy_ratio

    def planned(files: SlowFiles, plan: Plan) -> tuple[BatchReader, Callable[[], float]]:
        chunks = int(np.count_nonzero(plan.layout.counts))
        entropy = order_entropy_ratio(len(plan), chunks, plan.spec.group_chunks)
        return BatchReader(files, ListDraw(plan.nodes(), BATCH, AHEAD)), lambda: entropy

    def grouped(files: SlowFiles, plan: Plan) -> tuple[BatchReader, Callable[[], float]]:
        chunks = int(np.count_nonzero(plan.layout.counts))
        group = max(int(chunks * MEMORY_SHARE / 2), 1)
        return planned(files, Plan(plan.snapshot, replace(plan.spec, group_chunks=group), plan.layout))

    return {
        "order of the store": lambda files, plan: (
            BatchReader(files, ListDraw(store_order(plan)[0], BATCH, AHEAD)),
            lambda: 0.0,
        ),
        "opportunistic": opportunistic,
        "chunk-wise, groups of an eighth": grouped,
        "ordered: a full shuffle": planned,
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


def _rate_rows(run: Callable[[str, float, float], _Epoch], total: int, rounds: int) -> Iterator[Row]:
    for order in readers(total):
        row: dict[str, str] = {f"{total / 1e6:.0f} MB, memory for {MEMORY_SHARE:.0%}": order}
        for rate in RATES:
            epochs = [run(order, rate, 0) for _ in range(rounds)]
            row[f"MB/s of a store of {rate}"] = (
                f"{total / 1e6 / median(one.duration_s for one in epochs):.0f}"
            )
        last = epochs[-1]
        yield row | {
            "fetched": f"{last.fetched / total:.2f} x",
            "entropy ratio": f"{last.entropy:.0%}",
            "mean distance": f"{mean_distance_moved(last.places):.0%}",
            "chunk repeats": f"{repeats(last.chunks):.0%}",
        }


def _overlap_rows(run: Callable[[str, float, float], _Epoch], rounds: int) -> Iterator[Row]:
    rate = RATES[1]
    for order in readers(1):
        row: dict[str, str] = {f"seconds for an epoch, store of {rate} MB/s": order}
        for compute_ms in COMPUTE_MS:
            found = median(run(order, rate, compute_ms).duration_s for _ in range(rounds))
            row[f"{compute_ms} ms a batch"] = f"{found:.2f}"
        yield row
