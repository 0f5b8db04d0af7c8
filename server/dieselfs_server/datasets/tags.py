"""Tags: names for generations that are kept (`dl://data@v3`). Blocks.

A tag is the generation's snapshot as a record in the object store. So it survives the loss of all metadata, and has the
list of the chunks that it needs. The record's name has the dataset's ID and the tag's name in hexadecimal. Before the
snapshot, the record has a signature of tag and digest, so that nobody can exchange the tags of a dataset.
"""

import numpy as np

from dieselfs.errors import AccessDenied, AlreadyExists, Damaged, InvalidInput, NotFound
from dieselfs.names import check_tag_name
from dieselfs.net.auth import SIGNATURE_BYTES, check_signature
from dieselfs.rpc.records import TagRecord
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.access.identity import Identity
from dieselfs_server.datasets.snapshots import check_signed
from dieselfs_server.store.interface import ObjectStore

TAGS_MAX = 1000
"""Of a dataset. A quota counts chunks alone, and each tag takes as much of the object store as a snapshot."""


class TagStore:
    def __init__(self, store: ObjectStore, identity: Identity) -> None:
        self._store = store
        self._identity = identity

    def add(self, snapshot: Snapshot, name: str) -> TagRecord:
        """Tag a snapshot. Raises AlreadyExists: a tag never changes; and InvalidInput for more than TAGS_MAX."""
        dataset_id = snapshot.header.dataset_id
        record = _record_name(dataset_id, check_tag_name(name))
        if self._store.get_record(record) is not None:
            raise AlreadyExists(f"dataset {snapshot.dataset} already has a tag {name!r}; remove it first")
        if len(self.names(dataset_id)) >= TAGS_MAX:
            raise InvalidInput(
                f"dataset {snapshot.dataset} has {TAGS_MAX:,} tags, the limit; remove one: "
                f"dlcmd tag rm dl://{snapshot.dataset} TAG"
            )
        signature = self._identity.sign(_message(name, snapshot))
        self._store.put_record(record, signature + snapshot.content)
        return _describe(name, snapshot)

    def get(self, dataset: str, dataset_id: bytes, name: str) -> Snapshot:
        """The snapshot that a tag names. Raises NotFound, Damaged."""
        content = self._store.get_record(_record_name(dataset_id, check_tag_name(name)))
        if content is None:
            raise NotFound(
                f"dataset {dataset} has no tag {name!r}; list its tags with: dlcmd tag ls dl://{dataset}"
            )
        source = f"tag {name} of {dataset}"
        snapshot = Snapshot(content[SIGNATURE_BYTES:], source)
        snapshot.verify()
        check_signed(snapshot, self._identity)
        if snapshot.header.dataset_id != dataset_id:
            raise Damaged(f"tag {name} of {dataset} holds the snapshot of another dataset")
        pin, public_key = self._identity.pin, self._identity.public_key
        try:
            check_signature(pin, public_key, _message(name, snapshot), content[:SIGNATURE_BYTES], source)
        except AccessDenied as error:
            raise Damaged(str(error)) from None
        return snapshot

    def names(self, dataset_id: bytes) -> list[str]:
        prefix = _prefix(dataset_id)
        found = (record.removeprefix(prefix) for record in self._store.list_records(prefix))
        return sorted(bytes.fromhex(name).decode("ascii", "replace") for name in found)

    def all(self, dataset: str, dataset_id: bytes) -> list[TagRecord]:
        """All tags of a dataset, ordered by name. Raises Damaged if one cannot be read."""
        return [self.record(dataset, dataset_id, name) for name in self.names(dataset_id)]

    def record(self, dataset: str, dataset_id: bytes, name: str) -> TagRecord:
        """What one tag says. Raises NotFound, Damaged."""
        return _describe(name, self.get(dataset, dataset_id, name))

    def remove(self, dataset: str, dataset_id: bytes, name: str) -> None:
        """Remove a tag; a later purge removes the chunks that only it needed. Raises NotFound."""
        if name not in self.names(dataset_id):
            raise NotFound(f"dataset {dataset} has no tag {name!r}")
        self._store.delete_record(_record_name(dataset_id, check_tag_name(name)))

    def drop(self, dataset_id: bytes) -> None:
        for record in self._store.list_records(_prefix(dataset_id)):
            self._store.delete_record(record)

    def needed_chunks(self, dataset: str, dataset_id: bytes) -> dict[str, set[bytes]]:
        """IDs of the chunks of each tagged generation, by tag. Raises Damaged if a tag cannot be read."""
        needed: dict[str, set[bytes]] = {}
        for name in self.names(dataset_id):
            snapshot = self.get(dataset, dataset_id, name)
            used = np.unique(snapshot.column("extent_chunks")).tolist()
            needed[name] = {snapshot.chunk_id(chunk) for chunk in used}
        return needed


def _prefix(dataset_id: bytes) -> str:
    return f"tag-{dataset_id.hex()}-"


def _record_name(dataset_id: bytes, name: str) -> str:
    return _prefix(dataset_id) + name.encode("ascii").hex()


def _message(name: str, snapshot: Snapshot) -> bytes:
    return b"dieselfs tag\0" + name.encode("ascii") + b"\0" + snapshot.digest


def _describe(name: str, snapshot: Snapshot) -> TagRecord:
    header = snapshot.header
    return TagRecord(
        name, header.generation, header.updated_ns, header.files, header.total_bytes, header.digest
    )
