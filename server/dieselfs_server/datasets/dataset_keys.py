"""The keys of encrypted datasets: for each a record of the object store, which clients make. Blocks.

A server cannot use it. It only refuses to store in an encrypted dataset what was not encrypted with its key. The record
survives the loss of all metadata, and is all that `dlcmd erase` has to destroy.
"""

import time
from collections.abc import Callable
from math import inf

from dieselfs.encryption.key_record import KeyRecord
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput
from dieselfs.records import DatasetRecord
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.versions import VersionedRecord

VERSIONS_KEPT = 16
"""Versions of a record; all but the newest are empty, as they had keys of former recipients."""
KNOWN_S = 5.0
"""For so long, chunks of a dataset that has chunks are stored without reading its record again. It gets a key only
after all its chunks were deleted and purged, which takes longer, and never another one. After the key was destroyed,
other servers may store chunks for so long.
"""


class DatasetKeys:
    """The records of keys. Thread-safe. Of two changes of a record at once, also by two servers, one is refused."""

    def __init__(self, store: ObjectStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._known: dict[
            bytes, tuple[float, KeyRecord]
        ] = {}  # until when; one item is set or read at a time

    def _versions(self, dataset_id: bytes) -> VersionedRecord:
        return VersionedRecord(self._store, f"keys-{dataset_id.hex()}-", VERSIONS_KEPT, is_secret=True)

    def get(self, dataset_id: bytes) -> bytes:
        """The record, empty if the dataset is not encrypted."""
        return self._versions(dataset_id).newest()[1]

    def put(self, dataset: DatasetRecord, content: bytes, known: bytes) -> None:
        """Create the record (`known` is empty), or replace it, if it is still `known`.

        Raises InvalidInput if the content is no record, or the dataset has chunks and no key; AlreadyExists if there is
        another record than `known`.
        """
        record, versions = _decoded(content), self._versions(dataset.dataset_id)
        number, now = versions.newest()
        if now == known:
            if known and not record.erased_s and record.key_id != _decoded(known).key_id:
                raise InvalidInput(f"dataset {dataset.name} has a key, and keeps it: its files need it")
            if not known and dataset.chunks:
                raise InvalidInput(
                    f"dataset {dataset.name} has files that are not encrypted: put them into a new dataset"
                )
        if now != known or not versions.replace(number, content):
            raise AlreadyExists(f"the keys of dataset {dataset.name} were changed meanwhile: try again")
        self._known.pop(dataset.dataset_id, None)

    def check(self, dataset: DatasetRecord, key_id: bytes) -> None:
        """Raise InvalidInput unless a chunk that was encrypted with this key (empty: with none) may be stored."""
        until_s, wanted = self._known.get(dataset.dataset_id, (-inf, KeyRecord(b"")))
        if self._clock() >= until_s or wanted.key_id != key_id:
            content = self.get(dataset.dataset_id)
            wanted = _decoded(content) if content else KeyRecord(b"")
            if dataset.chunks:  # else it may get a key at any moment
                self._known[dataset.dataset_id] = self._clock() + KNOWN_S, wanted
        if wanted.erased_s:
            raise InvalidInput(
                f"dataset {dataset.name} cannot be written: its key was destroyed by dlcmd erase"
            )
        if wanted.key_id != key_id:
            how = (
                "is encrypted: only clients with its key can write to it"
                if wanted.key_id
                else "is not encrypted"
            )
            raise InvalidInput(f"dataset {dataset.name} {how}; nothing was stored")

    def check_plain(self, dataset: DatasetRecord, what: str) -> None:
        """Raise InvalidInput if the dataset is encrypted, as the server would have to know its key for `what`."""
        if self.get(dataset.dataset_id):
            raise InvalidInput(
                f"dataset {dataset.name} is encrypted, and servers do not have its key: {what}; get the files, and "
                "put them again"
            )

    def drop(self, dataset_id: bytes) -> None:
        """Remove the record, with the dataset."""
        self._versions(dataset_id).remove()
        self._known.pop(dataset_id, None)


def _decoded(content: bytes) -> KeyRecord:
    try:
        return KeyRecord.decode(content)
    except Damaged as error:
        raise InvalidInput(str(error)) from None
