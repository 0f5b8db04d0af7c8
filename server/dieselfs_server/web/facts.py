"""Reads what the page shows of datasets and jobs from the stores, and keeps it for seconds. Blocks; thread-safe.

However many people look, a store gets one request of a kind in each interval, but for the record and the jobs of one
dataset, which are read each time.
"""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Generic, TypeVar

from dieselfs.chunk.ids import chunk_time_s
from dieselfs.cluster.node_progress import NodeProgress
from dieselfs.errors import Damaged, NotFound
from dieselfs.names import printable
from dieselfs.records import DatasetRecord, FileRecord
from dieselfs.rpc.limit_kinds import UsageRecord
from dieselfs.rpc.records import TagRecord
from dieselfs_server.admission.usage import Usages
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.leases.lease import JOBS_FOLDER, Head, Lease, Pin, live_pins, progress_of
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.web.views import ChunkFacts, FoundJob, Told

DATASETS_S = 2.0
DETAILS_S = 5.0
CHUNKS_S = 30.0
TAG_S = 60.0
"""Tags rarely change, and each one is a snapshot to read and verify."""
JOBS_S = 2.0
SCAN_S = 20.0
"""Shortest time between two scans of all datasets for jobs; between them, those are looked at that had one."""
SCAN_SHARE = 0.05
"""A scan may take this share of the time, on the average."""
CHUNKS_KEPT = 16
"""Datasets whose chunks are kept in memory, about 40 bytes for each chunk."""
USERS_S = 10.0
DETAILS_KEPT = 64
"""Datasets whose tag names, readers and usage are kept, and users whose usage is."""
TAGS_KEPT = 1024

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

    def get(
        self, key: Hashable, make: Callable[[], Value], is_same: Callable[[Value], bool] = lambda _: False
    ) -> Value:
        """`is_same`: whether an older value still holds."""
        with self._lock:
            making = self._making[key]
        with making:
            with self._lock:
                made_s, value = self._values.get(key, (float("-inf"), None))
            if value is not None and (self._clock() - made_s < self._life_s or is_same(value)):
                return value
            try:
                value = make()
            except BaseException:
                with self._lock:
                    if key not in self._values:
                        self._making.pop(key, None)
                raise
            with self._lock:
                self._values[key] = self._clock(), value
                self._values.move_to_end(key)
                while len(self._values) > self._count_max:
                    oldest, _ = self._values.popitem(last=False)
                    self._making.pop(oldest, None)
            return value


def _told(found: Mapping[str, tuple[str, bytes, float]], job: str) -> dict[str, Told]:
    """By the node, of one job; without what cannot be read."""
    return {
        name.removeprefix(job): Told(user, progress, age_s)
        for name, (user, encoded, age_s) in found.items()
        if name.startswith(job) and (progress := NodeProgress.of(encoded)) is not None
    }


