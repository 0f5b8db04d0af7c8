"""A Redis in this process: the commands and the three scripts that the metadata store uses, on virtual time. A restart
forgets the newest writes, as an append-only file of `everysec` does.

The client with its retries, its scripts and its look at `run_id` is the real one; connections and their pool are
replaced.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import msgpack
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError

from dieselfs_server.metadata.redis import client
from dieselfs_server.metadata.redis.fields import READ, SCAN, SWAP
from tests.simulation.clock import now_s
from tests.simulation.green import current_process
from tests.simulation.world import World

REDIS_S = 0.0004
FORGOTTEN_MAX = 12
"""Writes that a restart forgets, at most."""

_Key = dict[bytes, bytes] | list[bytes]


class Redis:
    """What one Redis holds, and what it would hold after a restart now."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.run = 1
        self.away_until_s = 0.0
        self._keys: dict[bytes, _Key] = {}
        self._base: dict[bytes, _Key] = {}
        self._log: list[tuple[Any, ...]] = []  # writes since the base
        self._scripts: set[bytes] = set()

    def restart(self, forgotten: int, away_s: float) -> None:
        """End all connections, and forget the newest writes."""
        forgotten = min(forgotten, len(self._log))
        self._keys = _copied(self._base)
        kept, self._log = self._log[: len(self._log) - forgotten], []
        for command in kept:
            self._do(command)
        self._scripts.clear()
        self.run += 1
        self.away_until_s = now_s() + away_s
        self.world.note(f"redis restarts, {forgotten} writes are forgotten")

    def lose(self) -> None:
        """As a new one: nothing is in it."""
        self._keys, self._base, self._log = {}, {}, []
        self._scripts.clear()
        self.run += 1

    def sync(self) -> None:
        """What is written so far is not forgotten."""
        self._base, self._log = _copied(self._keys), []

    @property
    def is_away(self) -> bool:
        return now_s() < self.away_until_s

    def answer(self, command: Sequence[Any]) -> Any:
        """The reply to a command, or an error of Redis."""
        name = command[0]
        if name == b"PING":
            return b"PONG"
        if name == b"INFO":
            return b"run_id:%040d\r\naof_enabled:1\r\n" % self.run
        if name == b"CONFIG":
            return [b"appendfsync", b"everysec"]
        if name == b"SCRIPT":
            self._scripts.add(command[2])
            return b""
        if name == b"EVALSHA":
            script = next(each for each in (READ, SWAP, SCAN) if each.digest == command[1])
            if script.text not in self._scripts:
                return NoScriptError("NOSCRIPT No matching script")
            if script is SWAP and self.world.fault("redis full"):
                return OutOfMemoryError("OOM command not allowed when used memory > 'maxmemory'.")
        return self._do(tuple(command))

    def _do(self, command: tuple[Any, ...]) -> Any:
        name = command[0]
        if name == b"HGETALL":
            fields = self._keys.get(command[1], {})
            assert isinstance(fields, dict)
            return [part for pair in fields.items() for part in pair]
        if name == b"HDEL":
            self._write(command)
            return sum(self._drop_field(command[1], field) for field in command[2:])
        if name == b"UNLINK":
            self._write(command)
            return sum(self._keys.pop(key, None) is not None for key in command[1:])
        assert name == b"EVALSHA", name
        count = command[2]
        keys, arguments = command[3 : 3 + count], command[3 + count :]
        unpacked = msgpack.unpackb(arguments[0], raw=True, strict_map_key=False)
        if command[1] == READ.digest:
            found = [[self._value(keys, group, field) or False for field in group[2]] for group in unpacked]
            return msgpack.packb(found, use_bin_type=False)
        if command[1] == SCAN.digest:
            return msgpack.packb(self._scan(keys, *unpacked), use_bin_type=False)
        return msgpack.packb(self._swap(command, keys, unpacked, arguments[1]), use_bin_type=False)

    def _write(self, command: tuple[Any, ...]) -> None:
        """Note a write before it is made."""
        if len(self._log) >= 2 * FORGOTTEN_MAX:
            old, self._log = self._log[:FORGOTTEN_MAX], self._log[FORGOTTEN_MAX:]
            self._base = _replayed(self._base, old)
        self._log.append(command)

    def _drop_field(self, key: bytes, field: bytes) -> bool:
        fields = self._keys.get(key)
        if not isinstance(fields, dict) or field not in fields:
            return False
        del fields[field]
        if not fields:
            del self._keys[key]
        return True

    def _value(self, keys: Sequence[bytes], group: Sequence[Any], field: bytes) -> bytes | None:
        """As `current_values` of the scripts, for one field."""
        fields = self._keys.get(keys[group[1] - 1]) if group[1] else None
        if isinstance(fields, dict) and field in fields:
            return fields[field]
        members = self._keys.get(keys[group[0] - 1]) if group[0] else None
        if isinstance(members, list):
            place = bisect_left(members, field + b"\0")
            if place < len(members) and members[place].startswith(field + b"\0"):
                return members[place][len(field) + 1 :]
        return None

    def _scan(self, keys: Sequence[bytes], limit: int, ranges: Sequence[Any]) -> list[list[bytes]]:
        found: list[list[bytes]] = []
        for key, (lowest, highest) in zip(keys, ranges, strict=True):
            if limit <= 0:
                break
            members = self._keys.get(key, [])
            assert isinstance(members, list)
            part = [each for each in members if _is_after(each, lowest) and _is_before(each, highest)][:limit]
            limit -= len(part)
            found.append(part)
        return found

    def _swap(
        self, command: tuple[Any, ...], keys: Sequence[bytes], groups: Sequence[Any], counter: bytes
    ) -> tuple[int, list[Any]]:
        stale = []
        for number, group in enumerate(groups):
            seals = _by_position(group[3])
            for place, field in enumerate(group[2]):
                value = self._value(keys, group, field)
                is_expected = (value[-8:] if value is not None else None) == seals.get(place + 1)
                if not is_expected and not (group[6] and value == group[4][place]):
                    stale.append((number, place, value or False))
        counts = self._keys.get(keys[0], {})
        count = int(counts.get(counter, 0)) if counter and isinstance(counts, dict) else 0
        if stale:
            return count, stale
        self._write(command)
        for group in groups:
            in_hash = _by_position(group[5])
            for place, field in enumerate(group[2]):
                self._set(keys, group, field, group[4][place], bool(in_hash.get(place + 1)))
        if counter:
            hash_of_counts = self._keys.setdefault(keys[0], {})
            assert isinstance(hash_of_counts, dict)
            hash_of_counts[counter] = str(count + 1).encode()
            return count + 1, []
        return 0, []

    def _set(
        self, keys: Sequence[bytes], group: Sequence[Any], field: bytes, value: bytes, in_hash: bool
    ) -> None:
        sorted_key = keys[group[0] - 1] if group[0] else None
        hash_key = keys[group[1] - 1] if group[1] else None
        old = self._value(keys, group, field)
        to_hash = bool(value) and (in_hash or sorted_key is None)
        members = self._keys.get(sorted_key) if sorted_key is not None else None
        if isinstance(members, list) and old is not None and field + b"\0" + old in members:
            members.remove(field + b"\0" + old)
            if not members and sorted_key is not None:
                del self._keys[sorted_key]
        if hash_key is not None and not to_hash:
            self._drop_field(hash_key, field)
        if to_hash:
            assert hash_key is not None
            fields = self._keys.setdefault(hash_key, {})
            assert isinstance(fields, dict)
            fields[field] = value
        elif value:
            assert sorted_key is not None
            kept = self._keys.setdefault(sorted_key, [])
            assert isinstance(kept, list)
            insort(kept, field + b"\0" + value)


