"""The registry of datasets in Redis: the token, and so the keys, of each dataset.

A dataset exists while the registry has its name and its record is not marked as dropped. A drop marks the record first;
the next operation on the dataset finishes a drop that a crash interrupted.

A rebuild fills a copy of a dataset and then puts it in place. A copy is a whole dataset with a token of its own that is
not in the registry. The dataset's field `copy` names it, so that every server applies chunks to both. Putting it in
place is one swap: the dataset is marked as dropped, and its field `moved` names the copy. Operations on the old keys
then find no dataset, look for `moved`, and continue with the copy (`Datasets.follow`). So a crash at any step leaves
one complete dataset: before the swap the old one, after it the copy. Keys that a crash leaves are named by `copy` or
`replaced`; the next rebuild or drop removes them.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Lock

from dieselfs.errors import AlreadyExists, Damaged, NotFound, Unavailable
from dieselfs.limits import NOTES_AT_ONCE_MAX, REDIS_SWAPS_MAX
from dieselfs.records import DatasetRecord, NoteChange
from dieselfs_server.metadata.redis.fields import (
    Change,
    Range,
    RedisCalls,
    execute,
    read_all_call,
    read_call,
    read_fields,
    remove_call,
    remove_field_call,
    scan_call,
    split_member,
    swap,
)
from dieselfs_server.metadata.redis.values import (
    BUCKETS,
    COPY,
    COUNTED,
    MOVED,
    RECORD,
    REGISTRY_CHANGES,
    REPLACED,
    TOKEN_BYTES,
    VERSIONS,
    DatasetKeys,
    DatasetState,
    KeyPair,
    Registered,
    count_body,
    names_after,
    number_body,
    number_of,
    parse_count,
    registry_keys,
    seal,
    unseal,
)
from dieselfs_server.metadata.rules import first_generation


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


def sweep(client: RedisCalls, keys: DatasetKeys, buckets: Iterable[int], lineage: int) -> None:
    """Remove the buckets of a dropped dataset. `lineage`: that of before it was known to be dropped; raises Unavailable
    in the next one, in which it may be there again.
    """
    bucket_keys = [keys.bucket(number) for number in buckets]
    indexes = execute(client, [read_all_call(bucket.folders) for bucket in bucket_keys])
    removals = []
    for bucket, folders in zip(bucket_keys, indexes, strict=True):
        key_pairs = [bucket.folder(folder_hash) for folder_hash in folders]
        folder_keys = [key for key_pair in key_pairs for key in (key_pair.sorted_key, key_pair.hash_key)]
        removals.append(remove_call([*folder_keys, *bucket.own_keys], lineage))
    execute(client, removals)


def remove_keys(client: RedisCalls, keys: DatasetKeys, lineage: int) -> None:
    """Remove all keys of a dataset, or of a copy, that is not in the registry. `lineage`: as for `sweep`."""
    sweep(client, keys, range(BUCKETS), lineage)
    execute(client, [remove_call(keys.all_keys, lineage)])


class Datasets:
    def __init__(self, client: RedisCalls, prefix: bytes) -> None:
        self._client = client
        self._prefix = prefix
        self._registry = registry_keys(prefix)
        self._lock = Lock()  # guards `_known`
        # By dataset ID; may be out of date, so the record is checked.
        self._known: dict[bytes, DatasetKeys] = {}

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
        seen: bytes | None = None
        for _ in range(REDIS_SWAPS_MAX):
            (value,) = read_fields(self._client, self._registry, name.encode())
            if (
                value is None or value == seen
            ):  # else rebuilds have replaced it, and removed the keys that were read
                break
            seen = value
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
            registered = Registered(registered.dataset_id, copy.token)
            # Stale: another server has done it.
            swap(self._client, Change(self._registry).put(name, registered.body(), value))
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
            with suppress(NotFound):
                try:
                    records.append(live_state(each, value).record)
                except DatasetGone:
                    records.append(self.find(each.name))
        return sorted(records, key=lambda record: record.name)

    def create(self, record: DatasetRecord, notes: Sequence[NoteChange]) -> None:
        """`notes`: those that it has from its beginning. Raises AlreadyExists if the name or the ID is taken."""
        name = record.name.encode()
        for _ in range(REDIS_SWAPS_MAX):
            lineage = self._client.lineage()
            fields = execute(self._client, [read_all_call(self._registry)])[0]
            changes = fields.pop(REGISTRY_CHANGES, None)
            self._check_free(record, fields, lineage)
            keys = DatasetKeys(self._prefix, record.name, os.urandom(TOKEN_BYTES))
            if notes:
                swap(self._client, note_changes(keys.notes, notes))
            _begin(self._client, keys, record)
            registered = Registered(record.dataset_id, keys.token)
            listed = Change(self._registry).put(name, registered.body(), fields.get(name))
            if swap(self._client, listed.put(REGISTRY_CHANGES, keys.token, changes)):
                self._note(name, registered)
                return
            # Another server has changed the registry.
            execute(self._client, [remove_call(keys.all_keys, lineage)])
        raise Contended(
            f"dataset {record.name!r} cannot be created: the registry changes too fast; try again"
        )

    def drop(self, keys: DatasetKeys, dataset_id: bytes) -> None:
        """Raises DatasetGone."""
        for _ in range(REDIS_SWAPS_MAX):
            lineage = self._client.lineage()
            (value,) = read_fields(self._client, keys.dataset, RECORD)
            try:
                record = live_state(keys, value).record
            except Damaged:  # a rebuild drops the dataset first
                record = DatasetRecord(dataset_id, keys.name, 0, 0, 0, 0, 0)
            dropped = DatasetState(record, is_dropped=True)
            if swap(self._client, Change(keys.dataset).put(RECORD, dropped.body(), value)):
                self._remove(keys, lineage)
                return
        raise Contended(f"{keys.owner} changes too fast to be dropped; try again")

    def _remove(self, keys: DatasetKeys, lineage: int) -> None:
        """Remove all keys of a dropped dataset; its buckets before its name, so that a crash leaves it findable."""
        for field in (COPY, REPLACED):
            (token,) = read_fields(self._client, keys.dataset, field)
            with suppress(Damaged):
                if token is not None:
                    remove_keys(self._client, keys.with_token(unseal(keys.dataset, field, token)), lineage)
        sweep(self._client, keys, range(BUCKETS), lineage)
        name = keys.name.encode()
        (value,) = read_fields(self._client, self._registry, name)
        registered = None if value is None else self._decoded(name, value)
        if registered is not None and registered.token == keys.token:
            # Stale: another server has done it.
            swap(self._client, Change(self._registry).remove(name, value))
        execute(self._client, [remove_call(keys.all_keys, lineage)])

    def _check_free(self, record: DatasetRecord, fields: dict[bytes, bytes], lineage: int) -> None:
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
                self._remove(keys, lineage)
                execute(self._client, [remove_field_call(self._registry, name, lineage)])
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


def note_changes(keys: KeyPair, changes: Sequence[NoteChange]) -> Change:
    """The change of the notes below `keys`."""
    swapped = Change(keys)
    for change in changes:
        name = change.name.encode()
        value = b"" if change.value is None else seal(keys, name, change.value)
        swapped.add(name, value, None if change.expected is None else seal(keys, name, change.expected))
    return swapped


def _begin(client: RedisCalls, keys: DatasetKeys, record: DatasetRecord) -> None:
    created = Change(keys.dataset).put(RECORD, DatasetState(record).body(), None)
    swap(client, created.put(VERSIONS, number_body(0), None))


def begin_copy(client: RedisCalls, keys: DatasetKeys) -> DatasetKeys:
    """Start an empty copy, which continues the generation. Earlier copies are removed. Raises DatasetGone."""
    for _ in range(REDIS_SWAPS_MAX):
        lineage = client.lineage()
        record, old, replaced = read_fields(client, keys.dataset, RECORD, COPY, REPLACED)
        present = _record(keys, record)
        for token in _tokens(keys, (COPY, old), (REPLACED, replaced)):
            remove_keys(client, keys.with_token(token), lineage)
        copy = keys.with_token(os.urandom(TOKEN_BYTES))
        empty = DatasetRecord(present.dataset_id, keys.name, present.generation, present.updated_ns, 0, 0, 0)
        _begin(client, copy, empty)
        if swap(client, Change(keys.dataset).put(COPY, copy.token, old)):
            execute(client, [remove_field_call(keys.dataset, REPLACED, lineage)])
            return copy
        remove_keys(client, copy, lineage)
    raise Contended(f"{keys.owner}: too many rebuilds begin at once; try again")


def copy_of(client: RedisCalls, keys: DatasetKeys) -> DatasetKeys | None:
    """The keys of the copy that is being filled."""
    (value,) = read_fields(client, keys.dataset, COPY)
    tokens = _tokens(keys, (COPY, value))
    return keys.with_token(tokens[0]) if tokens else None


def count_paths(
    change: Change,
    value: bytes | None,
    before: DatasetRecord,
    after: DatasetRecord,
    entries: int = 0,
    folders: int = 0,
) -> None:
    """Add live entries and non-empty folders to their numbers, in the `change` of the record."""
    known_entries, known_folders = counted_paths(change.key_pair, value, before)
    change.put(COUNTED, count_body(after, known_entries + entries, known_folders + folders), value)


def counted_paths(key_pair: KeyPair, value: bytes | None, record: DatasetRecord) -> tuple[int, int]:
    """Live entries and non-empty folders of `record`; its files alone if they count another record, which an older
    dieselfs has written.
    """
    found = parse_count(key_pair, COUNTED, value, record) if record.chunks else None
    return found or (record.files, 0)


def put_in_place(client: RedisCalls, keys: DatasetKeys, copy: DatasetKeys, now_ns: int) -> None:
    """Make the copy the dataset. Raises DatasetGone, NotFound if it is not the present copy."""
    before = _all_notes(client, keys)
    _change_notes(client, copy, {}, before)
    for _ in range(REDIS_SWAPS_MAX):
        record, versions, value = read_fields(client, keys.dataset, RECORD, VERSIONS, COPY)
        old = _record(keys, record)
        if _tokens(keys, (COPY, value)) != [copy.token]:
            raise NotFound("another rebuild of this dataset has begun since; its result will count")
        names = RECORD, VERSIONS, REPLACED, COUNTED
        new_record, new_versions, replaced, counted = read_fields(client, copy.dataset, *names)
        new = live_state(copy, new_record).record
        last = max(_last_version(keys, versions), _last_version(copy, new_versions))
        risen = DatasetRecord(
            old.dataset_id if any(old.dataset_id) else new.dataset_id,
            new.name,
            max(new.generation, old.generation, first_generation(now_ns)) + 1,
            max(new.updated_ns + 1, old.updated_ns + 1, now_ns),
            new.files,
            new.total_bytes,
            new.chunks,
        )
        ready = Change(copy.dataset).put(RECORD, DatasetState(risen).body(), new_record)
        count_paths(ready.put(VERSIONS, number_body(last), new_versions), counted, new, risen)
        if not swap(client, ready.put(REPLACED, keys.token, replaced)):
            continue
        moved = Change(keys.dataset).put(RECORD, DatasetState(old, is_dropped=True).body(), record)
        moved.put(VERSIONS, number_body(last), versions)  # none has been reserved since
        if swap(client, moved.remove(COPY, value).put(MOVED, copy.token, None)):
            _change_notes(client, copy, before, _all_notes(client, keys))
            return
    raise Contended(f"{keys.owner} changes too fast to be replaced; try again")


def remove_replaced(client: RedisCalls, keys: DatasetKeys, copy: DatasetKeys, lineage: int) -> None:
    """Remove the old keys of a dataset whose copy is in place, and in the registry. `lineage`: as for `sweep`."""
    remove_keys(client, keys, lineage)
    execute(client, [remove_field_call(copy.dataset, REPLACED, lineage)])


def end_copy(client: RedisCalls, keys: DatasetKeys, token: bytes) -> None:
    """Remove a copy; no error if it is not the present one."""
    lineage = client.lineage()
    (value,) = read_fields(client, keys.dataset, COPY)
    if _tokens(keys, (COPY, value)) == [token]:
        remove_keys(client, keys.with_token(token), lineage)
        swap(client, Change(keys.dataset).remove(COPY, value))  # stale: another rebuild has begun


def _record(keys: DatasetKeys, value: bytes | None) -> DatasetRecord:
    """The dataset's record, also of a damaged one, without its numbers. Raises DatasetGone."""
    try:
        return live_state(keys, value).record
    except Damaged:
        return DatasetRecord(bytes(16), keys.name, 0, 0, 0, 0, 0)


