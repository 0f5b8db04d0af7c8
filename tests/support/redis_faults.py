"""Clients of Redis that fail on purpose, and a function that alters stored values."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis

from dieselfs.errors import Unavailable
from dieselfs_server.metadata.redis.client import RedisClient, parse_redis_url
from dieselfs_server.metadata.redis.fields import Command, RedisCalls
from dieselfs_server.metadata.redis.store import RedisMetadata


class BreakingLink:
    """Sends `batches` batches, then fails, as if the process were killed there. With `is_answer_lost` it fails after
    the last batch: Redis has executed it, and its reply is lost.
    """

    def __init__(self, client: RedisCalls, batches: int, is_answer_lost: bool) -> None:
        self._client = client
        self._left = batches
        self._is_answer_lost = is_answer_lost

    def execute(self, calls: Sequence[Command[Any]]) -> list[Any]:
        self._left -= 1
        if self._left < 0:
            raise Unavailable("the connection is broken")
        replies = self._client.execute(calls)
        if self._left == 0 and self._is_answer_lost:
            raise Unavailable("the reply is lost")
        return replies

    def ask_nodes(self, *command: bytes) -> dict[str, Any]:
        return self._client.ask_nodes(*command)

    def lineage(self) -> int:
        return self._client.lineage()

    def close(self) -> None:
        self._client.close()


class CallingLink:
    """Calls `between` before each batch, or before each with a command of this name."""

    def __init__(self, client: RedisCalls, between: Callable[[], None], command: bytes = b"") -> None:
        self._client = client
        self._between = between
        self._command = command

    def execute(self, calls: Sequence[Command[Any]]) -> list[Any]:
        if not self._command or any(call.arguments[0] == self._command for call in calls):
            self._between()
        return self._client.execute(calls)

    def ask_nodes(self, *command: bytes) -> dict[str, Any]:
        return self._client.ask_nodes(*command)

    def lineage(self) -> int:
        return self._client.lineage()

    def close(self) -> None:
        self._client.close()


def store_with(url: str, wrap: Callable[[RedisCalls], RedisCalls] = lambda client: client) -> RedisMetadata:
    """A store whose client is wrapped after it has connected."""
    location = parse_redis_url(url)
    return RedisMetadata(wrap(RedisClient(location, patience_s=1.0)), location.prefix)


def altered_values(client: "redis.Redis", prefix: bytes) -> Iterator[bytes]:
    """Alter each value below `prefix`, one after the other, and put it back afterwards; yields its key.

    The count of a bucket's changes is left out: it is a decimal number without a checksum.
    """
    do: Callable[..., Any] = client.execute_command
    for key in sorted(do("KEYS", prefix + b"*")):
        if key.endswith(b":changes"):
            continue
        if do("TYPE", key) in (b"hash", "hash"):
            for name in sorted(do("HKEYS", key)):
                value = do("HGET", key, name)
                do("HSET", key, name, flipped(value))
                yield key
                do("HSET", key, name, value)
        else:
            for member in do("ZRANGE", key, 0, -1):
                do("ZREM", key, member)
                do("ZADD", key, 0, flipped(member))
                yield key
                do("ZREM", key, flipped(member))
                do("ZADD", key, 0, member)


def flipped(value: bytes) -> bytes:
    """`value` with one bit of its seal changed."""
    return value[:-3] + bytes([value[-3] ^ 16]) + value[-2:]
