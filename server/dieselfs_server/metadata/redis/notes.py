"""Notes in Redis: small values of a dataset, changed by compare and swap. Blocks.

All are in one sorted set, so that the notes of a folder are one range of it.
"""

from collections.abc import Sequence

from dieselfs.limits import NOTES_AT_ONCE_MAX
from dieselfs.records import NoteChange
from dieselfs_server.metadata.redis.client import RedisCalls, execute, swap
from dieselfs_server.metadata.redis.datasets import live_state
from dieselfs_server.metadata.redis.fields import Change, Range, Read, Scan, split_member
from dieselfs_server.metadata.redis.keys import RECORD, DatasetKeys, names_after, names_below
from dieselfs_server.metadata.redis.values import seal, unseal


def read_notes(client: RedisCalls, keys: DatasetKeys, names: Sequence[str]) -> list[bytes | None]:
    """Raises DatasetGone, Damaged."""
    encoded = [name.encode() for name in names]
    (((record,), values),) = execute(client, [Read([(keys.dataset, [RECORD]), (keys.notes, encoded)])])
    live_state(keys, record)
    return [
        None if value is None else unseal(keys.notes, name, value)
        for name, value in zip(encoded, values, strict=True)
    ]


def read_notes_below(client: RedisCalls, keys: DatasetKeys, folder: str) -> dict[str, bytes]:
    """Raises Damaged."""
    found: dict[str, bytes] = {}
    lowest, highest = names_below(folder.encode())
    while True:
        (lists,) = execute(client, [Scan([Range(keys.notes, lowest, highest)], NOTES_AT_ONCE_MAX)])
        members = lists[0] if lists else []
        for member in members:
            name, value = split_member(member)
            found[name.decode()] = unseal(keys.notes, name, value)
            lowest, _ = names_after(name)
        if len(members) < NOTES_AT_ONCE_MAX:
            return found


def swap_notes(client: RedisCalls, keys: DatasetKeys, changes: Sequence[NoteChange]) -> bool:
    """Change the notes if all of them match; returns whether they were changed."""
    swapped = Change(keys.notes)
    for change in changes:
        name = change.name.encode()
        value = b"" if change.value is None else seal(keys.notes, name, change.value)
        expected = None if change.expected is None else seal(keys.notes, name, change.expected)
        swapped.add(name, value, expected)
    return swap(client, swapped)
