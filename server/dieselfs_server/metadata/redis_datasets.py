"""The list of datasets in Redis: which token, and so which keys, a dataset has.

A dataset is there while the list has its name and its record is not marked as dropped. Dropping marks the record first;
whoever comes upon what a crash left of a drop finishes it.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from threading import Lock

from dieselfs.errors import AlreadyExists, Damaged, NotFound, Unavailable
from dieselfs.limits import REDIS_SWAPS_MAX
from dieselfs.meta.records import DatasetRecord
from dieselfs_server.metadata.redis_cells import Change, Read, ReadAll, Remove, RemoveField, Swap
from dieselfs_server.metadata.redis_keys import (
    BUCKETS,
    RECORD,
    REGISTRY_CHANGES,
    TOKEN_BYTES,
    VERSIONS,
    DatasetKeys,
    registry_drawer,
)
from dieselfs_server.metadata.redis_link import Link, ask
from dieselfs_server.metadata.redis_values import (
    DatasetState,
    Registered,
    number_body,
    seal,
    unseal,
)


class DatasetGone(Exception):
    """There is no record under these keys (any more); under other keys there may be."""


class Contended(Unavailable):
    """Others changed the same thing again and again; trying again later helps."""


def live_state(keys: DatasetKeys, value: bytes | None) -> DatasetState:
    """The dataset's record. Raises DatasetGone, Damaged."""
    if value is not None:
        state = DatasetState.of(unseal(keys.dataset, RECORD, value))
        if not state.is_dropped:
            return state
    raise DatasetGone


def sweep(link: Link, keys: DatasetKeys, buckets: Iterable[int]) -> None:
    """Remove what is in the buckets of a dataset that is gone."""
    bucket_keys = [keys.bucket(number) for number in buckets]
    indexes = ask(link, [ReadAll(bucket.folders) for bucket in bucket_keys])
    removals = []
    for bucket, folders in zip(bucket_keys, indexes, strict=True):
        drawers = [bucket.folder(folder_hash) for folder_hash in folders]
        doomed = [key for drawer in drawers for key in (drawer.sorted_key, drawer.hash_key)]
        removals.append(Remove([*doomed, *bucket.own_keys]))
    ask(link, removals)


