"""A metadata store that catches up with the chunks before it answers, when it may have lost its newest writes.

A Redis that was killed, a replica that took its place, or a restored file lacks what was acknowledged last. Nothing in
it shows that, because all of it is as it once was. Two signs show it: `MetadataStore.lineage`, and a generation of a
dataset that is smaller than one seen before. After either, the first call on each dataset applies all its chunks that
are not applied; other calls on it wait, up to WAIT_S.

A server that starts does so as well, with the newest chunks of each dataset: a crash may have left some that are
stored, but not applied. It serves meanwhile. A call on such a dataset helps for WAIT_S at most, then is refused. The
list of datasets and their usage do not wait, nor do notes, which no chunk changes: the list of lost datasets reads
notes of all. `catch_up_next` does the rest, a little of each dataset in turn: one that has thousands of chunks left
delays no other one.

Snapshots are made through the same store, so they wait too. A chunk that is put meanwhile may be applied first: the
order does not matter. All functions block.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock, Semaphore
from typing import Any, cast

from dieselfs.errors import Damaged, DieselfsError, NotFound, Unavailable
from dieselfs.process.state_dirs import locked
from dieselfs.records import DatasetRecord, DatasetUsage, NoteChange
from dieselfs_server.datasets.commit import catch_up_dataset
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore

WAIT_S = 5.0
"""A call waits this long for a dataset that another thread catches up; threads are few."""
WAITING_MAX = 16
"""Calls that wait or help at the same time; further ones are refused at once, so that threads are left for others."""
TURN_S = 0.2
"""How long `catch_up_next` applies chunks of one dataset."""
ERROR_PAUSE_S = 5.0
TRIES_MAX = 8
"""Tries of a call during each of which the store may have lost writes."""

_WITHOUT_DATASET = frozenset({"common_note", "change_common_note", "condition", "lineage", "close"})
_OF_NOTES = frozenset({"notes", "notes_below", "change_notes"})
_ONCE = frozenset({"drop_dataset", "change_notes"})
"""Calls whose repetition has another result than the first one."""

_BEHIND = (
    "the metadata of this dataset may lack its newest changes, after a restart of the server or of the metadata store; "
    "its chunks are being applied again; try again later"
)
_RESTARTED = "the metadata store was restarted during each try; try again later"

log = logging.getLogger(__name__)


def caught_up(
    store: ObjectStore,
    metadata: MetadataStore,
    now_ns: Callable[[], int] = time.time_ns,
    is_starting: bool = False,
    clock: Callable[[], float] = time.monotonic,
    locks: Path | None = None,
) -> MetadataStore:
    """`metadata` with answers that count all chunks in `store`. Those of before its `lineage` of now are left out,
    unless `is_starting`: then `catch_up_next` is to be called. `locks`: a folder of the processes of a server, which
    all start with the same chunks left: one of them at a time applies those of a dataset.
    """
    guarded = _CaughtUp(store, metadata, now_ns, clock, locks)
    if is_starting:
        guarded.starting = {record.dataset_id: _Left(record) for record in metadata.datasets()}
    return cast("MetadataStore", guarded)


def catch_up_next(metadata: MetadataStore) -> float | None:
    """Apply some of the chunks that a starting server, with this result of `caught_up`, finds. Returns for how many
    seconds to pause before the next call; None if none is left. Logs what fails.
    """
    return cast("_CaughtUp", metadata).catch_up_next()


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is known of a dataset: the lineage in which it was caught up last, and its largest generation since."""

    lineage: int
    generation: int


@dataclass(frozen=True, slots=True)
class _Left:
    """A dataset that a starting server has still to catch up; `since_s`: with which chunks it continues."""

    record: DatasetRecord
    since_s: int | None = None


