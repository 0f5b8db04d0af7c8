"""Random tokens that stand for something until they expire: sessions, one-time links, challenges. No I/O.

Only the digest of a token is kept. All are in the memory of one server, so a restart ends them.
"""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Generic, TypeVar

TOKEN_BYTES = 32

Value = TypeVar("Value")


@dataclass(slots=True)
class _Entry(Generic[Value]):
    value: Value
    owner: str
    ends_s: float
    used_s: float


class Tokens(Generic[Value]):
    """At most `count_max` values, `owner_max` of one owner; the oldest gives way. For one thread at a time.

    A value ends `life_s` after it was added, and when it was not used for `idle_s`. Times are in seconds, and do not
    fall.
    """

    def __init__(self, count_max: int, owner_max: int, life_s: float, idle_s: float | None = None) -> None:
        self._count_max = count_max
        self._owner_max = owner_max
        self._life_s = life_s
        self._idle_s = life_s if idle_s is None else idle_s
        self._entries: dict[bytes, _Entry[Value]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, value: Value, owner: str, now_s: float) -> str:
        """The new token, in letters that may stand in a URL."""
        self._drop_ended(now_s)
        of_owner = [digest for digest, entry in self._entries.items() if entry.owner == owner]
        if len(of_owner) >= self._owner_max:
            del self._entries[of_owner[0]]
        elif len(self._entries) >= self._count_max:
            del self._entries[next(iter(self._entries))]
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._entries[_digest(token)] = _Entry(value, owner, now_s + self._life_s, now_s)
        return token

    def find(self, token: str, now_s: float) -> Value | None:
        """The value of a token, which is used by this; None if it is unknown or has ended."""
        self._drop_ended(now_s)
        entry = self._entries.get(_digest(token))
        if entry is None:
            return None
        entry.used_s = now_s
        return entry.value

    def take(self, token: str, now_s: float) -> Value | None:
        """As `find`; the token is worthless afterwards."""
        value = self.find(token, now_s)
        self._entries.pop(_digest(token), None)
        return value

    def clear(self) -> None:
        self._entries.clear()

    def _drop_ended(self, now_s: float) -> None:
        ended = [
            digest
            for digest, entry in self._entries.items()
            if now_s >= entry.ends_s or now_s - entry.used_s >= self._idle_s
        ]
        for digest in ended:
            del self._entries[digest]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
