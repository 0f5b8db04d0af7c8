"""The roll of a job as it crosses the network: its members, each under its seal. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass

from dieselfs.cache.secret import SEALED_MEMBER_BYTES_MAX
from dieselfs.errors import ProtocolError
from dieselfs.limits import JOB_NODES_MAX

_LENGTH_BYTES = 2
ROLL_BYTES_MAX = JOB_NODES_MAX * (_LENGTH_BYTES + SEALED_MEMBER_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Roll:
    """What a member is told: the version of the roll, after how long to ask again, and the sealed members.

    `members` is None if they are those of the version that the caller knows.
    """

    version: int
    interval_s: float
    members: tuple[bytes, ...] | None


def encode_members(members: Iterable[bytes]) -> bytes:
    """Each with its length before it, 2 bytes, little-endian."""
    return b"".join(len(member).to_bytes(_LENGTH_BYTES, "little") + member for member in members)


def decode_members(encoded: bytes | bytearray) -> tuple[bytes, ...]:
    """Raises ProtocolError for what is cut short, or too long."""
    if len(encoded) > ROLL_BYTES_MAX:
        raise ProtocolError(f"a roll of {len(encoded)} bytes, limit {ROLL_BYTES_MAX}")
    members = []
    start = 0
    while start < len(encoded):
        first = start + _LENGTH_BYTES
        start = first + int.from_bytes(encoded[first - _LENGTH_BYTES : first], "little")
        members.append(bytes(encoded[first:start]))
    if start > len(encoded):
        raise ProtocolError("a roll that ends too early")
    return tuple(members)