class _CaughtUp:
    """A `MetadataStore` by `__getattr__`: calls that are not defined here are forwarded by `_call`."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        now_ns: Callable[[], int],
        clock: Callable[[], float],
        locks: Path | None,
    ) -> None:
        self._store = store
        self._locks = locks
        self._metadata = metadata
        self._now_ns = now_ns
        self._clock = clock
        self._first = metadata.lineage()
        self._waiting = Semaphore(WAITING_MAX)
        self._lock = Lock()  # guards changes of the four below; one item is read without it
        self.starting: dict[bytes, _Left] = {}  # not caught up since the start
        self._seen: dict[bytes, _Seen] = {}
        self._copies: dict[bytes, int] = {}  # lineage at the start of each rebuild, by the ID of the copy
        self._busy: defaultdict[bytes, Lock] = defaultdict(Lock)  # by dataset; held while it is caught up

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._metadata, name)
        found = method if name in _WITHOUT_DATASET else partial(self._call, name, method)
        self.__dict__[name] = found  # found without this the next time
        return found

    def _call(
        self, name: str, method: Callable[..., Any], dataset_id: bytes, /, *args: Any, **kwargs: Any
    ) -> Any:
        """A call on a dataset, again if writes may have been lost meanwhile."""
        for _ in range(TRIES_MAX):
            lineage = self._metadata.lineage()
            if self._is_behind(name, dataset_id, lineage):
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
        self,
        name: str,
        dataset_id: bytes,
        generation: int = 0,
        updated_ns: int = 0,
        notes: Sequence[NoteChange] = (),
    ) -> DatasetRecord:
        lineage = self._metadata.lineage()
        record = self._metadata.create_dataset(name, dataset_id, generation, updated_ns, notes)
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
            self._listed(record) if self._has_lost(record) else record for record in self._metadata.datasets()
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
            older = [each.record.dataset_id for each in usages if each and self._has_lost(each.record)]
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

    def _is_behind(self, name: str, dataset_id: bytes, lineage: int) -> bool:
        """Whether a call of this name has to wait."""
        if dataset_id in self.starting and name not in _OF_NOTES:
            return True
        seen = self._seen.get(dataset_id)
        if lineage == (self._first if seen is None else seen.lineage):
            return False
        return dataset_id not in self._copies

    def _is_older(self, record: DatasetRecord) -> bool:
        """Whether the record, just read, may lack writes; one that does not is noted."""
        return record.dataset_id in self.starting or self._has_lost(record)

    def _has_lost(self, record: DatasetRecord) -> bool:
        """As `_is_older`, but for what the start of this server has still to apply."""
        lineage = self._metadata.lineage()
        known = self._seen.get(record.dataset_id)
        if known is not None and known.lineage == lineage and known.generation == record.generation:
            return False
        with self._lock:
            seen = self._seen.get(record.dataset_id, _Seen(self._first, 0))
            if seen.lineage != lineage or record.generation < seen.generation:
                return True
            self._seen[record.dataset_id] = _Seen(lineage, record.generation)
            return False

    def _wait(self, dataset_id: bytes) -> None:
        """Catch a dataset up, or wait until another thread has. Raises Unavailable."""
        if not self._waiting.acquire(blocking=False):
            raise Unavailable(_BEHIND)
        try:
            if not self._start(dataset_id, WAIT_S):
                raise Unavailable(_BEHIND)
            self._catch_up(dataset_id)
        finally:
            self._waiting.release()

    def catch_up_next(self) -> float | None:
        with self._lock:
            dataset_id = next(iter(self.starting), None)
            if dataset_id is None:
                return None
            self.starting[dataset_id] = left = self.starting.pop(dataset_id)  # the last one of the next turn
        try:
            self._start(dataset_id, TURN_S)
        except DieselfsError as error:
            log.error("dataset %s is not caught up yet: %s", left.record.name, error)
            return ERROR_PAUSE_S
        return 0.0

    def _start(self, dataset_id: bytes, limit_s: float) -> bool:
        """Apply the chunks that a crash before this start has left, or some of them; whether none is left. The limit is
        exceeded by one chunk at most.
        """
        deadline_s = self._clock() + limit_s
        with self._lock:
            busy = self._busy[dataset_id]
            if dataset_id not in self.starting:
                return True
        if not busy.acquire(timeout=limit_s):
            return False
        try:
            with self._lock:
                left = self.starting.get(dataset_id)
            if left is None:
                return True
            with self._alone(dataset_id, limit_s):
                left_since_s = self._apply_some(left, lambda: self._clock() < deadline_s)
            with self._lock:
                if left_since_s is None:
                    del self.starting[dataset_id]
                else:
                    self.starting[dataset_id] = replace(left, since_s=left_since_s)
            return left_since_s is None
        except BlockingIOError:
            return False
        finally:
            busy.release()

    @contextmanager
    def _alone(self, dataset_id: bytes, limit_s: float) -> Iterator[None]:
        """The block is that of one process of this server. Raises BlockingIOError after the limit; Unavailable."""
        if self._locks is None:
            yield
            return
        with ExitStack() as stack:
            path = self._locks / f"{dataset_id.hex()}.lock"
            try:
                self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(locked(path, limit_s))
            except BlockingIOError:
                raise
            except OSError as error:
                raise Unavailable(
                    f"the server cannot lock a file in {self._locks}: {error.strerror}"
                ) from None
            stack.callback(path.unlink, missing_ok=True)
            yield

    def _apply_some(self, left: _Left, more: Callable[[], bool]) -> int | None:
        """The time from which on chunks are left; None if there are none."""
        record, since_s = left.record, None
        try:
            now_ns = self._now_ns()
            applied, since_s = catch_up_dataset(
                self._store, self._metadata, record, now_ns, left.since_s, more
            )
            if applied:
                log.info("applied %d chunks of %s that were stored, but not applied", applied, record.name)
        except NotFound:
            log.info("dataset %s was dropped", record.name)
        except Damaged as error:  # fsck and rebuild must still be possible; reads of what is damaged fail
            log.error("dataset %s cannot be caught up: %s", record.name, error)
        return since_s

    def _catch_up(self, dataset_id: bytes) -> None:
        with self._lock:
            busy = self._busy[dataset_id]
        if not busy.acquire(timeout=WAIT_S):
            raise Unavailable(_BEHIND)
        try:
            lineage = self._metadata.lineage()
            found = [each for each in self._metadata.datasets() if each.dataset_id == dataset_id]
            if not found or not self._is_older(found[0]):  # gone, done, or two answers were out of order
                return
            record = found[0]
            log.warning("the metadata of %s may lack its newest changes: comparing its chunks", record.name)
            try:
                now_ns = self._now_ns()
                applied, _ = catch_up_dataset(self._store, self._metadata, record, now_ns, since_s=0)
                log.warning("applied %d chunks of %s that the metadata had lost", applied, record.name)
            except Damaged as error:  # fsck and rebuild must still be possible; reads of what is damaged fail
                log.error("dataset %s cannot be caught up: %s", record.name, error)
            with self._lock:
                self._seen[dataset_id] = _Seen(lineage, 0)
        finally:
            busy.release()