class Datasets:
    def __init__(self, link: Link, prefix: bytes) -> None:
        self._link = link
        self._prefix = prefix
        self._registry = registry_drawer(prefix)
        self._lock = Lock()  # guards `_known`
        self._known: dict[bytes, DatasetKeys] = {}  # by dataset ID; may be out of date, the record tells

    def keys(self, dataset_id: bytes) -> DatasetKeys:
        """Raises NotFound. Whether the dataset is still there shows when its record is read."""
        with self._lock:
            known = self._known.get(dataset_id)
        if known is not None:
            return known
        for name, value in self._registered().items():
            registered = self._decoded(name, value)
            if registered is not None and registered.dataset_id == dataset_id:
                return self._note(name, registered)
        raise NotFound(f"there is no dataset {dataset_id.hex()}")

    def forget(self, dataset_id: bytes, keys: DatasetKeys) -> None:
        """The record was not there: look the keys up again next time."""
        with self._lock:
            if self._known.get(dataset_id) is keys:
                del self._known[dataset_id]

    def find(self, name: str) -> DatasetRecord:
        """Raises NotFound, Damaged."""
        (((value,),),) = ask(self._link, [Read([(self._registry, [name.encode()])])])
        if value is not None:
            keys = self._note(name.encode(), Registered.of(unseal(self._registry, name.encode(), value)))
            (((record,),),) = ask(self._link, [Read([(keys.dataset, [RECORD])])])
            try:
                return live_state(keys, record).record
            except DatasetGone:
                pass
        raise NotFound(f"there is no dataset {name!r}")

    def all(self) -> list[DatasetRecord]:
        """Those whose names are damaged are left out; asking for one by name tells."""
        keys = [
            self._note(name, registered)
            for name, value in self._registered().items()
            if (registered := self._decoded(name, value)) is not None
        ]
        records = []
        for each, ((value,),) in zip(
            keys, ask(self._link, [Read([(each.dataset, [RECORD])]) for each in keys]), strict=True
        ):
            try:
                records.append(live_state(each, value).record)
            except DatasetGone:
                continue
        return sorted(records, key=lambda record: record.name)

    def create(self, record: DatasetRecord) -> None:
        """Raises AlreadyExists if the name or the ID is taken."""
        name = record.name.encode()
        for _ in range(REDIS_SWAPS_MAX):
            cells = ask(self._link, [ReadAll(self._registry)])[0]
            changes = cells.pop(REGISTRY_CHANGES, None)
            self._check_free(record, cells)
            keys = DatasetKeys(self._prefix, record.name, os.urandom(TOKEN_BYTES))
            born = Change(keys.dataset)
            born.add(RECORD, seal(keys.dataset, RECORD, DatasetState(record).body()), None)
            born.add(VERSIONS, seal(keys.dataset, VERSIONS, number_body(0)), None)
            ask(self._link, [Swap([born])])
            registered = Registered(record.dataset_id, keys.token)
            listed = Change(self._registry)
            listed.add(name, seal(self._registry, name, registered.body()), cells.get(name))
            listed.add(REGISTRY_CHANGES, seal(self._registry, REGISTRY_CHANGES, keys.token), changes)
            if not ask(self._link, [Swap([listed])])[0].stale:
                self._note(name, registered)
                return
            ask(self._link, [Remove(keys.all_keys)])  # somebody else was quicker
        raise Contended("the list of datasets changes too fast; try again")

    def drop(self, keys: DatasetKeys, dataset_id: bytes) -> None:
        """Raises DatasetGone."""
        for _ in range(REDIS_SWAPS_MAX):
            (((value,),),) = ask(self._link, [Read([(keys.dataset, [RECORD])])])
            try:
                record = live_state(keys, value).record
            except Damaged:  # dropping is the first half of mending it
                record = DatasetRecord(dataset_id, keys.name, 0, 0, 0, 0, 0)
            dropped = Change(keys.dataset)
            dropped.add(
                RECORD, seal(keys.dataset, RECORD, DatasetState(record, is_dropped=True).body()), value
            )
            if not ask(self._link, [Swap([dropped])])[0].stale:
                self._remove(keys)
                return
        raise Contended(f"{keys.owner} changes too fast to be dropped; try again")

    def _remove(self, keys: DatasetKeys) -> None:
        """Remove all that belongs to a dropped dataset: its name last but one, so that it can be found till then."""
        sweep(self._link, keys, range(BUCKETS))
        name = keys.name.encode()
        (((value,),),) = ask(self._link, [Read([(self._registry, [name])])])
        if value is not None:
            registered = self._decoded(name, value)
            if registered is not None and registered.token == keys.token:
                gone = Change(self._registry)
                gone.add(name, b"", value)
                ask(self._link, [Swap([gone])])  # stale: somebody else has removed it
        ask(self._link, [Remove(keys.all_keys)])

    def _check_free(self, record: DatasetRecord, cells: dict[bytes, bytes]) -> None:
        """Raise AlreadyExists if name or ID is taken; what a lost or dropped dataset left is removed."""
        for name, value in list(cells.items()):
            registered = self._decoded(name, value)
            if registered is None or (
                name.decode() != record.name and registered.dataset_id != record.dataset_id
            ):
                continue
            keys = DatasetKeys(self._prefix, name.decode(), registered.token)
            (((state,),),) = ask(self._link, [Read([(keys.dataset, [RECORD])])])
            try:
                live_state(keys, state)
            except DatasetGone:
                self._remove(keys)
                ask(self._link, [RemoveField(self._registry, name)])
                del cells[name]
            else:
                raise AlreadyExists(f"dataset {name.decode()!r} exists already")

    def _registered(self) -> dict[bytes, bytes]:
        cells = ask(self._link, [ReadAll(self._registry)])[0]
        cells.pop(REGISTRY_CHANGES, None)
        return cells

    def _decoded(self, name: bytes, value: bytes) -> Registered | None:
        """None if the value is damaged: it leads nowhere any more."""
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


def renewed(record: DatasetRecord, now_ns: int) -> DatasetRecord:
    """The record of the next generation."""
    return replace(record, generation=record.generation + 1, updated_ns=max(record.updated_ns + 1, now_ns))
