"""Messages between a process that reads and the daemon of its node, as bytes (`docs/shared-memory.md`). No I/O.

Each message is one packet: a head that says its kind and which request it belongs to, and a body.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar, get_args

from dieselfs.errors import CODE_BY_ERROR, ERROR_BY_CODE, DieselfsError, ProtocolError, Unavailable
from dieselfs.limits import NODE_PACKET_BYTES_MAX

MAGIC = b"\x89DSLM\r\n\x1a"
PROTOCOL_VERSION = 1

_HEAD = struct.Struct("<BxxxI")
_HELLO = struct.Struct("<8sI32s")
_CHUNK = struct.Struct("<II")
_VERSION = struct.Struct("<Q")
_MEMBERS = struct.Struct("<QI")
_NUMBER = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Hello:
    """The first request: which snapshot the reader has, by its digest."""

    digest: bytes
    version: int = PROTOCOL_VERSION
    kind: ClassVar[int] = 0x01

    def body(self) -> bytes:
        return _HELLO.pack(MAGIC, self.version, self.digest)

    @classmethod
    def of(cls, body: bytes) -> "Hello":
        magic, version, digest = _HELLO.unpack(body)
        if magic != MAGIC:
            raise ProtocolError("not the greeting of a reader")
        return cls(digest, version)


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """The payload of a chunk, by its number in the snapshot, for the sake of so many bytes of it."""

    chunk: int
    wanted_bytes: int
    kind: ClassVar[int] = 0x02

    def body(self) -> bytes:
        return _CHUNK.pack(self.chunk, self.wanted_bytes)

    @classmethod
    def of(cls, body: bytes) -> "ChunkRequest":
        return cls(*_CHUNK.unpack(body))


@dataclass(frozen=True, slots=True)
class MembersRequest:
    """The members of the job, unless they are those of the version that the reader knows; 0 if it knows none."""

    known_version: int
    kind: ClassVar[int] = 0x03

    def body(self) -> bytes:
        return _VERSION.pack(self.known_version)

    @classmethod
    def of(cls, body: bytes) -> "MembersRequest":
        return cls(*_VERSION.unpack(body))


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to `Hello`: the daemon has the same snapshot."""

    version: int = PROTOCOL_VERSION
    kind: ClassVar[int] = 0x81

    def body(self) -> bytes:
        return _NUMBER.pack(self.version)

    @classmethod
    def of(cls, body: bytes) -> "Welcome":
        return cls(*_NUMBER.unpack(body))


@dataclass(frozen=True, slots=True)
class SegmentReply:
    """The payload, as a segment of this length; its descriptor comes with the packet."""

    length_bytes: int
    kind: ClassVar[int] = 0x82

    def body(self) -> bytes:
        return _NUMBER.pack(self.length_bytes)

    @classmethod
    def of(cls, body: bytes) -> "SegmentReply":
        return cls(*_NUMBER.unpack(body))


@dataclass(frozen=True, slots=True)
class Absent:
    """The daemon does not hold the chunk and will not: let the reader fetch what it needs."""

    kind: ClassVar[int] = 0x83

    def body(self) -> bytes:
        return b""

    @classmethod
    def of(cls, body: bytes) -> "Absent":
        if body:
            raise ProtocolError("an empty answer that is not empty")
        return cls()


@dataclass(frozen=True, slots=True)
class MembersReply:
    """The members of the job in this version: encoded in so many bytes, whose descriptor comes with the packet.

    Without a descriptor, and of 0 bytes, if the version is the one that the reader knows.
    """

    version: int
    length_bytes: int
    kind: ClassVar[int] = 0x84

    def body(self) -> bytes:
        return _MEMBERS.pack(self.version, self.length_bytes)

    @classmethod
    def of(cls, body: bytes) -> "MembersReply":
        return cls(*_MEMBERS.unpack(body))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served: an error, by its number on the wire, and what it says."""

    code: int
    message: str
    kind: ClassVar[int] = 0xFF

    @classmethod
    def because(cls, error: DieselfsError) -> "Refusal":
        kinds = (kind for kind in type(error).__mro__ if kind in CODE_BY_ERROR)
        return cls(CODE_BY_ERROR[next(kinds, Unavailable)], str(error))

    @property
    def error(self) -> DieselfsError:
        return ERROR_BY_CODE.get(self.code, Unavailable)(self.message)

    def body(self) -> bytes:
        text = self.message.encode("utf-8", "backslashreplace")
        return _NUMBER.pack(self.code) + text[: NODE_PACKET_BYTES_MAX - _HEAD.size - _NUMBER.size]

    @classmethod
    def of(cls, body: bytes) -> "Refusal":
        (code,) = _NUMBER.unpack_from(body)
        return cls(code, body[_NUMBER.size :].decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message of a kind that a later version may have."""

    kind: int


Message = Hello | ChunkRequest | MembersRequest | Welcome | SegmentReply | Absent | MembersReply | Refusal
_KINDS = {kind.kind: kind for kind in get_args(Message)}


def encode(number: int, message: Message) -> bytes:
    """The packet of a message that belongs to request `number`."""
    return _HEAD.pack(message.kind, number) + message.body()


def decode(packet: bytes) -> tuple[int, Message | Unknown]:
    """The number of the request, and the message. Raises ProtocolError for anything malformed."""
    if not _HEAD.size <= len(packet) <= NODE_PACKET_BYTES_MAX:
        raise ProtocolError(f"a packet of {len(packet)} bytes")
    kind, number = _HEAD.unpack_from(packet)
    if kind not in _KINDS:
        return number, Unknown(kind)
    try:
        return number, _KINDS[kind].of(packet[_HEAD.size :])
    except struct.error:
        raise ProtocolError(f"a packet of kind {kind} has {len(packet)} bytes") from None