def _tokens(keys: DatasetKeys, *fields: tuple[bytes, bytes | None]) -> list[bytes]:
    """The tokens in those of the fields that are present and intact."""
    found = []
    for name, value in fields:
        if value is not None:
            try:
                found.append(unseal(keys.dataset, name, value))
            except Damaged:
                continue  # its keys stay; they are not found any more
    return found


def _last_version(keys: DatasetKeys, value: bytes | None) -> int:
    """The last reserved version; 0 if it is damaged, as applied chunks then decide."""
    try:
        return 0 if value is None else number_of(unseal(keys.dataset, VERSIONS, value))
    except Damaged:
        return 0


def _all_notes(client: RedisCalls, keys: DatasetKeys) -> dict[str, bytes]:
    """All notes that are intact; the owner of a damaged one writes it again."""
    found: dict[str, bytes] = {}
    after = b""
    while True:
        lowest, highest = names_after(after)
        ((members,),) = execute(client, [scan_call([Range(keys.notes, lowest, highest)], NOTES_AT_ONCE_MAX)])
        for member in members:
            after, value = split_member(member)
            with suppress(Damaged):
                found[after.decode()] = unseal(keys.notes, after, value)
        if len(members) < NOTES_AT_ONCE_MAX:
            return found


def _change_notes(
    client: RedisCalls, copy: DatasetKeys, before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> None:
    """Repeat in a copy what has changed since `before`. A note that was changed there too stays.

    What is one change stays one, if NOTES_AT_ONCE_MAX has it: the list of a job's members changes with its version.
    """
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for first in range(0, len(names), NOTES_AT_ONCE_MAX):
        part = names[first : first + NOTES_AT_ONCE_MAX]
        for _ in range(REDIS_SWAPS_MAX):
            present = _all_notes(client, copy)
            left = [name for name in part if present.get(name) == before.get(name)]
            changes = [NoteChange(name, before.get(name), after.get(name)) for name in left]
            if not changes or swap(client, note_changes(copy.notes, changes)):
                break
        else:
            raise Contended(f"the notes of {copy.owner} change too fast to be copied; try again")
