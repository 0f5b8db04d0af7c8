"""Leases: notes of a dataset that hold until a time, by the server's clock. Pins of readers are leases, and so are
memberships in jobs. Blocks.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from dieselfs.errors import Unavailable
from dieselfs.limits import NOTE_TRIES_MAX

_EXPIRES = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Lease:
    """`expires_ns` is since 1970; at that time it is over."""

    expires_ns: int
    value: bytes

    def note(self) -> bytes:
        return _EXPIRES.pack(self.expires_ns) + self.value

    @classmethod
    def of(cls, note: bytes) -> "Lease":
        (expires_ns,) = _EXPIRES.unpack_from(note)
        return cls(expires_ns, note[_EXPIRES.size :])


def until_done(attempt: Callable[[], bool], what: str) -> None:
    """Make a change of notes again and again until nobody else was ahead of it. Raises Unavailable after many times."""
    for _ in range(NOTE_TRIES_MAX):
        if attempt():
            return
    raise Unavailable(f"{what} is changed by too many at once; try again")
