"""Requests that read and change fields in Redis with the scripts. No I/O.

A request encodes itself as a `Call`, which `client.py` sends, and decodes the reply.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgpack

from dieselfs_server.metadata.redis.keys import KeyPair
from dieselfs_server.metadata.redis.scripts import READ, SCAN, SWAP, Script
from dieselfs_server.metadata.redis.values import SEAL_BYTES, seal

Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, slots=True)
class Call:
    """A command for the node that has `key`; with a script, EVALSHA of its digest."""

    key: bytes
    arguments: tuple[bytes | int | str, ...]
    script: Script | None = None


class FieldRequest(Protocol[Result]):
    def call(self) -> Call: ...

    def result(self, reply: Any) -> Result: ...


class _Keys:
    """The keys of a script's call, numbered from 1 in the order of their first use."""

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
    """The values of fields of one slot, one list for each key pair; None for a field that does not exist."""

    fields: Sequence[tuple[KeyPair, Sequence[bytes]]]

    def call(self) -> Call:
        keys = _Keys()
        groups = [
            (keys.number(key_pair.sorted_key), keys.number(key_pair.hash_key), names)
            for key_pair, names in self.fields
        ]
        return _script_call(READ, list(keys.numbers), _pack(groups))

    def result(self, reply: bytes) -> list[list[bytes | None]]:
        return [[value or None for value in group] for group in msgpack.unpackb(reply, raw=True)]


@dataclass(eq=False)
class Change:
    """New values for fields of one key pair; an empty value removes a field.

    `expected` has the present values by position, where a field exists. `in_hash` has the positions of values that go
    into the hash of a pair that has both kinds. With `is_constant`, a field that already has its new value matches too.
    """

    key_pair: KeyPair
    names: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    expected: dict[int, bytes] = field(default_factory=dict)
    in_hash: list[int] = field(default_factory=list)
    is_constant: bool = False

    def put(self, name: bytes, body: bytes, expected: bytes | None, in_hash: bool = False) -> None:
        """Set a field to the sealed `body`."""
        self.add(name, seal(self.key_pair, name, body), expected, in_hash)

    def remove(self, name: bytes, expected: bytes | None) -> None:
        """Remove a field; with `expected` None, only require that it does not exist."""
        self.add(name, b"", expected)

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
    """`stale`: key pair, name and present value of each field that did not match; empty if the swap was done.

    `changes` is the value of the counter, 0 without one.
    """

    changes: int
    stale: list[tuple[KeyPair, bytes, bytes | None]]


@dataclass(frozen=True, eq=False)
class Swap:
    """Changes fields of one slot, all of them if every one matches, else none. Increments the field `counter`."""

    changes: Sequence[Change]
    counter: tuple[KeyPair, bytes] | None = None

    def call(self) -> Call:
        keys = _Keys(self.counter[0].hash_key if self.counter else b"")
        groups = [
            (
                keys.number(change.key_pair.sorted_key),
                keys.number(change.key_pair.hash_key),
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
                (self.changes[group].key_pair, self.changes[group].names[position], value or None)
                for group, position, value in stale
            ],
        )


@dataclass(frozen=True, slots=True)
class Range:
    """Part of a sorted set. The bounds are in the syntax of ZRANGEBYLEX; `keys.py` makes them."""

    key_pair: KeyPair
    lowest: bytes = b"-"
    highest: bytes = b"+"


@dataclass(frozen=True, eq=False)
class Scan:
    """Up to `limit` members in all of sorted sets of one slot; ranges after the limit are left out of the reply."""

    ranges: Sequence[Range]
    limit: int

    def call(self) -> Call:
        return _script_call(
            SCAN,
            [part.key_pair.sorted_key for part in self.ranges],
            _pack((self.limit, [(part.lowest, part.highest) for part in self.ranges])),
        )

    def result(self, reply: bytes) -> list[list[bytes]]:
        return [list(members) for members in msgpack.unpackb(reply, raw=True)]


@dataclass(frozen=True, eq=False)
class ReadAll:
    """Every field of a hash."""

    key_pair: KeyPair

    def call(self) -> Call:
        return Call(self.key_pair.hash_key, (b"HGETALL", self.key_pair.hash_key))

    def result(self, reply: Sequence[bytes] | Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        if isinstance(reply, Mapping):
            return dict(reply)
        return dict(zip(reply[::2], reply[1::2], strict=True))


@dataclass(frozen=True, eq=False)
class RemoveField:
    """Removes one field of a hash, whatever its value; no error if it does not exist."""

    key_pair: KeyPair
    name: bytes

    def call(self) -> Call:
        return Call(self.key_pair.hash_key, (b"HDEL", self.key_pair.hash_key, self.name))

    def result(self, reply: int) -> int:
        return reply


@dataclass(frozen=True, eq=False)
class Remove:
    """Removes whole keys of one slot; no error if they do not exist."""

    keys: Sequence[bytes]

    def call(self) -> Call:
        return Call(self.keys[0], (b"UNLINK", *self.keys))

    def result(self, reply: int) -> int:
        return reply


def split_member(member: bytes, name_bytes: int | None = None) -> tuple[bytes, bytes]:
    """`(name, value)` of a sorted set's member; names that may hold a NUL have a fixed length."""
    end = member.index(b"\0") if name_bytes is None else name_bytes
    return member[:end], member[end + 1 :]
