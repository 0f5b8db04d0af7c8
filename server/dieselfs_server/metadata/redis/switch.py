"""Copies of datasets in Redis, which a rebuild fills and then puts in place.

A copy is a whole dataset with a token of its own that is not in the registry. The dataset's field `copy` names it, so
that every server applies chunks to both. Putting it in place is one swap: the dataset is marked as dropped, and its
field `moved` names the copy. Operations on the old keys then find no dataset, look for `moved`, and continue with the
copy (`Datasets.follow`). So a crash at any step leaves one complete dataset: before the swap the old one, after it the
copy. Keys that a crash leaves are named by `copy` or `replaced`; the next rebuild or drop removes them.
"""

import os
from collections.abc import Sequence

from dieselfs.errors import Damaged, NotFound
from dieselfs.limits import NOTES_AT_ONCE_MAX, REDIS_SWAPS_MAX
from dieselfs.records import DatasetRecord
from dieselfs_server.metadata.redis.client import RedisCalls, execute, read_fields, swap
from dieselfs_server.metadata.redis.datasets import Contended, live_state, remove_keys
from dieselfs_server.metadata.redis.fields import (
    Change,
    Range,
    remove_field_call,
    scan_call,
    split_member,
)
from dieselfs_server.metadata.redis.keys import (
    COPY,
    MOVED,
    RECORD,
    REPLACED,
    TOKEN_BYTES,
    VERSIONS,
    DatasetKeys,
    names_after,
)
from dieselfs_server.metadata.redis.values import DatasetState, number_body, number_of, seal, unseal


def begin_copy(client: RedisCalls, keys: DatasetKeys) -> DatasetKeys:
    """Start an empty copy, which continues the generation. Earlier copies are removed. Raises DatasetGone."""
    for _ in range(REDIS_SWAPS_MAX):
        record, old, replaced = read_fields(client, keys.dataset, RECORD, COPY, REPLACED)
        present = _record(keys, record)
        for token in _tokens(keys, (COPY, old), (REPLACED, replaced)):
            remove_keys(client, keys.with_token(token))
        copy = keys.with_token(os.urandom(TOKEN_BYTES))
        empty = DatasetRecord(present.dataset_id, keys.name, present.generation, present.updated_ns, 0, 0, 0)
        created = Change(copy.dataset)
        created.put(RECORD, DatasetState(empty).body(), None)
        created.put(VERSIONS, number_body(0), None)
        swap(client, created)
        named = Change(keys.dataset)
        named.put(COPY, copy.token, old)
        if swap(client, named):
            execute(client, [remove_field_call(keys.dataset, REPLACED)])
            return copy
        remove_keys(client, copy)
    raise Contended(f"{keys.owner}: too many rebuilds begin at once; try again")


def copy_of(client: RedisCalls, keys: DatasetKeys) -> DatasetKeys | None:
    """The keys of the copy that is being filled."""
    (value,) = read_fields(client, keys.dataset, COPY)
    tokens = _tokens(keys, (COPY, value))
    return keys.with_token(tokens[0]) if tokens else None


def put_in_place(client: RedisCalls, keys: DatasetKeys, copy: DatasetKeys, now_ns: int) -> None:
    """Make the copy the dataset. Raises DatasetGone, NotFound if it is not the present copy."""
    _copy_notes(client, keys, copy)
    for _ in range(REDIS_SWAPS_MAX):
        record, versions, value = read_fields(client, keys.dataset, RECORD, VERSIONS, COPY)
        old = _record(keys, record)
        if _tokens(keys, (COPY, value)) != [copy.token]:
            raise NotFound("another rebuild of this dataset has begun since; its result will count")
        new_record, new_versions, replaced = read_fields(client, copy.dataset, RECORD, VERSIONS, REPLACED)
        new = live_state(copy, new_record).record
        last = max(_last_version(keys, versions), _last_version(copy, new_versions))
        risen = DatasetRecord(
            old.dataset_id if any(old.dataset_id) else new.dataset_id,
            new.name,
            max(new.generation, old.generation) + 1,
            max(new.updated_ns + 1, old.updated_ns + 1, now_ns),
            new.files,
            new.total_bytes,
            new.chunks,
        )
        ready = Change(copy.dataset)
        ready.put(RECORD, DatasetState(risen).body(), new_record)
        ready.put(VERSIONS, number_body(last), new_versions)
        ready.put(REPLACED, keys.token, replaced)
        if not swap(client, ready):
            continue
        moved = Change(keys.dataset)
        moved.put(RECORD, DatasetState(old, is_dropped=True).body(), record)
        moved.put(VERSIONS, number_body(last), versions)  # none has been reserved since
        moved.remove(COPY, value)
        moved.put(MOVED, copy.token, None)
        if swap(client, moved):
            _copy_notes(client, keys, copy)  # those that were written meanwhile
            return
    raise Contended(f"{keys.owner} changes too fast to be replaced; try again")


def remove_replaced(client: RedisCalls, keys: DatasetKeys, copy: DatasetKeys) -> None:
    """Remove the old keys of a dataset whose copy is in place, and in the registry."""
    remove_keys(client, keys)
    execute(client, [remove_field_call(copy.dataset, REPLACED)])


def end_copy(client: RedisCalls, keys: DatasetKeys, token: bytes) -> None:
    """Remove a copy; no error if it is not the present one."""
    (value,) = read_fields(client, keys.dataset, COPY)
    if _tokens(keys, (COPY, value)) == [token]:
        remove_keys(client, keys.with_token(token))
        change = Change(keys.dataset)
        change.remove(COPY, value)
        swap(client, change)  # stale: another rebuild has begun


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


def _copy_notes(client: RedisCalls, keys: DatasetKeys, copy: DatasetKeys) -> None:
    """Copy the notes that the copy does not have."""
    after = b""
    while True:
        lowest, highest = names_after(after)
        ((members,),) = execute(client, [scan_call([Range(keys.notes, lowest, highest)], NOTES_AT_ONCE_MAX)])
        notes = [split_member(member) for member in members]
        _add_notes(client, keys, copy, notes)
        if len(members) < NOTES_AT_ONCE_MAX:
            return
        after = notes[-1][0]


def _add_notes(
    client: RedisCalls, keys: DatasetKeys, copy: DatasetKeys, notes: Sequence[tuple[bytes, bytes]]
) -> None:
    for name, value in notes:
        try:
            body = unseal(keys.notes, name, value)
        except Damaged:
            continue  # its owner writes it again
        added = Change(copy.notes)
        added.add(name, seal(copy.notes, name, body), None)
        swap(client, added)  # stale: it is there
