"""Reads what the page shows of datasets and jobs from the stores, and keeps it for seconds. Blocks; thread-safe.

However many people look, a store gets one request of a kind in each interval.
"""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

from dieselfs.chunk.ids import chunk_time_s
from dieselfs.errors import NotFound
from dieselfs.records import DatasetRecord
from dieselfs.rpc.records import TagRecord
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.leases.job_members import FOLDER as JOBS_FOLDER
from dieselfs_server.leases.job_members import Head
from dieselfs_server.leases.lease import Lease
from dieselfs_server.leases.pins import Pin, live_pins
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.web.views import ChunkFacts, FoundJob

DATASETS_S = 2.0
DETAILS_S = 5.0
JOBS_S = 2.0
SCAN_S = 20.0
"""Shortest time between two scans of all datasets for jobs; between them, those are looked at that had one."""
SCAN_SHARE = 0.05
"""A scan may take this share of the time, on the average."""
CHUNKS_KEPT = 16
"""Datasets whose chunks are kept in memory, about 40 bytes for each chunk."""
TAGS_KEPT = 64

Value = TypeVar("Value")


class _Kept(Generic[Value]):
    """The newest `count_max` values, each made at most once in `life_s`; others wait for the one who makes it."""

    def __init__(self, count_max: int, life_s: float, clock: Callable[[], float]) -> None:
        self._count_max = count_max
        self._life_s = life_s
        self._clock = clock
        self._lock = Lock()  # guards the two below
        self._values: OrderedDict[Hashable, tuple[float, Value]] = OrderedDict()
        self._making: defaultdict[Hashable, Lock] = defaultdict(Lock)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        with self._lock:
            making = self._making[key]
        with making:
            with self._lock:
                made_s, value = self._values.get(key, (float("-inf"), None))
            if value is not None and self._clock() - made_s < self._life_s:
                return value
            value = make()
            with self._lock:
                self._values[key] = self._clock(), value
                self._values.move_to_end(key)
                while len(self._values) > self._count_max:
                    oldest, _ = self._values.popitem(last=False)
                    self._making.pop(oldest, None)
            return value


class Facts:
    """`clock`: seconds that do not fall; `now_ns`: since 1970."""

    def __init__(
        self,
        metadata: MetadataStore,
        tags: TagStore,
        now_ns: Callable[[], int] = time.time_ns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metadata = metadata
        self._tags = tags
        self._now_ns = now_ns
        self._clock = clock
        self._datasets: _Kept[list[DatasetRecord]] = _Kept(1, DATASETS_S, clock)
        self._jobs: _Kept[list[FoundJob]] = _Kept(1, JOBS_S, clock)
        self._chunks: _Kept[ChunkFacts] = _Kept(CHUNKS_KEPT, float("inf"), clock)
        self._named: _Kept[list[TagRecord]] = _Kept(TAGS_KEPT, 12 * DETAILS_S, clock)
        self._scan_after_s = float("-inf")  # guarded by `_jobs`, as is the next
        self._with_jobs: set[bytes] = set()

    def datasets(self) -> list[DatasetRecord]:
        """All, ordered by name. Raises Unavailable."""
        return self._datasets.get("", self._metadata.datasets)

    def dataset(self, name: str) -> DatasetRecord:
        """Raises NotFound, Unavailable."""
        return self._metadata.dataset(name)

    def chunks(self, dataset: DatasetRecord) -> ChunkFacts:
        key = dataset.dataset_id, dataset.generation
        return self._chunks.get(
            key, lambda: ChunkFacts.of(self._metadata.chunks(dataset.dataset_id), chunk_time_s)
        )

    def tags(self, dataset: DatasetRecord) -> list[TagRecord]:
        """Ordered by name; as of up to a minute ago if none was added or removed since. Raises Damaged."""
        names = tuple(self._tags.names(dataset.dataset_id))
        key = dataset.dataset_id, names
        return self._named.get(key, lambda: self._tags.all(dataset.name, dataset.dataset_id)) if names else []

    def readers(self, dataset: DatasetRecord) -> list[Pin]:
        return live_pins(self._metadata, dataset.dataset_id, self._now_ns())

    def jobs(self) -> list[FoundJob]:
        """The jobs with members, as of some seconds ago; a new one is found after SCAN_S."""
        return self._jobs.get("", self._find_jobs)

    def _find_jobs(self) -> list[FoundJob]:
        began_s = self._clock()
        is_scan = began_s >= self._scan_after_s
        found: list[FoundJob] = []
        for dataset in self.datasets():
            if is_scan or dataset.dataset_id in self._with_jobs:
                found += self.jobs_of(dataset)
        if is_scan:
            took_s = self._clock() - began_s
            self._scan_after_s = self._clock() + max(SCAN_S, took_s / SCAN_SHARE)
            names = {job.dataset for job in found}
            self._with_jobs = {each.dataset_id for each in self.datasets() if each.name in names}
        return found

    def jobs_of(self, dataset: DatasetRecord) -> list[FoundJob]:
        """Of one dataset, now."""
        parts: defaultdict[tuple[str, str], dict[str, bytes]] = defaultdict(dict)
        with suppress(NotFound):  # it was dropped just now
            for name, note in self._metadata.notes_below(dataset.dataset_id, JOBS_FOLDER).items():
                job, fingerprint, node = name.removeprefix(JOBS_FOLDER).split("/", 2)
                parts[job, fingerprint][node] = note
        now_ns, found = self._now_ns(), []
        for (job, fingerprint), notes in parts.items():
            head = notes.pop("", None)
            leases = {node: Lease.of(note) for node, note in notes.items()}
            if head is not None and any(lease.expires_ns > now_ns for lease in leases.values()):
                found.append(FoundJob(dataset.name, job, fingerprint, Head.of(head), leases))
        return found
