"""The keys of encrypted datasets: for each a record of the object store, which clients make. Blocks.

A server cannot use it. It only refuses to store in an encrypted dataset what was not encrypted with its key. The record
survives the loss of all metadata, and is all that `dlcmd erase` has to destroy.
"""

import time
from collections.abc import Callable
from math import inf
from threading import Lock

from dieselfs.encryption.key_record import KeyRecord
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput
from dieselfs.records import DatasetRecord
from dieselfs_server.store.interface import ObjectStore

_PREFIX = "keys-"
PLAIN_S = 5.0
"""For so long, chunks of a dataset that has no key, and has chunks, are stored without reading its record again: such a
dataset gets a key only after all its chunks were deleted and purged, which takes longer.
"""


class DatasetKeys:
    """The records of keys. Thread-safe. Servers do not exclude each other: of two changes of the recipients at the same
    time, one may be lost, but a dataset never gets a second key.
    """

    def __init__(self, store: ObjectStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._lock = Lock()  # guards changes by this server
        self._plain_until_s: dict[bytes, float] = {}  # one item is set or read at a time

    def get(self, dataset_id: bytes) -> bytes:
        """The record, empty if the dataset is not encrypted."""
        return self._store.get_record(_name(dataset_id)) or b""

    def put(self, dataset: DatasetRecord, content: bytes, known: bytes) -> None:
        """Create the record (`known` is empty), or replace it, if it is still `known`.

        Raises InvalidInput if the content is no record, or the dataset has chunks and no key; AlreadyExists if there is
        another record than `known`.
        """
        record, name = _decoded(content), _name(dataset.dataset_id)
        with self._lock:
            now = self.get(dataset.dataset_id)
            if now != known:
                raise AlreadyExists(f"the keys of dataset {dataset.name} were changed meanwhile: try again")
            if known:
                if not record.erased_s and record.key_id != _decoded(known).key_id:
                    raise InvalidInput(f"dataset {dataset.name} has a key, and keeps it: its files need it")
                self._store.put_record(name, content)
            elif dataset.chunks:
                raise InvalidInput(
                    f"dataset {dataset.name} has files that are not encrypted: put them into a new dataset"
                )
            elif not self._store.create_record(name, content):
                raise AlreadyExists(f"dataset {dataset.name} has keys already: try again")

    def check(self, dataset: DatasetRecord, key_id: bytes) -> None:
        """Raise InvalidInput unless a chunk that was encrypted with this key (empty: with none) may be stored."""
        dataset_id = dataset.dataset_id
        if not key_id and dataset.chunks and self._clock() < self._plain_until_s.get(dataset_id, -inf):
            return
        content = self.get(dataset_id)
        if not content and dataset.chunks:
            self._plain_until_s[dataset_id] = self._clock() + PLAIN_S
        wanted = _decoded(content) if content else KeyRecord(b"")
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
        self._store.delete_record(_name(dataset_id))
        self._plain_until_s.pop(dataset_id, None)


def _name(dataset_id: bytes) -> str:
    return _PREFIX + dataset_id.hex()


def _decoded(content: bytes) -> KeyRecord:
    try:
        return KeyRecord.decode(content)
    except Damaged as error:
        raise InvalidInput(str(error)) from None
