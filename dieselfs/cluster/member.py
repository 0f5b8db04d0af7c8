"""A member of a job: the node master as servers and other nodes see it. No I/O."""

import re
from dataclasses import dataclass

import msgpack

from dieselfs.errors import InvalidInput
from dieselfs.limits import (
    JOB_NAME_CHARACTERS_MAX,
    MEMBER_BYTES_MAX,
    MEMBER_MEMORY_BYTES_MAX,
    NODE_NAME_CHARACTERS_MAX,
)
from dieselfs.net.address import TcpAddress, parse_address

INCARNATION_BYTES = 16
RANK_MAX = (1 << 31) - 1

FINGERPRINT_BYTES = 32
"""SHA-256 of a certificate."""

_KINDS = [str, int, str, int, bytes, bytes]
_NOWHERE = TcpAddress("127.0.0.1", 0)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_job_name(name: str) -> str:
    """Return `name` if it is a valid job name; raise InvalidInput otherwise."""
    return _checked_name("job", name, JOB_NAME_CHARACTERS_MAX)


def check_node_name(name: str) -> str:
    """Return `name` if it is a valid node name; raise InvalidInput otherwise."""
    return _checked_name("node", name, NODE_NAME_CHARACTERS_MAX)


def _checked_name(what: str, name: str, characters_max: int) -> str:
    if len(name) > characters_max or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{what} name {name[:80]!r} is not allowed: up to {characters_max} letters, digits, '.', '_', '-'"
        )
    return name


@dataclass(frozen=True, slots=True)
class Member:
    """`memory_bytes` is its memory for chunks; `incarnation` is random, and new for each start of a master; so is
    `fingerprint`, that of its certificate: zeros without TLS.
    """

    node: str
    rank: int
    address: TcpAddress
    memory_bytes: int
    incarnation: bytes
    fingerprint: bytes = bytes(FINGERPRINT_BYTES)

    @classmethod
    def named(cls, node: str) -> "Member":
        """A node of which the name alone is known: it offers no memory, and gets no requests."""
        return cls(node, 0, _NOWHERE, 0, bytes(INCARNATION_BYTES))

    def encode(self) -> bytes:
        """The member as canonical msgpack. Raises InvalidInput for invalid fields."""
        fields = [
            self.node,
            self.rank,
            str(self.address),
            self.memory_bytes,
            self.incarnation,
            self.fingerprint,
        ]
        packed: bytes = msgpack.packb(fields)
        if len(packed) > MEMBER_BYTES_MAX:
            raise InvalidInput(f"member {self.node}: {len(packed)} bytes encoded, limit {MEMBER_BYTES_MAX}")
        self.of(packed)
        return packed

    @classmethod
    def of(cls, encoded: bytes) -> "Member":
        """Raises InvalidInput unless `encoded` is what `encode` returns for a valid member."""
        try:
            fields = msgpack.unpackb(encoded) if len(encoded) <= MEMBER_BYTES_MAX else None
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, list) or [type(each) for each in fields] != _KINDS:
            raise InvalidInput("malformed member record: wrong number or types of fields")
        if msgpack.packb(fields) != encoded:
            raise InvalidInput("malformed member record: not in canonical msgpack form")
        node, rank, where, memory_bytes, incarnation, fingerprint = fields
        address = parse_address(where)
        if not isinstance(address, TcpAddress) or str(address) != where:
            raise InvalidInput(
                f"member {node[:80]!r}: its address must be tcp://HOST:PORT, not {where[:80]!r}"
            )
        if not 0 <= rank <= RANK_MAX or not 0 <= memory_bytes <= MEMBER_MEMORY_BYTES_MAX:
            raise InvalidInput(
                f"member {node[:80]!r}: rank {rank} or memory of {memory_bytes} bytes is out of range"
            )
        if len(incarnation) != INCARNATION_BYTES:
            raise InvalidInput(f"member {node[:80]!r}: an incarnation has {INCARNATION_BYTES} bytes")
        if len(fingerprint) != FINGERPRINT_BYTES:
            raise InvalidInput(f"member {node[:80]!r}: a fingerprint has {FINGERPRINT_BYTES} bytes")
        return cls(check_node_name(node), rank, address, memory_bytes, incarnation, fingerprint)
