"""Which datasets there are: what the metadata store says, and what the chunks say when it has lost its
memory.

Reading chunks needs a dataset's ID and nothing else of the metadata. So mounts that are up go on reading
while the metadata store is away or empty; only what needs metadata is refused, with the way out of it. A store
that is silent keeps whoever asks it waiting, so that reads ask one that has failed only now and then.

All methods block.
"""

import logging
from collections.abc import Callable
from threading import Lock
from time import monotonic

from dieselfs.errors import Damaged, NotFound, Unavailable
from dieselfs.limits import METADATA_AWAY_S
from dieselfs.meta.records import DatasetRecord
from dieselfs_server.commit import read_header
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.pins import Pin, live_pins
from dieselfs_server.store.interface import ObjectStore

SCAN_INTERVAL_S = 5.0
"""Looking for datasets in the object store is not done more often; whoever asks in between gets the last
answer.
"""

REBUILD_HOLDER = "rebuild"
"""Holder of the pin that marks a dataset whose metadata is being rebuilt; it stays if the rebuild is
interrupted.
"""

REBUILD_EXPIRES_NS = (1 << 63) - 1

log = logging.getLogger(__name__)


class Catalog:
    """Finds datasets by name. Remembers the IDs that it has seen; safe between threads."""

    def __init__(
        self, store: ObjectStore, metadata: MetadataStore, clock: Callable[[], float] = monotonic
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._lock = Lock()  # guards the three below
        self._ids: dict[str, bytes] = {}
        self._scanned_s = float("-inf")
        self._away_until_s: float | None = None  # None: the metadata store answered when it was asked last

    def dataset(self, name: str) -> DatasetRecord | None:
        """The dataset's record, None if there is no such dataset.

        Raises Unavailable if the metadata store is away, or has lost a dataset of which there are chunks.
        """
        try:
            record = self._metadata.dataset(name)
        except NotFound:
            if self._stored_id(name) is None:
                return None
            raise Unavailable(
                f"the metadata of dataset {name} is lost; its chunks are there: 'dlcmd rebuild dl://{name}' "
                "makes the metadata from them"
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
        except Unavailable:
            with self._lock:
                self._away_until_s = self._clock() + METADATA_AWAY_S
                known = self._ids.get(name)
            known = known or self._stored_id(name)
            if known is None:
                raise
            return known
        return record.dataset_id if record else None

    def _known_while_away(self, name: str) -> bytes | None:
        """An ID for which the metadata store, which has failed lately, is not to be asked.

        When it is time to ask again, one call does, and waits; the others go on as before.
        """
        with self._lock:
            known, now_s = self._ids.get(name), self._clock()
            if known is None or self._away_until_s is None:
                return None
            if now_s >= self._away_until_s:
                self._away_until_s = now_s + METADATA_AWAY_S
                return None
            return known

    def _stored_id(self, name: str) -> bytes | None:
        """The ID of the dataset called `name`, as the headers of its chunks say."""
        with self._lock:
            if self._clock() - self._scanned_s > SCAN_INTERVAL_S:
                self._ids = self._scan()
                self._scanned_s = self._clock()
            known = self._ids.get(name)
        # It may have been dropped since it was seen, by this server or by another.
        return known if known is not None and any(self._store.list_chunks(known)) else None

    def _scan(self) -> dict[str, bytes]:
        return {
            name: dataset_id
            for dataset_id in self._store.list_datasets()
            if (name := self._name_of(dataset_id))
        }

    def _name_of(self, dataset_id: bytes) -> str | None:
        for chunk_id in self._store.list_chunks(dataset_id):
            try:
                return read_header(self._store, dataset_id, chunk_id)[1].dataset
            except (Damaged, NotFound) as error:
                log.error("%s", error)
        return None

    def check_built(self, dataset: DatasetRecord, now_ns: int) -> None:
        """Raise Unavailable while the metadata of `dataset` is being rebuilt, or was left half rebuilt."""
        pins = live_pins(self._metadata, dataset.dataset_id, now_ns)
        if any(pin.holder == REBUILD_HOLDER for pin in pins):
            raise Unavailable(
                f"the metadata of dataset {dataset.name} is being rebuilt; if no rebuild is running, one was "
                f"interrupted: run 'dlcmd rebuild dl://{dataset.name}' again"
            )


def rebuild_pin(dataset: DatasetRecord) -> Pin:
    """The mark of a dataset that is being rebuilt."""
    return Pin(REBUILD_HOLDER, dataset.generation, dataset.updated_ns, REBUILD_EXPIRES_NS)
