"""The registry of datasets in Redis: the token, and so the keys, of each dataset.

A dataset exists while the registry has its name and its record is not marked as dropped. A drop marks the record first;
the next operation on the dataset finishes a drop that a crash interrupted.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock

from dieselfs.errors import AlreadyExists, Damaged, NotFound, Unavailable
from dieselfs.limits import REDIS_SWAPS_MAX
from dieselfs.records import DatasetRecord
from dieselfs_server.metadata.redis.client import RedisCalls, execute, read_fields, swap
from dieselfs_server.metadata.redis.fields import (
    Change,
    read_all_call,
    read_call,
    remove_call,
    remove_field_call,
)
from dieselfs_server.metadata.redis.keys import (
    BUCKETS,
    COPY,
    MOVED,
    RECORD,
    REGISTRY_CHANGES,
    REPLACED,
    TOKEN_BYTES,
    VERSIONS,
    DatasetKeys,
    registry_keys,
)
from dieselfs_server.metadata.redis.values import DatasetState, Registered, number_body, unseal


class DatasetGone(Exception):
    """These keys have no record; the dataset may exist under other keys."""


class Contended(Unavailable):
    """Concurrent changes defeated every attempt; a later retry can succeed."""


def live_state(keys: DatasetKeys, value: bytes | None) -> DatasetState:
    """The dataset's record. Raises DatasetGone, Damaged."""
    if value is not None:
        state = DatasetState.of(unseal(keys.dataset, RECORD, value))
        if not state.is_dropped:
            return state
    raise DatasetGone


def sweep(client: RedisCalls, keys: DatasetKeys, buckets: Iterable[int]) -> None:
    """Remove the buckets of a dropped dataset."""
    bucket_keys = [keys.bucket(number) for number in buckets]
    indexes = execute(client, [read_all_call(bucket.folders) for bucket in bucket_keys])
    removals = []
    for bucket, folders in zip(bucket_keys, indexes, strict=True):
        key_pairs = [bucket.folder(folder_hash) for folder_hash in folders]
        folder_keys = [key for key_pair in key_pairs for key in (key_pair.sorted_key, key_pair.hash_key)]
        removals.append(remove_call([*folder_keys, *bucket.own_keys]))
    execute(client, removals)


def remove_keys(client: RedisCalls, keys: DatasetKeys) -> None:
    """Remove all keys of a dataset, or of a copy, that is not in the registry."""
    sweep(client, keys, range(BUCKETS))
    execute(client, [remove_call(keys.all_keys)])


