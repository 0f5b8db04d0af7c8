"""Leases: notes of a dataset that expire, by the server's clock: pins of readers, and members of jobs. Blocks."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from dieselfs.errors import Unavailable

NOTE_TRIES_MAX = 256
"""Tries to change notes that others change at the same time. With each lost try, another change was made."""

_EXPIRES = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Lease:
    """`expires_ns` is since 1970."""

    expires_ns: int
    value: bytes

    def note(self) -> bytes:
        return _EXPIRES.pack(self.expires_ns) + self.value

    @classmethod
    def of(cls, note: bytes) -> "Lease":
        (expires_ns,) = _EXPIRES.unpack_from(note)
        return cls(expires_ns, note[_EXPIRES.size :])


def until_done(attempt: Callable[[], bool], what: str) -> None:
    """Retry `attempt`, a change of notes, until it succeeds. Raises Unavailable after NOTE_TRIES_MAX attempts."""
    for _ in range(NOTE_TRIES_MAX):
        if attempt():
            return
    raise Unavailable(f"{what} is changed by too many clients at once; try again")