class Facts:
    """`clock`: seconds that do not fall; `now_ns`: since 1970."""

    def __init__(
        self,
        metadata: MetadataStore,
        tags: TagStore,
        usages: Usages,
        now_ns: Callable[[], int] = time.time_ns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metadata = metadata
        self._tags = tags
        self._usages = usages
        self._now_ns = now_ns
        self._clock = clock
        self._datasets: _Kept[list[DatasetRecord]] = _Kept(1, DATASETS_S, clock)
        self._jobs: _Kept[list[FoundJob]] = _Kept(1, JOBS_S, clock)
        self._chunks: _Kept[tuple[int, ChunkFacts]] = _Kept(CHUNKS_KEPT, CHUNKS_S, clock)
        self._tag_names: _Kept[list[str]] = _Kept(DETAILS_KEPT, DETAILS_S, clock)
        self._tag: _Kept[tuple[str, TagRecord | None]] = _Kept(TAGS_KEPT, TAG_S, clock)
        self._readers: _Kept[list[Pin]] = _Kept(DETAILS_KEPT, DETAILS_S, clock)
        self._usage: _Kept[UsageRecord] = _Kept(DETAILS_KEPT, DETAILS_S, clock)
        self._usage_of_user: _Kept[UsageRecord] = _Kept(DETAILS_KEPT, DETAILS_S, clock)
        self._usage_of_users: _Kept[list[UsageRecord]] = _Kept(1, USERS_S, clock)
        self._scan_after_s = float("-inf")  # guarded by `_jobs`, as is the next
        self._with_jobs: set[bytes] = set()

    def datasets(self) -> list[DatasetRecord]:
        """All, ordered by name. Raises Unavailable."""
        return self._datasets.get("", self._metadata.datasets)

    def dataset(self, name: str) -> DatasetRecord:
        """Raises NotFound, Unavailable."""
        return self._metadata.dataset(name)

    def entry(self, dataset: str, path: bytes) -> FileRecord:
        """Of a live file, folder or link. Raises NotFound, Unavailable."""
        found = self._metadata.lookup(self._metadata.dataset(dataset).dataset_id, path)
        if found is None:
            raise NotFound(f"dl://{dataset}/{printable(path)}: no such file or folder")
        return found

    def chunks(self, dataset: DatasetRecord) -> ChunkFacts:
        """As of up to CHUNKS_S ago, while commits follow each other: all records are read."""

        def read() -> tuple[int, ChunkFacts]:
            chunks = self._metadata.chunks(dataset.dataset_id)
            return dataset.generation, ChunkFacts.of(chunks, chunk_time_s)

        return self._chunks.get(dataset.dataset_id, read, lambda kept: kept[0] == dataset.generation)[1]

    def tags(self, dataset: DatasetRecord) -> list[tuple[str, TagRecord | None]]:
        """Ordered by name, None for a damaged one; each as of up to TAG_S ago."""
        found, dataset_id = [], dataset.dataset_id
        for name in self._tag_names.get(dataset_id, lambda: self._tags.names(dataset_id)):
            with suppress(NotFound):  # it was removed just now
                found.append(self._tag.get((dataset_id, name), partial(self._read_tag, dataset, name)))
        return found

    def _read_tag(self, dataset: DatasetRecord, name: str) -> tuple[str, TagRecord | None]:
        try:
            return name, self._tags.record(dataset.name, dataset.dataset_id, name)
        except Damaged:
            return name, None

    def readers(self, dataset: DatasetRecord) -> list[Pin]:
        """As of some seconds ago."""
        return self._readers.get(
            dataset.dataset_id, lambda: live_pins(self._metadata, dataset.dataset_id, self._now_ns())
        )

    def usage(self, dataset: DatasetRecord) -> UsageRecord:
        """As of some seconds ago. Raises NotFound, Unavailable."""

        def read() -> UsageRecord:
            found = self._usages.of_datasets([dataset.name])
            if not found:
                raise NotFound(f"dataset {dataset.name} was dropped")
            return found[0]

        return self._usage.get(dataset.dataset_id, read)

    def usage_of_user(self, user: str) -> UsageRecord:
        """As of some seconds ago. Raises Unavailable."""
        return self._usage_of_user.get(user, lambda: self._usages.of_users([user])[0])

    def usage_of_users(self) -> list[UsageRecord]:
        """Of all, as of some seconds ago. Raises Unavailable."""
        return self._usage_of_users.get("", self._usages.of_users)

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
        """Of one dataset, now: a job that `jobs` has just found is there."""
        parts: defaultdict[tuple[str, str], dict[str, bytes]] = defaultdict(dict)
        with suppress(NotFound):  # it was dropped just now
            for name, note in self._metadata.notes_below(dataset.dataset_id, JOBS_FOLDER).items():
                job, fingerprint, node = name.removeprefix(JOBS_FOLDER).split("/", 2)
                parts[job, fingerprint][node] = note
        now_ns, found = self._now_ns(), []
        told = progress_of(self._metadata, dataset.dataset_id, now_ns) if parts else {}
        for (job, fingerprint), notes in parts.items():
            head = notes.pop("", None)
            leases = {node: Lease.of(note) for node, note in notes.items()}
            if head is not None and any(lease.expires_ns > now_ns for lease in leases.values()):
                found.append(
                    FoundJob(
                        dataset.name,
                        job,
                        fingerprint,
                        Head.of(head),
                        leases,
                        _told(told, f"{job}/{fingerprint}/"),
                    )
                )
        return found
