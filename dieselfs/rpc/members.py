"""The membership list of a job as bytes: its members, each sealed. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass

from dieselfs.errors import ProtocolError
from dieselfs.limits import JOB_NODES_MAX, SEALED_MEMBER_BYTES_MAX

_LENGTH_BYTES = 2
MEMBERSHIP_LIST_BYTES_MAX = JOB_NODES_MAX * (_LENGTH_BYTES + SEALED_MEMBER_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class JobId:
    """What all members of a job share. `digest` is the `job_digest`; `generation` is for messages."""

    dataset: str
    job: str
    generation: int
    digest: bytes


def job_digest(snapshot_digest: bytes, order_version: int) -> bytes:
    """What the members of a job read: the digest of the snapshot, with the version of the default order in its last
    byte. So servers of any version refuse a node with another order. Version 1: the digest as it is.
    """
    return snapshot_digest[:-1] + bytes([snapshot_digest[-1] ^ (order_version - 1)])


def have_same_snapshot(digest: bytes, other: bytes) -> bool:
    """Whether two members read one snapshot, perhaps in different orders, by their `job_digest`."""
    return digest[:-1] == other[:-1]


@dataclass(frozen=True, slots=True)
class MembershipList:
    """The version of the list, the interval between requests, and the sealed members.

    `members` is None if the caller knows this version.
    """

    version: int
    interval_s: float
    members: tuple[bytes, ...] | None


def encode_members(members: Iterable[bytes]) -> bytes:
    """Each with its length before it, 2 bytes, little-endian."""
    return b"".join(len(member).to_bytes(_LENGTH_BYTES, "little") + member for member in members)


def decode_members(encoded: bytes | bytearray) -> tuple[bytes, ...]:
    """Raises ProtocolError for a list that is truncated or too long."""
    if len(encoded) > MEMBERSHIP_LIST_BYTES_MAX:
        raise ProtocolError(
            f"malformed membership list: {len(encoded)} bytes, limit {MEMBERSHIP_LIST_BYTES_MAX}"
        )
    members = []
    start = 0
    while start < len(encoded):
        first = start + _LENGTH_BYTES
        start = first + int.from_bytes(encoded[first - _LENGTH_BYTES : first], "little")
        members.append(bytes(encoded[first:start]))
    if start > len(encoded):
        raise ProtocolError("malformed membership list: it ends too early")
    return tuple(members)