def _by_position(table: Any) -> dict[int, Any]:
    """A map of msgpack; an empty one may come as a list."""
    return dict(table) if isinstance(table, dict) else {}


def _is_after(member: bytes, lowest: bytes) -> bool:
    if lowest == b"-":
        return True
    return member >= lowest[1:] if lowest[:1] == b"[" else member > lowest[1:]


def _is_before(member: bytes, highest: bytes) -> bool:
    if highest == b"+":
        return True
    return member <= highest[1:] if highest[:1] == b"[" else member < highest[1:]


def _copied(keys: dict[bytes, _Key]) -> dict[bytes, _Key]:
    return {name: key.copy() for name, key in keys.items()}


def _replayed(keys: dict[bytes, _Key], commands: Sequence[tuple[Any, ...]]) -> dict[bytes, _Key]:
    scratch = Redis.__new__(Redis)
    scratch._keys, scratch._base, scratch._log = keys, {}, []
    for command in commands:
        scratch._log.clear()
        scratch._do(command)
    return scratch._keys


class _Connection:
    """As a connection of redis-py; replies wait here until they are read."""

    def __init__(self, redis: Redis, greet: Any) -> None:
        self._redis, self._greet = redis, greet
        self._run = 0
        self._replies: list[Any] = []
        self._sock = self  # what the client does with its socket, see `settimeout`

    def settimeout(self, _: float) -> None:
        """The model answers within REDIS_S, or with an error: no time limit is reached."""

    def connect(self) -> None:
        if self._run:
            return
        self._redis.world.pause(REDIS_S)
        if self._redis.is_away or self._redis.world.fault("redis refused"):
            raise RedisConnectionError("Error 111 connecting to redis:6379. Connection refused.")
        self._run = self._redis.run
        try:
            self._greet(self)
        except BaseException:
            self.disconnect()
            raise

    def on_connect(self) -> None:
        """Logged in."""

    def disconnect(self) -> None:
        self._run = 0
        self._replies.clear()

    def pack_commands(self, commands: Sequence[Any]) -> Sequence[Any]:
        return list(commands)

    def send_command(self, *command: Any) -> None:
        self.send_packed_command([command])

    def send_packed_command(self, commands: Sequence[Any]) -> None:
        world = self._redis.world
        process = current_process()
        if process is not None:
            process.check()
        world.pause(REDIS_S)
        if self._is_lost() or world.fault("redis reset"):
            self.disconnect()
            raise RedisConnectionError("Connection closed by server.")
        self._replies += [self._redis.answer(command) for command in commands]
        if world.fault("redis answer lost"):
            self._replies = [RedisConnectionError("Connection closed by server.")]

    def read_response(self) -> Any:
        self._redis.world.pause(REDIS_S)
        if self._is_lost() or not self._replies:
            raise RedisConnectionError("Connection closed by server.")
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _is_lost(self) -> bool:
        return self._redis.is_away or self._run != self._redis.run


class _Pool:
    """As a pool of redis-py."""

    def __init__(self, *, redis_connect_func: Any, **_: object) -> None:
        self._greet = redis_connect_func
        self._idle: list[_Connection] = []

    def get_connection(self) -> _Connection:
        process = current_process()
        assert process is not None
        connection = self._idle.pop() if self._idle else _Connection(process.parts["redis"], self._greet)
        if connection._is_lost():
            connection.disconnect()
        connection.connect()
        return connection

    def release(self, connection: _Connection) -> None:
        self._idle.append(connection)

    def disconnect(self) -> None:
        self._idle.clear()


def install() -> None:
    """Connections of the metadata store go to the Redis of their process."""
    setattr(client, "BlockingConnectionPool", _Pool)  # noqa: B010  # mypy takes the assignment for a mistake
