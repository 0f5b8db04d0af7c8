"""The names of datasets: for each a record of the object store, with name and dataset ID. Blocks.

Metadata may be lost, and the header of a chunk says only what its writer wrote. So these records decide which dataset
has a name, and no writer of one dataset can take the name of another when metadata is rebuilt. A name has one ID, as
its record is created exclusively. A drop creates a version of the record that frees the name, and then lets the record
refer to its versions. It removes nothing, so a drop that others have overtaken cannot take the name of the next
dataset. The next ones add versions, exclusively too. So only names that were dropped need a list of their versions.
Names can be longer than file names, so a digest of the name is in the record's name.
"""

import logging
import re

from dieselfs.digests import extent_digest_of
from dieselfs.errors import Damaged, InvalidInput, Unavailable
from dieselfs.names import check_dataset_name
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.versions import VersionedRecord

VERSIONS_KEPT = 16
"""Of a name that is dropped and used again."""
CLAIM_TRIES_MAX = 64

_PREFIX = "dataset-"
_RECORD = re.compile(rb"dieselfs-dataset 1 ([0-9a-f]{32}) ([^\n]+)\n")
_FREE = b"dieselfs-dataset 1 free\n"
"""In a version: no dataset has the name. In the record itself: its newest version counts."""

_NEVER_USED = -1

log = logging.getLogger(__name__)


class DatasetNames:
    """The records of names. Thread-safe."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def claim(self, name: str, dataset_id: bytes, is_made: bool = False) -> bytes:
        """The ID of the dataset called `name`: `dataset_id`, unless the name has another already. `is_made`: the
        metadata has the dataset. Then a free name stays free: a drop of the dataset has begun, and if the next one of
        the name had the same ID, the end of the drop would remove its chunks.

        Raises Damaged, and Unavailable if the name is taken and dropped all the time.
        """
        for _ in range(CLAIM_TRIES_MAX):
            number, found = self._newest(name)
            if found is not None:
                return found
            content = _encode(name, dataset_id)
            if number == _NEVER_USED:
                is_taken = self._store.create_record(_record_name(name), content)
            else:
                is_taken = is_made or self._versions(name).replace(number, content)
            if is_taken:
                return dataset_id
        raise Unavailable(f"the name of dataset {name} changes too fast to be taken; try again")

    def find(self, name: str) -> bytes | None:
        """The ID of the dataset called `name`, None if no dataset has this name. Raises Damaged."""
        return self._newest(name)[1]

    def all(self) -> dict[str, bytes]:
        """The IDs of all datasets by name. Records that cannot be read are logged, and left out."""
        found: dict[str, bytes] = {}
        newest = {record[: len(_record_name(""))]: record for record in self._store.list_records(_PREFIX)}
        for record in newest.values():
            content = self._store.get_record(record)
            if content is None or content == _FREE:  # or removed meanwhile
                continue
            try:
                name, dataset_id = _decode(content, record)
            except Damaged as error:
                log.error("%s", error)
                continue
            if record.startswith(_record_name(name)):
                found[name] = dataset_id
            else:
                log.error("object store: record %r is that of another name, %r", record, name)
        return found

    def release(self, name: str, dataset_id: bytes) -> None:
        """Free the name of a dataset that was dropped; does nothing if it has become another's."""
        number, found = self._newest(name)
        if found == dataset_id and self._versions(name).replace(number, _FREE) and number == 0:
            self._store.put_record(_record_name(name), _FREE)  # never replaced again

    def _versions(self, name: str) -> VersionedRecord:
        return VersionedRecord(self._store, f"{_record_name(name)}-", VERSIONS_KEPT)

    def _newest(self, name: str) -> tuple[int, bytes | None]:
        """The newest version of a name, 0 for the record itself, and the ID of its dataset, None without one. Raises
        Damaged.
        """
        number, record = 0, _record_name(name)
        content = self._store.get_record(record)
        if content is None:
            return _NEVER_USED, None
        if content == _FREE:
            number, content = self._versions(name).newest()
            record = f"{record}-{number:020}"
            if not number or content == _FREE:
                return number, None
        found, dataset_id = _decode(content, record)
        if found != name:
            raise Damaged(f"object store: record {record!r} is that of dataset {found!r}, not of {name!r}")
        return number, dataset_id


def other_owner(name: str, owner: bytes, dataset_id: bytes) -> str:
    """What to say about a dataset of the metadata whose name belongs to another one, `owner`."""
    return (
        f"dataset {name} is {owner.hex()} in the store, but {dataset_id.hex()} in the metadata; rebuild it: "
        f"dlcmd rebuild dl://{name}"
    )


def _record_name(name: str) -> str:
    return _PREFIX + extent_digest_of(name.encode()).hex()


def _encode(name: str, dataset_id: bytes) -> bytes:
    return f"dieselfs-dataset 1 {dataset_id.hex()} {name}\n".encode()


def _decode(content: bytes, record: str) -> tuple[str, bytes]:
    match = _RECORD.fullmatch(content)
    try:
        if match is None:
            raise InvalidInput("not the record of a dataset")
        return check_dataset_name(match[2].decode()), bytes.fromhex(match[1].decode())
    except (InvalidInput, UnicodeDecodeError) as error:
        raise Damaged(f"object store: record {record!r} is invalid: {error}") from None
