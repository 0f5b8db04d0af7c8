"""Messages between a reading process and the daemon of its node (`docs/reference/shared-memory.md`). No I/O.

Each message is one packet: a head with its kind and the number of its request, and a body.
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
    """The first request, with the digest of the reader's snapshot."""

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
    """Requests the payload of a chunk, by its number in the snapshot; the reader needs `wanted_bytes` of it."""

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
    """Requests the members of the job, unless their version is `known_version`; 0: the reader knows none."""

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
    """The daemon does not hold or fetch the chunk: the reader fetches what it needs itself."""

    kind: ClassVar[int] = 0x83

    def body(self) -> bytes:
        return b""

    @classmethod
    def of(cls, body: bytes) -> "Absent":
        if body:
            raise ProtocolError(f"malformed packet: {len(body)} bytes in an empty body")
        return cls()


@dataclass(frozen=True, slots=True)
class MembersReply:
    """The version of the membership list, and its encoded length; a descriptor of it comes with the packet.

    If the reader knows the version: 0 bytes, and no descriptor.
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
    """The error of a request: its code on the wire, and its message."""

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
    """A message of an unknown kind, perhaps of a later version."""

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
