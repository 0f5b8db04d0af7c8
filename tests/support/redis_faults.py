"""Links to Redis that break on purpose, and hands that alter what is stored."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis

from dieselfs.errors import Unavailable
from dieselfs_server.metadata.redis import RedisMetadata
from dieselfs_server.metadata.redis_cells import Call
from dieselfs_server.metadata.redis_link import Link, RedisLink
from dieselfs_server.metadata.redis_url import parse_redis_url


class BreakingLink:
    """Carries `batches` batches, then breaks: as if the process were killed there. `is_answer_lost` breaks it behind
    the last batch: Redis has done it, nobody knows.
    """

    def __init__(self, link: Link, batches: int, is_answer_lost: bool) -> None:
        self._link = link
        self._left = batches
        self._is_answer_lost = is_answer_lost

    def ask(self, calls: Sequence[Call]) -> list[Any]:
        self._left -= 1
        if self._left < 0:
            raise Unavailable("the link is broken")
        replies = self._link.ask(calls)
        if self._left == 0 and self._is_answer_lost:
            raise Unavailable("the answer is lost")
        return replies

    def close(self) -> None:
        self._link.close()


class CallingLink:
    """Calls `between` before each batch."""

    def __init__(self, link: Link, between: Callable[[], None]) -> None:
        self._link = link
        self._between = between

    def ask(self, calls: Sequence[Call]) -> list[Any]:
        self._between()
        return self._link.ask(calls)

    def close(self) -> None:
        self._link.close()


def store_with(url: str, wrap: Callable[[Link], Link] = lambda link: link) -> RedisMetadata:
    """A store whose link is wrapped once it stands."""
    location = parse_redis_url(url)
    return RedisMetadata(wrap(RedisLink(location, patience_s=1.0)), location.prefix)


def altered_values(client: "redis.Redis", prefix: bytes) -> Iterator[bytes]:
    """Alter each value below `prefix`, one after the other, and put it back afterwards; yields its key.

    Only the count of a bucket's changes is left out: it is a number in plain text, and no value of ours.
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
