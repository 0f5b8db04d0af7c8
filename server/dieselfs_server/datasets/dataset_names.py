"""The names of datasets: for each a record of the object store, with name and dataset ID. Blocks.

Metadata may be lost, and the header of a chunk says only what its writer wrote. So these records decide which dataset
has a name, and no writer of one dataset can take the name of another when metadata is rebuilt. A record is created
exclusively, so a name has one ID. Names can be longer than file names, so a digest of the name is the record's name.
"""

import logging
import re

from dieselfs.digests import extent_digest_of
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.names import check_dataset_name
from dieselfs_server.store.interface import ObjectStore

_PREFIX = "dataset-"
_RECORD = re.compile(rb"dieselfs-dataset 1 ([0-9a-f]{32}) ([^\n]+)\n")

log = logging.getLogger(__name__)


class DatasetNames:
    """The records of names. Thread-safe."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def claim(self, name: str, dataset_id: bytes) -> bytes:
        """The ID of the dataset called `name`: `dataset_id`, unless the name has another already. Raises Damaged."""
        if self._store.create_record(_record_name(name), _encode(name, dataset_id)):
            return dataset_id
        return self.find(name) or dataset_id

    def find(self, name: str) -> bytes | None:
        """The ID of the dataset called `name`, None if no dataset has this name. Raises Damaged."""
        content = self._store.get_record(_record_name(name))
        if content is None:
            return None
        found, dataset_id = _decode(content, _record_name(name))
        if found != name:
            raise Damaged(
                f"object store: record {_record_name(name)!r} is that of dataset {found!r}, not of {name!r}"
            )
        return dataset_id

    def all(self) -> dict[str, bytes]:
        """The IDs of all datasets by name. Records that cannot be read are logged, and left out."""
        found: dict[str, bytes] = {}
        for record in self._store.list_records(_PREFIX):
            content = self._store.get_record(record)
            if content is None:  # removed meanwhile
                continue
            try:
                name, dataset_id = _decode(content, record)
            except Damaged as error:
                log.error("%s", error)
                continue
            if _record_name(name) == record:
                found[name] = dataset_id
            else:
                log.error("object store: record %r is that of another name, %r", record, name)
        return found

    def release(self, name: str, dataset_id: bytes) -> None:
        """Remove the name of a dataset that was dropped; does nothing if it has become another's."""
        if self.find(name) == dataset_id:
            self._store.delete_record(_record_name(name))


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