class Datasets:
    def __init__(self, client: RedisCalls, prefix: bytes) -> None:
        self._client = client
        self._prefix = prefix
        self._registry = registry_keys(prefix)
        self._lock = Lock()  # guards `_known`
        self._known: dict[
            bytes, DatasetKeys
        ] = {}  # by dataset ID; may be out of date, so the record is checked

    def keys(self, dataset_id: bytes) -> DatasetKeys:
        """Raises NotFound. The keys may be those of a dropped dataset: reading its record shows that."""
        with self._lock:
            known = self._known.get(dataset_id)
        if known is not None:
            return known
        for name, registered in self._registered().items():
            if registered.dataset_id == dataset_id:
                return self._note(name, registered)
        raise NotFound(f"there is no dataset {dataset_id.hex()}")

    def forget(self, dataset_id: bytes, keys: DatasetKeys) -> None:
        """Look the keys up again next time, because they have no record."""
        with self._lock:
            if self._known.get(dataset_id) is keys:
                del self._known[dataset_id]

    def find(self, name: str) -> DatasetRecord:
        """Raises NotFound, Damaged."""
        (value,) = read_fields(self._client, self._registry, name.encode())
        if value is not None:
            keys = self._note(name.encode(), Registered.of(unseal(self._registry, name.encode(), value)))
            with suppress(DatasetGone):
                return self._live(keys)
        raise NotFound(f"there is no dataset {name!r}")

    def _live(self, keys: DatasetKeys) -> DatasetRecord:
        """The record of a dataset, or of the copy that has replaced it. Raises DatasetGone, Damaged."""
        try:
            return live_state(keys, *read_fields(self._client, keys.dataset, RECORD)).record
        except DatasetGone:
            copy = self.follow(keys)
            if copy is None:
                raise
            return live_state(copy, *read_fields(self._client, copy.dataset, RECORD)).record

    def follow(self, keys: DatasetKeys) -> DatasetKeys | None:
        """The keys of the copy that has replaced a dataset, which is then in the registry; None if there is none."""
        (moved,) = read_fields(self._client, keys.dataset, MOVED)
        if moved is None:
            return None
        copy, name = keys.with_token(unseal(keys.dataset, MOVED, moved)), keys.name.encode()
        (value,) = read_fields(self._client, self._registry, name)
        registered = None if value is None else self._decoded(name, value)
        if registered is None:
            return None
        if registered.token == keys.token:
            listed = Change(self._registry)
            listed.put(name, Registered(registered.dataset_id, copy.token).body(), value)
            swap(self._client, listed)  # stale: another server has done it
            registered = Registered(registered.dataset_id, copy.token)
        return self._note(name, registered)

    def add_copy(self, copy: DatasetKeys) -> bytes:
        """Make `keys` find a copy; returns its ID."""
        with self._lock:
            self._known[copy.token] = copy
        return copy.token

    def forget_copy(self, copy_id: bytes) -> None:
        with self._lock:
            self._known.pop(copy_id, None)

    def all(self) -> list[DatasetRecord]:
        """Without datasets whose value in the registry is damaged; `find` raises Damaged for these."""
        keys = [self._note(name, registered) for name, registered in self._registered().items()]
        values = execute(self._client, [read_call([(each.dataset, [RECORD])]) for each in keys])
        records = []
        for each, ((value,),) in zip(keys, values, strict=True):
            with suppress(DatasetGone):
                try:
                    records.append(live_state(each, value).record)
                except DatasetGone:
                    records.append(self._live(each))
        return sorted(records, key=lambda record: record.name)

    def create(self, record: DatasetRecord) -> None:
        """Raises AlreadyExists if the name or the ID is taken."""
        name = record.name.encode()
        for _ in range(REDIS_SWAPS_MAX):
            fields = execute(self._client, [read_all_call(self._registry)])[0]
            changes = fields.pop(REGISTRY_CHANGES, None)
            self._check_free(record, fields)
            keys = DatasetKeys(self._prefix, record.name, os.urandom(TOKEN_BYTES))
            created = Change(keys.dataset)
            created.put(RECORD, DatasetState(record).body(), None)
            created.put(VERSIONS, number_body(0), None)
            swap(self._client, created)
            registered = Registered(record.dataset_id, keys.token)
            listed = Change(self._registry)
            listed.put(name, registered.body(), fields.get(name))
            listed.put(REGISTRY_CHANGES, keys.token, changes)
            if swap(self._client, listed):
                self._note(name, registered)
                return
            execute(self._client, [remove_call(keys.all_keys)])  # another server has changed the registry
        raise Contended(
            f"dataset {record.name!r} cannot be created: the registry changes too fast; try again"
        )

    def drop(self, keys: DatasetKeys, dataset_id: bytes) -> None:
        """Raises DatasetGone."""
        for _ in range(REDIS_SWAPS_MAX):
            (value,) = read_fields(self._client, keys.dataset, RECORD)
            try:
                record = live_state(keys, value).record
            except Damaged:  # a rebuild drops the dataset first
                record = DatasetRecord(dataset_id, keys.name, 0, 0, 0, 0, 0)
            dropped = Change(keys.dataset)
            dropped.put(RECORD, DatasetState(record, is_dropped=True).body(), value)
            if swap(self._client, dropped):
                self._remove(keys)
                return
        raise Contended(f"{keys.owner} changes too fast to be dropped; try again")

    def _remove(self, keys: DatasetKeys) -> None:
        """Remove all keys of a dropped dataset; its buckets before its name, so that a crash leaves it findable."""
        for field in (COPY, REPLACED):
            (token,) = read_fields(self._client, keys.dataset, field)
            with suppress(Damaged):
                if token is not None:
                    remove_keys(self._client, keys.with_token(unseal(keys.dataset, field, token)))
        sweep(self._client, keys, range(BUCKETS))
        name = keys.name.encode()
        (value,) = read_fields(self._client, self._registry, name)
        registered = None if value is None else self._decoded(name, value)
        if registered is not None and registered.token == keys.token:
            unlisted = Change(self._registry)
            unlisted.remove(name, value)
            swap(self._client, unlisted)  # stale: another server has removed it
        execute(self._client, [remove_call(keys.all_keys)])

    def _check_free(self, record: DatasetRecord, fields: dict[bytes, bytes]) -> None:
        """Raise AlreadyExists if name or ID is taken; remove the rest of a lost or dropped dataset."""
        for name, value in list(fields.items()):
            registered = self._decoded(name, value)
            if registered is None or (
                name.decode() != record.name and registered.dataset_id != record.dataset_id
            ):
                continue
            keys = DatasetKeys(self._prefix, name.decode(), registered.token)
            try:
                self._live(keys)
            except DatasetGone:
                self._remove(keys)
                execute(self._client, [remove_field_call(self._registry, name)])
                del fields[name]
            else:
                raise AlreadyExists(f"dataset {name.decode()!r} exists already")

    def _registered(self) -> dict[bytes, Registered]:
        """Without damaged values."""
        fields = execute(self._client, [read_all_call(self._registry)])[0]
        fields.pop(REGISTRY_CHANGES, None)
        decoded = {name: self._decoded(name, value) for name, value in fields.items()}
        return {name: registered for name, registered in decoded.items() if registered is not None}

    def _decoded(self, name: bytes, value: bytes) -> Registered | None:
        """None if the value is damaged."""
        try:
            return Registered.of(unseal(self._registry, name, value))
        except Damaged:
            return None

    def _note(self, name: bytes, registered: Registered) -> DatasetKeys:
        with self._lock:
            known = self._known.get(registered.dataset_id)
            if known is None or known.token != registered.token:
                known = DatasetKeys(self._prefix, name.decode(), registered.token)
                self._known[registered.dataset_id] = known
            return known
