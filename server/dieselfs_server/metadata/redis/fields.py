"""Calls that read and change fields in Redis, with the three scripts that do it, each atomic in one slot. No I/O: a
`RedisCalls` sends them.

The scripts only move fields; `resolve.py` makes all decisions. Arguments and replies are msgpack, one string each: to
write and read a thousand arguments would cost more than the script itself.

A field is `(sorted set, hash, name)`, where one of the two keys may be missing (0). In the sorted set it is the member
`name NUL value`, in the hash the field `name`; it is never in both. Its seal is the last 8 bytes of its value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any, Generic, Protocol, Self, TypeVar

import msgpack

from dieselfs_server.metadata.redis.values import SEAL_BYTES, KeyPair, seal

Result = TypeVar("Result")

_SLICE = 2000  # of arguments of one call: Lua's stack holds 8,000

_CURRENT = f"""
local function current_values(sorted_key, hash_key, names)
    local current = {{}}
    if hash_key and redis.call('EXISTS', hash_key) == 1 then
        for first = 1, #names, {_SLICE} do
            local last = math.min(first + {_SLICE} - 1, #names)
            local found = redis.call('HMGET', hash_key, unpack(names, first, last))
            for i = first, last do current[i] = found[i - first + 1] end
        end
    end
    if sorted_key and redis.call('EXISTS', sorted_key) == 1 then
        for i = 1, #names do
            if not current[i] then
                local name = names[i]
                local found = redis.call('ZRANGEBYLEX', sorted_key, '[' .. name .. '\\0', '(' .. name .. '\\1',
                    'LIMIT', 0, 1)
                if found[1] then current[i] = string.sub(found[1], #name + 2) end
            end
        end
    end
    return current
end
"""

_READ = (
    _CURRENT
    + """
-- ARGV[1]: a list of {number of the sorted set or 0, number of the hash or 0, names}. Returns a list of lists of values
-- (false for none).
local found = {}
for g, group in ipairs(cmsgpack.unpack(ARGV[1])) do
    local current = current_values(KEYS[group[1]], KEYS[group[2]], group[3])
    found[g] = {}
    for i = 1, #group[3] do found[g][i] = current[i] or false end
end
return cmsgpack.pack(found)
"""
)

_SWAP = (
    _CURRENT
    + f"""
-- ARGV[1]: a list of {{sorted set or 0, hash or 0, names, seals, values, in hash, constant}}: `seals` by position, of
-- the values that are expected (none: no such field), `values` as long as names ('' removes the field), `in hash` by
-- position; with `constant`, a field that already has its new value matches too.
-- ARGV[2]: '' or the field of the hash KEYS[1] that counts the changes.
-- All or nothing. Returns {{changes, list of {{group, position, value or false}} of the fields that do not match}}.
local groups = cmsgpack.unpack(ARGV[1])
local currents, stale = {{}}, {{}}
for g, group in ipairs(groups) do
    local current = current_values(KEYS[group[1]], KEYS[group[2]], group[3])
    local seals = group[4]
    for i = 1, #group[3] do
        local value = current[i]
        if (value and string.sub(value, -8) or nil) ~= seals[i] and not (group[7] and value == group[5][i]) then
            stale[#stale + 1] = {{g - 1, i - 1, value or false}}
        end
    end
    currents[g] = current
end
if #stale > 0 then
    return cmsgpack.pack({{ARGV[2] ~= '' and tonumber(redis.call('HGET', KEYS[1], ARGV[2])) or 0, stale}})
end
local function write(command, key, arguments)
    for first = 1, #arguments, {_SLICE} do
        redis.call(command, key, unpack(arguments, first, math.min(first + {_SLICE} - 1, #arguments)))
    end
end
for g, group in ipairs(groups) do
    local sorted_key, hash_key, names, values, in_hash = KEYS[group[1]], KEYS[group[2]], group[3], group[5], group[6]
    local removed, added, dropped, set = {{}}, {{}}, {{}}, {{}}
    for i, name in ipairs(names) do
        local value, old = values[i], currents[g][i]
        local to_hash = value ~= '' and (in_hash[i] or not sorted_key)
        if to_hash then
            set[#set + 1] = name
            set[#set + 1] = value
        end
        if sorted_key and old then removed[#removed + 1] = name .. '\\0' .. old end
        if hash_key and old and not to_hash then dropped[#dropped + 1] = name end
        if value ~= '' and not to_hash then
            added[#added + 1] = 0
            added[#added + 1] = name .. '\\0' .. value
        end
    end
    write('ZREM', sorted_key, removed)
    write('HDEL', hash_key, dropped)
    write('ZADD', sorted_key, added)
    write('HSET', hash_key, set)
end
return cmsgpack.pack({{ARGV[2] ~= '' and redis.call('HINCRBY', KEYS[1], ARGV[2], 1) or 0, {{}}}})
"""
)

_SCAN = """
-- ARGV[1]: {number of members, list of {lowest, highest}}, one for each key, as ZRANGEBYLEX takes them. Returns a list
-- of lists of members; it may be shorter than that of keys, and its last list than the range, once the number is
-- reached.
local wanted = cmsgpack.unpack(ARGV[1])
local left, found = wanted[1], {}
for i, range in ipairs(wanted[2]) do
    if left <= 0 then break end
    found[i] = redis.call('ZRANGEBYLEX', KEYS[i], range[1], range[2], 'LIMIT', 0, left)
    left = left - #found[i]
end
return cmsgpack.pack(found)
"""


@dataclass(frozen=True, slots=True)
class Script:
    text: bytes
    digest: bytes

    @classmethod
    def of(cls, text: str) -> "Script":
        encoded = text.encode()
        # Redis names scripts by their SHA-1; this is not for security.
        return cls(encoded, sha1(encoded, usedforsecurity=False).hexdigest().encode())


READ = Script.of(_READ)
SWAP = Script.of(_SWAP)
SCAN = Script.of(_SCAN)


@dataclass(frozen=True, eq=False)
class Command(Generic[Result]):
    """A command for the node that has `key`, and the decoder of its reply; with a script, EVALSHA of its digest. With a
    `lineage`, it is sent in that one only: what makes it right may be forgotten in the next.
    """

    key: bytes
    arguments: tuple[bytes | int | str, ...]
    script: Script | None = None
    decode: Callable[[Any], Result] = lambda reply: reply
    lineage: int | None = None


def _number(keys: dict[bytes, int], key: bytes) -> int:
    """The number of a key of a script's call, from 1 on in the order of first use; 0 for no key."""
    return keys.setdefault(key, len(keys) + 1) if key else 0


def _script_call(
    script: Script, keys: Sequence[bytes], value: object, *arguments: bytes, decode: Callable[[Any], Result]
) -> Command[Result]:
    packed: bytes = msgpack.packb(value, use_bin_type=False)  # Redis knows no bin types
    command: tuple[bytes | int | str, ...] = (b"EVALSHA", script.digest, len(keys), *keys, packed, *arguments)
    return Command(keys[0], command, script, lambda reply: decode(msgpack.unpackb(reply, raw=True)))


def read_call(fields: Sequence[tuple[KeyPair, Sequence[bytes]]]) -> Command[list[list[bytes | None]]]:
    """The values of fields of one slot, one list for each key pair; None for a field that does not exist."""
    keys: dict[bytes, int] = {}
    groups = [
        (_number(keys, key_pair.sorted_key), _number(keys, key_pair.hash_key), names)
        for key_pair, names in fields
    ]

    def decode(found: list[list[bytes]]) -> list[list[bytes | None]]:
        return [[value or None for value in group] for group in found]

    return _script_call(READ, list(keys), groups, decode=decode)


@dataclass(eq=False)
class Change:
    """New values for fields of one key pair; an empty value removes a field.

    `expected` has the present values by position, where a field exists. `in_hash` has the positions of values that go
    into the hash of a pair that has both kinds. With `is_constant`, a field that already has its new value matches too.
    Methods return the object.
    """

    key_pair: KeyPair
    names: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    expected: dict[int, bytes] = field(default_factory=dict)
    in_hash: list[int] = field(default_factory=list)
    is_constant: bool = False

    def put(self, name: bytes, body: bytes, expected: bytes | None, in_hash: bool = False) -> Self:
        """Set a field to the sealed `body`."""
        return self.add(name, seal(self.key_pair, name, body), expected, in_hash)

    def remove(self, name: bytes, expected: bytes | None) -> Self:
        """Remove a field; with `expected` None, only require that it does not exist."""
        return self.add(name, b"", expected)

    def add(self, name: bytes, value: bytes, expected: bytes | None, in_hash: bool = False) -> Self:
        position = len(self.names)
        self.names.append(name)
        self.values.append(value)
        if expected is not None:
            self.expected[position] = expected
        if in_hash:
            self.in_hash.append(position)
        return self


@dataclass(frozen=True, slots=True)
class Swapped:
    """`stale`: key pair, name and present value of each field that did not match; empty if the swap was done.

    `changes` is the value of the counter, 0 without one.
    """

    changes: int
    stale: list[tuple[KeyPair, bytes, bytes | None]]


def swap_call(changes: Sequence[Change], counter: tuple[KeyPair, bytes] | None = None) -> Command[Swapped]:
    """Change fields of one slot, all of them if every one matches, else none. Increments the field `counter`."""
    keys = {counter[0].hash_key: 1} if counter else {}
    groups = [
        (
            _number(keys, change.key_pair.sorted_key),
            _number(keys, change.key_pair.hash_key),
            change.names,
            {position + 1: value[-SEAL_BYTES:] for position, value in change.expected.items()},
            change.values,
            dict.fromkeys((position + 1 for position in change.in_hash), True),
            change.is_constant,
        )
        for change in changes
    ]

    def decode(reply: tuple[int, list[tuple[int, int, bytes]]]) -> Swapped:
        count, stale = reply
        found = [(changes[group], position, value or None) for group, position, value in stale]
        return Swapped(
            count, [(change.key_pair, change.names[position], value) for change, position, value in found]
        )

    return _script_call(SWAP, list(keys), groups, counter[1] if counter else b"", decode=decode)


@dataclass(frozen=True, slots=True)
class Range:
    """Part of a sorted set. The bounds are in the syntax of ZRANGEBYLEX; `names_after` and `names_below` make them."""

    key_pair: KeyPair
    lowest: bytes = b"-"
    highest: bytes = b"+"


def scan_call(ranges: Sequence[Range], limit: int) -> Command[list[list[bytes]]]:
    """Up to `limit` members in all of sorted sets of one slot; ranges after the limit are left out of the reply."""
    bounds = [(part.lowest, part.highest) for part in ranges]
    return _script_call(SCAN, [part.key_pair.sorted_key for part in ranges], (limit, bounds), decode=list)


def read_all_call(key_pair: KeyPair) -> Command[dict[bytes, bytes]]:
    """Every field of a hash."""

    def decode(reply: Sequence[bytes] | Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        if isinstance(reply, Mapping):
            return dict(reply)
        return dict(zip(reply[::2], reply[1::2], strict=True))

    return Command(key_pair.hash_key, (b"HGETALL", key_pair.hash_key), decode=decode)


def remove_field_call(key_pair: KeyPair, name: bytes, lineage: int) -> Command[int]:
    """Remove one field of a hash, whatever its value; no error if it does not exist. `lineage`: that of before it was
    found to be unused.
    """
    return Command(key_pair.hash_key, (b"HDEL", key_pair.hash_key, name), lineage=lineage)


def remove_call(keys: Sequence[bytes], lineage: int) -> Command[int]:
    """Remove whole keys of one slot; no error if they do not exist. `lineage`: as for a field."""
    return Command(keys[0], (b"UNLINK", *keys), lineage=lineage)


def split_member(member: bytes, name_bytes: int | None = None) -> tuple[bytes, bytes]:
    """`(name, value)` of a sorted set's member; names that may hold a NUL have a fixed length."""
    end = member.index(b"\0") if name_bytes is None else name_bytes
    return member[:end], member[end + 1 :]


class RedisCalls(Protocol):
    def execute(self, calls: Sequence[Command[Any]]) -> list[Any]:
        """The replies, in order. Raises Unavailable, StorageFull; Redis may then have executed some of the calls."""
        ...

    def ask_nodes(self, *command: bytes) -> dict[str, Any]:
        """The reply of each node, by its address; None from one whose user may not ask. Raises Unavailable."""
        ...

    def lineage(self) -> int:
        """As of `MetadataStore`."""
        ...

    def close(self) -> None: ...


def execute(client: RedisCalls, calls: Sequence[Command[Result]]) -> list[Result]:
    """The decoded reply of each call. Raises as `RedisCalls.execute`."""
    return [call.decode(reply) for call, reply in zip(calls, client.execute(calls), strict=True)]


def read_fields(client: RedisCalls, key_pair: KeyPair, *names: bytes) -> list[bytes | None]:
    """The values of fields of one key pair."""
    return execute(client, [read_call([(key_pair, names)])])[0][0]


def swap(client: RedisCalls, *changes: Change) -> bool:
    """Make the changes if every field matches; returns whether they were made."""
    return not execute(client, [swap_call(changes)])[0].stale
