"""The datasets by name: from the metadata store or, if it has lost them, from the records of their names.

To read chunks, a server needs only the dataset's ID. So running mounts still read while the metadata store is away or
empty; only requests that need metadata fail, with an error that names the remedy. A store that does not answer delays
its caller, so after a failure reads use the cached ID, and only one call in METADATA_AWAY_S asks the store.

All methods block.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from time import monotonic

from dieselfs.errors import Damaged, NotFound, Unavailable
from dieselfs.limits import METADATA_AWAY_S
from dieselfs.records import DatasetRecord
from dieselfs_server.datasets.commit import read_header
from dieselfs_server.datasets.dataset_names import DatasetNames
from dieselfs_server.datasets.references import without_remains
from dieselfs_server.leases.lease import PINS_FOLDER, Pin, live_pins
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore

SCAN_INTERVAL_S = 5.0
"""Shortest time between two scans of the object store for datasets; calls in between use the last result."""

REBUILD_HOLDER = "rebuild"
"""Holder of the pin that marks a dataset whose metadata is being rebuilt; an interrupted rebuild leaves it."""

REBUILD_EXPIRES_NS = (1 << 63) - 1

log = logging.getLogger(__name__)


class Catalog:
    """Finds datasets by name, and caches their IDs. Thread-safe."""

    def __init__(
        self, store: ObjectStore, metadata: MetadataStore, clock: Callable[[], float] = monotonic
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._names = DatasetNames(store)
        self._lock = Lock()  # guards the two below
        self._ids: dict[str, bytes] = {}
        self._away_until_s: float | None = None  # None: the last call to the metadata store succeeded
        self._scanning = Lock()  # guards the two below; held during a scan
        self._lost: dict[str, bytes] = {}
        self._scanned_s = float("-inf")

    def dataset(self, name: str) -> DatasetRecord | None:
        """The dataset's record, None if there is no such dataset.

        Raises Unavailable if the metadata store is away, or has lost a dataset that has chunks.
        """
        try:
            record = self._metadata.dataset(name)
        except NotFound:
            if (found := self._stored_id(name, self._named)) is None:
                return None
            with self._lock:
                self._ids[name] = (
                    found  # another server may have dropped the one of before, and made this one
                )
            raise Unavailable(
                f"the metadata of dataset {name} is lost, but its chunks exist; rebuild it: dlcmd rebuild dl://{name}"
            ) from None
        with self._lock:
            self._ids[name] = record.dataset_id
            self._away_until_s = None
        return record

    def dataset_id(self, name: str) -> bytes | None:
        """The dataset's ID, with or without metadata; None if there is no such dataset."""
        known = self._known_while_away(name)
        if known is not None:
            return known
        try:
            record = self.dataset(name)
        except (Unavailable, Damaged):
            self.note_silence()
            known = self.known_id(name) or self._stored_id(name, dict)
            if known is None:
                raise
            return known
        return record.dataset_id if record else None

    def owner_id(self, name: str) -> bytes | None:
        """As `dataset_id`, but never a cached ID, nor that of another dataset than the name's record says: what a
        rebuild makes again. Raises Unavailable, Damaged.
        """
        try:
            record = self.dataset(name)
        except (Unavailable, Damaged):
            if (stored := self._stored_id(name, dict)) is None:
                raise
            return stored
        with suppress(Damaged):  # of the name's record: the metadata is left
            return record and (self._names.find(name) or record.dataset_id)
        return record and record.dataset_id

    def known_id(self, name: str) -> bytes | None:
        """The cached ID, if there is one. Does not block."""
        with self._lock:
            return self._ids.get(name)

    def note_silence(self) -> None:
        """Let reads use the cached IDs for METADATA_AWAY_S, as the metadata store has not answered in time."""
        with self._lock:
            self._away_until_s = self._clock() + METADATA_AWAY_S

    def _known_while_away(self, name: str) -> bytes | None:
        """The cached ID while the metadata store is away; None if the caller must ask the store.

        After METADATA_AWAY_S one call asks the store, and may wait; the others still use the cached ID.
        """
        with self._lock:
            known, now_s = self._ids.get(name), self._clock()
            if known is None or self._away_until_s is None:
                return None
            if now_s >= self._away_until_s:
                self._away_until_s = now_s + METADATA_AWAY_S
                return None
            return known

    def _stored_id(self, name: str, known: Callable[[], Mapping[bytes, str]]) -> bytes | None:
        """The ID of the dataset called `name` if it has chunks: by its record, else from the headers of chunks; `known`
        is that of `_scan`.
        """
        dataset_id = self._names.find(name)
        if dataset_id is None:
            with self._scanning:
                if self._clock() - self._scanned_s > SCAN_INTERVAL_S:
                    self._lost = self._scan(known())
                    self._scanned_s = self._clock()
                dataset_id = self._lost.get(name)
        # This or another server may have dropped it since the scan.
        return dataset_id if dataset_id is not None and any(self._store.list_chunks(dataset_id)) else None

    def _named(self) -> dict[bytes, str]:
        """The names of the datasets that have metadata, by ID."""
        return {each.dataset_id: each.name for each in self._metadata.datasets()}

    def _built(self) -> dict[bytes, str]:
        """Those of them whose metadata is not being rebuilt."""
        named = self._named()
        return {dataset_id: name for dataset_id, name in named.items() if not self._is_marked(dataset_id)}

    def _scan(self, known: Mapping[bytes, str]) -> dict[str, bytes]:
        """The datasets that have chunks, without the `known` ones, by name: that of their record, else the one in the
        headers of their chunks. The latter is left out if two of them have it, or if it is known or has a record: one
        of them could be a forgery.

        While all are known, this reads neither records nor chunks.
        """
        lost = without_remains(self._store, list(self._store.list_datasets(known)))
        if not lost:
            return {}
        named = {dataset_id: name for name, dataset_id in self._names.all().items()}
        found: dict[str, bytes] = {}
        refused = {*named.values(), *known.values()}
        for dataset_id in lost:
            if dataset_id in named:
                continue
            name = self._name_of(dataset_id)
            if name in found or name in refused:
                log.error("dataset %s has chunks with the name of another, %s", dataset_id.hex(), name)
                found.pop(name, None)
                refused.add(name)
            elif name is not None:
                found[name] = dataset_id
        return found | {named[dataset_id]: dataset_id for dataset_id in lost if dataset_id in named}

    def lost_datasets(self) -> list[str]:
        """Names of the datasets that have chunks, but no metadata, or not all as a rebuild has not ended; sorted.

        Raises Unavailable.
        """
        lost = self._scan(self._built())
        built = self._built() if lost else {}  # some may have been made, or dropped, meanwhile
        return sorted(
            name
            for name, dataset_id in lost.items()
            if dataset_id not in built and any(self._store.list_chunks(dataset_id))
        )

    def _is_marked(self, dataset_id: bytes) -> bool:
        with suppress(NotFound):  # dropped since
            return self._metadata.notes(dataset_id, [PINS_FOLDER + REBUILD_HOLDER]) != [None]
        return True

    def _name_of(self, dataset_id: bytes) -> str | None:
        for chunk_id in self._store.list_chunks(dataset_id):
            try:
                return read_header(self._store, dataset_id, chunk_id)[1].dataset
            except (Damaged, NotFound) as error:
                log.error("%s", error)
        return None

    def check_built(self, dataset: DatasetRecord, now_ns: int) -> None:
        """Raise Unavailable if a rebuild of the metadata of `dataset` is running or was interrupted."""
        pins = live_pins(self._metadata, dataset.dataset_id, now_ns)
        if any(pin.holder == REBUILD_HOLDER for pin in pins):
            raise Unavailable(
                f"the metadata of dataset {dataset.name} is being rebuilt; if no rebuild is running, one was "
                f"interrupted: run it again: dlcmd rebuild dl://{dataset.name}"
            )


def rebuild_pin(generation: int, updated_ns: int) -> Pin:
    """The mark of a dataset that is being rebuilt."""
    return Pin(REBUILD_HOLDER, generation, updated_ns, REBUILD_EXPIRES_NS)
