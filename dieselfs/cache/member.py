"""A member of a job: the master of one node, as the servers keep it and as the others get it. No I/O."""

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
from dieselfs.rpc.address import TcpAddress, parse_address

INCARNATION_BYTES = 16
RANK_MAX = (1 << 31) - 1

_KINDS = [str, int, str, int, bytes]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_job_name(name: str) -> str:
    """Return `name` if a job may be called so; raise InvalidInput otherwise."""
    return _checked_name("job", name, JOB_NAME_CHARACTERS_MAX)


def check_node_name(name: str) -> str:
    """Return `name` if a node may be called so; raise InvalidInput otherwise."""
    return _checked_name("node", name, NODE_NAME_CHARACTERS_MAX)


def _checked_name(what: str, name: str, characters_max: int) -> str:
    if len(name) > characters_max or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{what} name {name[:80]!r} is not allowed: up to {characters_max} letters, digits, '.', '_', '-'"
        )
    return name


@dataclass(frozen=True, slots=True)
class Terms:
    """What all members of a job have in common. The digest is that of the snapshot, the generation is for people."""

    dataset: str
    job: str
    generation: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Member:
    """`memory_bytes` is what it offers for chunks; `incarnation` is random, and new whenever a master begins."""

    node: str
    rank: int
    address: TcpAddress
    memory_bytes: int
    incarnation: bytes

    def card(self) -> bytes:
        """The member as bytes. Raises InvalidInput if there can be no such member."""
        fields = [self.node, self.rank, str(self.address), self.memory_bytes, self.incarnation]
        packed: bytes = msgpack.packb(fields)
        if len(packed) > MEMBER_BYTES_MAX:
            raise InvalidInput(f"the description of member {self.node} is too long")
        self.of(packed)
        return packed

    @classmethod
    def of(cls, card: bytes) -> "Member":
        """The member that `card` describes. Raises InvalidInput for what describes none."""
        try:
            fields = msgpack.unpackb(card) if len(card) <= MEMBER_BYTES_MAX else None
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, list) or [type(each) for each in fields] != _KINDS:
            raise InvalidInput("this describes no member of a job")
        if msgpack.packb(fields) != card:
            raise InvalidInput("this describes a member of a job in another way than the right one")
        node, rank, where, memory_bytes, incarnation = fields
        address = parse_address(where)
        if not isinstance(address, TcpAddress) or str(address) != where:
            raise InvalidInput(
                f"member {node[:80]!r} must be reached at tcp://HOST:PORT, not at {where[:80]!r}"
            )
        if not 0 <= rank <= RANK_MAX or not 0 <= memory_bytes <= MEMBER_MEMORY_BYTES_MAX:
            raise InvalidInput(
                f"member {node[:80]!r}: rank {rank} or memory of {memory_bytes} bytes is out of range"
            )
        if len(incarnation) != INCARNATION_BYTES:
            raise InvalidInput(f"member {node[:80]!r}: an incarnation has {INCARNATION_BYTES} bytes")
        return cls(check_node_name(node), rank, address, memory_bytes, incarnation)
