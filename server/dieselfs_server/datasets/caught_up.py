"""A metadata store that catches up with the chunks before it answers, when it may have lost its newest writes.

A Redis that was killed, a replica that took its place, or a restored file lacks what was acknowledged last. Nothing in
it says so, because all of it is as it once was. Two signs show it: `MetadataStore.lineage`, and a generation of a
dataset that is smaller than one seen before. After either, the first call on each dataset applies all its chunks that
are not applied; other calls on it wait, up to WAIT_S.

Snapshots are made through the same store, so they wait too. A chunk that is put meanwhile may be applied first: the
order does not matter. All functions block.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, cast

from dieselfs.errors import Damaged, DieselfsError, Unavailable
from dieselfs.records import DatasetRecord, DatasetUsage
from dieselfs_server.datasets.commit import catch_up_dataset
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore

WAIT_S = 5.0
"""A call waits this long for a dataset that another thread catches up; threads are few."""
TRIES_MAX = 8
"""Tries of a call during each of which the store may have lost writes."""

_WITHOUT_DATASET = frozenset({"common_note", "change_common_note", "condition", "lineage", "close"})
_ONCE = frozenset({"drop_dataset", "change_notes"})
"""Calls whose repetition has another result than the first one."""

_RESTARTED = "the metadata store was restarted during each try; try again later"

log = logging.getLogger(__name__)


def caught_up(
    store: ObjectStore, metadata: MetadataStore, now_ns: Callable[[], int] = time.time_ns
) -> MetadataStore:
    """`metadata` with answers that count all chunks in `store`. Those of before its `lineage` of now are left out: a
    starting server calls `catch_up` for them.
    """
    return cast("MetadataStore", _CaughtUp(store, metadata, now_ns))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is known of a dataset: the lineage in which it was caught up last, and its largest generation since."""

    lineage: int
    generation: int


class _CaughtUp:
    """A `MetadataStore` by `__getattr__`: calls that are not defined here are forwarded by `_call`."""

    def __init__(self, store: ObjectStore, metadata: MetadataStore, now_ns: Callable[[], int]) -> None:
        self._store = store
        self._metadata = metadata
        self._now_ns = now_ns
        self._first = metadata.lineage()
        self._lock = Lock()  # guards the three below
        self._seen: dict[bytes, _Seen] = {}
        self._copies: dict[bytes, int] = {}  # lineage at the start of each rebuild, by the ID of the copy
        self._busy: defaultdict[bytes, Lock] = defaultdict(Lock)  # by dataset; held while it is caught up

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._metadata, name)
        return method if name in _WITHOUT_DATASET else partial(self._call, name, method)

    def _call(
        self, name: str, method: Callable[..., Any], dataset_id: bytes, /, *args: Any, **kwargs: Any
    ) -> Any:
        """A call on a dataset, again if writes may have been lost meanwhile."""
        for _ in range(TRIES_MAX):
            lineage = self._metadata.lineage()
            if self._is_behind(dataset_id, lineage):
                self._wait(dataset_id)
            try:
                result = method(dataset_id, *args, **kwargs)
            except DieselfsError:
                if self._metadata.lineage() == lineage or name in _ONCE:
                    raise
                continue
            if self._metadata.lineage() == lineage or name in _ONCE:
                return result
        raise Unavailable(_RESTARTED)

    def create_dataset(
        self, name: str, dataset_id: bytes, generation: int = 0, updated_ns: int = 0
    ) -> DatasetRecord:
        lineage = self._metadata.lineage()
        record = self._metadata.create_dataset(name, dataset_id, generation, updated_ns)
        with self._lock:
            self._seen[dataset_id] = _Seen(lineage, generation)
        return record

    def dataset(self, name: str) -> DatasetRecord:
        for _ in range(TRIES_MAX):
            record = self._metadata.dataset(name)
            if not self._is_older(record):
                return record
            self._wait(record.dataset_id)
        raise Unavailable(_RESTARTED)

    def datasets(self) -> list[DatasetRecord]:
        return [
            self._listed(record) if self._is_older(record) else record for record in self._metadata.datasets()
        ]

    def _listed(self, record: DatasetRecord) -> DatasetRecord:
        """One that cannot be caught up is listed as it is: its own calls say what fails."""
        try:
            return self.dataset(record.name)
        except DieselfsError as error:
            log.error("dataset %s is listed as it is in the metadata: %s", record.name, error)
            return record

    def usage(self, names: Sequence[str]) -> list[DatasetUsage | None]:
        for _ in range(TRIES_MAX):
            usages = self._metadata.usage(names)
            older = [each.record.dataset_id for each in usages if each and self._is_older(each.record)]
            if not older:
                return usages
            for dataset_id in older:
                self._wait(dataset_id)
        raise Unavailable(_RESTARTED)

    def begin_rebuild(self, dataset_id: bytes, /) -> bytes:
        """Without catching up: a rebuild reads all chunks, also of a dataset whose metadata is damaged."""
        lineage = self._metadata.lineage()
        copy_id = self._metadata.begin_rebuild(dataset_id)
        with self._lock:
            self._copies[copy_id] = lineage
        return copy_id

    def finish_rebuild(self, dataset_id: bytes, /, copy_id: bytes, now_ns: int) -> None:
        with self._lock:
            began = self._copies.pop(copy_id, None)
        if began is not None and began != self._metadata.lineage():
            self._metadata.cancel_rebuild(dataset_id, copy_id)
            raise Unavailable("the metadata store was restarted during the rebuild; run it again")
        self._metadata.finish_rebuild(dataset_id, copy_id, now_ns)

    def cancel_rebuild(self, dataset_id: bytes, /, copy_id: bytes) -> None:
        with self._lock:
            self._copies.pop(copy_id, None)
        self._metadata.cancel_rebuild(dataset_id, copy_id)

    def _is_behind(self, dataset_id: bytes, lineage: int) -> bool:
        with self._lock:
            seen = self._seen.get(dataset_id)
            is_copy = dataset_id in self._copies
        return not is_copy and lineage != (self._first if seen is None else seen.lineage)

    def _is_older(self, record: DatasetRecord) -> bool:
        """Whether the record, just read, may lack writes; one that does not is noted."""
        lineage = self._metadata.lineage()
        with self._lock:
            seen = self._seen.get(record.dataset_id, _Seen(self._first, 0))
            if seen.lineage != lineage or record.generation < seen.generation:
                return True
            self._seen[record.dataset_id] = _Seen(lineage, record.generation)
            return False

    def _wait(self, dataset_id: bytes) -> None:
        """Catch a dataset up, or wait until another thread has. Raises Unavailable."""
        with self._lock:
            busy = self._busy[dataset_id]
        if not busy.acquire(timeout=WAIT_S):
            raise Unavailable(
                "the metadata store may have lost its newest changes, and applies the chunks of this dataset again; "
                "try again later"
            )
        try:
            lineage = self._metadata.lineage()
            found = [each for each in self._metadata.datasets() if each.dataset_id == dataset_id]
            if not found or not self._is_older(found[0]):  # gone, done, or two answers were out of order
                return
            record = found[0]
            log.warning("the metadata of %s may lack its newest changes: comparing its chunks", record.name)
            try:
                applied = catch_up_dataset(self._store, self._metadata, record, self._now_ns(), is_whole=True)
                log.warning("applied %d chunks of %s that the metadata had lost", applied, record.name)
            except Damaged as error:  # fsck and rebuild must still be possible; reads of what is damaged fail
                log.error("dataset %s cannot be caught up: %s", record.name, error)
            with self._lock:
                self._seen[dataset_id] = _Seen(lineage, 0)
        finally:
            busy.release()
