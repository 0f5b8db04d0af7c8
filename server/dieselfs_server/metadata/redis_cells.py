"""Cells in Redis, read and changed by the scripts: what is asked as values, what comes back as values. No I/O.

A request becomes a `Call`, which a link (`redis_link.py`) carries, and reads the reply that the call gets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgpack

from dieselfs_server.metadata.redis_keys import Drawer
from dieselfs_server.metadata.redis_scripts import READ, SCAN, SWAP, Script
from dieselfs_server.metadata.redis_values import SEAL_BYTES

Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, slots=True)
class Call:
    """A command; `key` says which node it is for. With a script, that script's digest comes first."""

    key: bytes
    arguments: tuple[bytes | int | str, ...]
    script: Script | None = None


class Request(Protocol[Result]):
    def call(self) -> Call: ...

    def result(self, reply: Any) -> Result: ...


class _Keys:
    """Numbers the keys of a script's call."""

    def __init__(self, first: bytes = b"") -> None:
        self.numbers: dict[bytes, int] = {first: 1} if first else {}

    def number(self, key: bytes) -> int:
        return self.numbers.setdefault(key, len(self.numbers) + 1) if key else 0


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=False)  # Redis knows no bin types
    return packed


def _script_call(script: Script, keys: Sequence[bytes], *arguments: bytes) -> Call:
    return Call(keys[0], (b"EVALSHA", script.digest, len(keys), *keys, *arguments), script)


@dataclass(frozen=True, eq=False)
class Read:
    """The values of cells, as a list for each drawer; None for a cell that is not there. All of one slot."""

    wanted: Sequence[tuple[Drawer, Sequence[bytes]]]

    def call(self) -> Call:
        keys = _Keys()
        groups = [
            (keys.number(drawer.sorted_key), keys.number(drawer.hash_key), names)
            for drawer, names in self.wanted
        ]
        return _script_call(READ, list(keys.numbers), _pack(groups))

    def result(self, reply: bytes) -> list[list[bytes | None]]:
        return [[value or None for value in group] for group in msgpack.unpackb(reply, raw=True)]


@dataclass(eq=False)
class Change:
    """New values for cells of one drawer: the empty value removes a cell.

    `expected` has the present values by position, where there are any; `in_hash` the positions of values that go to the
    hash of a drawer which has both. With `is_constant`, cells that already have the new value are as expected too.
    """

    drawer: Drawer
    names: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    expected: dict[int, bytes] = field(default_factory=dict)
    in_hash: list[int] = field(default_factory=list)
    is_constant: bool = False

    def keep(self, name: bytes, value: bytes | None) -> None:
        """Change nothing, but only if this is the present value."""
        self.add(name, value or b"", value)

    def add(self, name: bytes, value: bytes, expected: bytes | None, in_hash: bool = False) -> None:
        position = len(self.names)
        self.names.append(name)
        self.values.append(value)
        if expected is not None:
            self.expected[position] = expected
        if in_hash:
            self.in_hash.append(position)


@dataclass(frozen=True, slots=True)
class Swapped:
    """`stale`: drawer, name and present value of each cell that was not as expected; empty if the swap was done.

    `changes` is what the counter says, 0 without one.
    """

    changes: int
    stale: list[tuple[Drawer, bytes, bytes | None]]


@dataclass(frozen=True, eq=False)
class Swap:
    """Changes cells of one slot, all or none: only if every one is as expected. Counts in field `counter[1]`."""

    changes: Sequence[Change]
    counter: tuple[Drawer, bytes] | None = None

    def call(self) -> Call:
        keys = _Keys(self.counter[0].hash_key if self.counter else b"")
        groups = [
            (
                keys.number(change.drawer.sorted_key),
                keys.number(change.drawer.hash_key),
                change.names,
                {position + 1: value[-SEAL_BYTES:] for position, value in change.expected.items()},
                change.values,
                dict.fromkeys((position + 1 for position in change.in_hash), True),
                change.is_constant,
            )
            for change in self.changes
        ]
        return _script_call(SWAP, list(keys.numbers), _pack(groups), self.counter[1] if self.counter else b"")

    def result(self, reply: bytes) -> Swapped:
        changes, stale = msgpack.unpackb(reply, raw=True)
        return Swapped(
            changes,
            [
                (self.changes[group].drawer, self.changes[group].names[position], value or None)
                for group, position, value in stale
            ],
        )


@dataclass(frozen=True, slots=True)
class Range:
    """Part of a sorted set. The bounds are as Redis writes them, from `redis_keys`."""

    drawer: Drawer
    lowest: bytes = b"-"
    highest: bytes = b"+"


@dataclass(frozen=True, eq=False)
class Scan:
    """Members of sorted sets of one slot, up to `limit` in all; ranges that were not reached are left out."""

    ranges: Sequence[Range]
    limit: int

    def call(self) -> Call:
        return _script_call(
            SCAN,
            [part.drawer.sorted_key for part in self.ranges],
            _pack((self.limit, [(part.lowest, part.highest) for part in self.ranges])),
        )

    def result(self, reply: bytes) -> list[list[bytes]]:
        return [list(members) for members in msgpack.unpackb(reply, raw=True)]


@dataclass(frozen=True, eq=False)
class ReadAll:
    """Every cell of a hash."""

    drawer: Drawer

    def call(self) -> Call:
        return Call(self.drawer.hash_key, (b"HGETALL", self.drawer.hash_key))

    def result(self, reply: Sequence[bytes] | Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        if isinstance(reply, Mapping):
            return dict(reply)
        return dict(zip(reply[::2], reply[1::2], strict=True))


@dataclass(frozen=True, eq=False)
class RemoveField:
    """One cell of a hash, whatever its value; without error if it is not there."""

    drawer: Drawer
    name: bytes

    def call(self) -> Call:
        return Call(self.drawer.hash_key, (b"HDEL", self.drawer.hash_key, self.name))

    def result(self, reply: int) -> int:
        return reply


@dataclass(frozen=True, eq=False)
class Remove:
    """Whole keys of one slot; without error if they are not there."""

    keys: Sequence[bytes]

    def call(self) -> Call:
        return Call(self.keys[0], (b"UNLINK", *self.keys))

    def result(self, reply: int) -> int:
        return reply


def split_member(member: bytes, name_bytes: int | None = None) -> tuple[bytes, bytes]:
    """`(name, value)` of a sorted set's member; names that may hold a NUL have a fixed length."""
    end = member.index(b"\0") if name_bytes is None else name_bytes
    return member[:end], member[end + 1 :]
