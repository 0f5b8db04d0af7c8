"""Tags: names for generations that are kept (`dl://data@v3`).

A tag is the generation's snapshot as a record in the object store. So it survives the loss of all metadata, and has the
list of the chunks that it needs. The record's name has the dataset's ID and the tag's name in hexadecimal. Before the
snapshot, the record has a signature of tag and digest, so that nobody can exchange the tags of a dataset.
"""

import re
import time
from collections.abc import Callable

import trio

from dieselfs.arrays import distinct
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound
from dieselfs.names import check_tag_name
from dieselfs.net.auth import SIGNATURE_BYTES, check_signed_by
from dieselfs.rpc.records import TagRecord
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.access.identity import (
    IDENTITY_REFRESH_S,
    NEXT_RECORD,
    Identity,
    KeyPlace,
    LiveIdentity,
    forget_before,
    identity_before,
    next_identity,
    store_identity,
    use_identity,
)
from dieselfs_server.datasets.snapshots import check_signed, signed, tag_record
from dieselfs_server.store.interface import ObjectStore

_TAG_RECORD = re.compile(r"tag-[0-9a-f]{32}-(?:[0-9a-f]{2})+")

TAGS_MAX = 1000
"""Of a dataset. A quota counts chunks alone, and each tag takes as much of the object store as a snapshot."""

READS_MAX = 2
"""Limit of tags that are being read, over all clients: each is a snapshot in memory."""


class TagStore:
    """Handlers hold one of `reads` while they read tags."""

    def __init__(self, store: ObjectStore, identity: Identity | LiveIdentity) -> None:
        self._store = store
        self._identity = identity
        self.reads = trio.CapacityLimiter(READS_MAX)

    def add(self, snapshot: Snapshot, name: str) -> TagRecord:
        """Tag a snapshot. A tag never changes: of two servers that make it at the same time, one raises AlreadyExists.
        Raises InvalidInput for more than TAGS_MAX.
        """
        dataset_id = snapshot.header.dataset_id
        record = _record_name(dataset_id, check_tag_name(name))
        taken = AlreadyExists(f"dataset {snapshot.dataset} already has a tag {name!r}; remove it first")
        if self._store.get_record(record) is not None:
            raise taken
        if len(self.names(dataset_id)) >= TAGS_MAX:
            raise InvalidInput(
                f"dataset {snapshot.dataset} has {TAGS_MAX:,} tags, the limit; remove one: "
                f"dlcmd tag rm dl://{snapshot.dataset} TAG"
            )
        content = self._content(snapshot, name)
        # One that is there with the same content is this one: the reply of the store was lost.
        if not self._store.create_record(record, content) and self._store.get_record(record) != content:
            raise taken
        return tag_record(name, snapshot.header)

    def replace(self, snapshot: Snapshot, name: str) -> None:
        """Let a tag name this snapshot from now on; in one step."""
        record = _record_name(snapshot.header.dataset_id, check_tag_name(name))
        self._store.put_record(record, self._content(snapshot, name))

    def _content(self, snapshot: Snapshot, name: str) -> bytes:
        """The record of a tag: its signature, and the snapshot with that of these servers."""
        by = self._identity.current
        content = bytes(snapshot.content)
        if snapshot.header.signer != by.public_key:
            content = signed(content, by)
        return by.sign(_message(name, snapshot)) + content

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
        if snapshot.header.dataset_id != dataset_id:
            raise Damaged(f"tag {name} of {dataset} holds the snapshot of another dataset")
        _check(name, snapshot, content, self._identity)
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
        return tag_record(name, self.get(dataset, dataset_id, name).header)

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
            used = distinct(snapshot.column("extent_chunks")).tolist()
            needed[name] = {snapshot.chunk_id(chunk) for chunk in used}
        return needed


def replace_identity(
    store: ObjectStore, keys: KeyPlace | None = None, pause: Callable[[float], object] = time.sleep
) -> tuple[Identity, int]:
    """Make the next identity the present one, and sign all tags with it; returns it, and the number of tags. Servers
    may run: they accept both, until all of them sign with the new one. An interrupted call is repeated.

    `keys`: where private keys are, if not in the store. Raises InvalidInput without a next identity, and what
    `next_identity` raises; Damaged for a tag that neither has signed: then nothing is replaced.
    """
    new, following = store_identity(store, keys), next_identity(store, keys)
    if following is not None:
        new, old = following, new
        _sign_all(store, new, old)
        use_identity(store, keys, new)
    else:  # interrupted, or there is none
        store.delete_record(NEXT_RECORD)
    before = identity_before(store, new)
    if before is None:
        raise InvalidInput(
            "there is no next identity: make one with --new-identity announce, and give keys time"
        )
    pause(2 * IDENTITY_REFRESH_S + 1)  # then no server signs with the one before
    count = _sign_all(store, new, before)
    forget_before(store, keys, before)
    return new, count


def _sign_all(store: ObjectStore, new: Identity, old: Identity) -> int:
    """Sign the tags that `old` has signed with `new`; returns the number of all. Raises Damaged."""
    records = [name for name in store.list_records("tag-") if _TAG_RECORD.fullmatch(name)]
    for record in records:
        content = store.get_record(record)
        if content is None:
            continue
        name = bytes.fromhex(record.rpartition("-")[2]).decode("ascii", "replace")
        snapshot = Snapshot(content[SIGNATURE_BYTES:], f"tag {name}")
        snapshot.verify()
        by = new if snapshot.header.signer == new.public_key else old
        _check(name, snapshot, content, by)
        if by is old:
            store.put_record(
                record, new.sign(_message(name, snapshot)) + signed(bytes(snapshot.content), new)
            )
    return len(records)


def _check(name: str, snapshot: Snapshot, content: bytes, identity: Identity | LiveIdentity) -> None:
    """Raise Damaged unless `identity` has signed the snapshot, and the tag, in the content of a record."""
    check_signed(snapshot, identity)
    signature = content[:SIGNATURE_BYTES]
    check_signed_by(snapshot.header.signer, _message(name, snapshot), signature, snapshot.source)


def _prefix(dataset_id: bytes) -> str:
    return f"tag-{dataset_id.hex()}-"


def _record_name(dataset_id: bytes, name: str) -> str:
    return _prefix(dataset_id) + name.encode("ascii").hex()


def _message(name: str, snapshot: Snapshot) -> bytes:
    return b"dieselfs tag\0" + name.encode("ascii") + b"\0" + snapshot.digest
