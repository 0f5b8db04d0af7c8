"""Messages between a reading process and the daemon of its node (`docs/reference/shared-memory.md`). No I/O.

Each message is one packet: a head with its kind and the number of its request, and a body. The page says why it is not
Thrift.
"""

import struct
from typing import NamedTuple

from dieselfs.errors import ERROR_BY_CODE, DieselfsError, ProtocolError, Unavailable, code_of
from dieselfs.limits import NODE_PACKET_BYTES_MAX

MAGIC = b"\x89DSLM\r\n\x1a"
PROTOCOL_VERSION = 1

_HEAD = struct.Struct("<BxxxI")
_CODE = struct.Struct("<I")


class Hello(NamedTuple):
    """The first request, with the digest of the reader's snapshot."""

    magic: bytes = MAGIC
    version: int = PROTOCOL_VERSION
    digest: bytes = bytes(32)


class ChunkRequest(NamedTuple):
    """Requests the payload of a chunk, by its number in the snapshot; the reader needs `wanted_bytes` of it."""

    chunk: int
    wanted_bytes: int


class MembersRequest(NamedTuple):
    """Requests the members of the job, unless their version is `known_version`; 0: the reader knows none."""

    known_version: int


class HeldRequest(NamedTuple):
    """Requests which chunks are in memory, as `SegmentReply` with the bits of `holdings.encoded`."""


class Welcome(NamedTuple):
    """The reply to `Hello`: the daemon has the same snapshot."""

    version: int = PROTOCOL_VERSION


class SegmentReply(NamedTuple):
    """The payload, as a segment of this length; its descriptor comes with the packet."""

    length_bytes: int


class Absent(NamedTuple):
    """The daemon does not hold or fetch the chunk: the reader fetches what it needs itself."""


class MembersReply(NamedTuple):
    """The version of the membership list, and its encoded length; a descriptor of it comes with the packet.

    If the reader knows the version: 0 bytes, and no descriptor.
    """

    version: int
    length_bytes: int


class Refusal(NamedTuple):
    """The error of a request: its code on the wire, and its message."""

    code: int
    message: str

    @classmethod
    def because(cls, error: DieselfsError) -> "Refusal":
        return cls(code_of(error), str(error))

    @property
    def error(self) -> DieselfsError:
        return ERROR_BY_CODE.get(self.code, Unavailable)(self.message)


class Unknown(NamedTuple):
    """A message of an unknown kind, perhaps of a later version."""

    kind: int


Message = (
    Hello
    | ChunkRequest
    | MembersRequest
    | HeldRequest
    | Welcome
    | SegmentReply
    | Absent
    | MembersReply
    | Refusal
)

REFUSAL_KIND = 0xFF
LAYOUTS: dict[int, tuple[type[Message], struct.Struct]] = {
    0x01: (Hello, struct.Struct("<8sI32s")),
    0x02: (ChunkRequest, struct.Struct("<II")),
    0x03: (MembersRequest, struct.Struct("<Q")),
    0x04: (HeldRequest, struct.Struct("")),
    0x81: (Welcome, struct.Struct("<I")),
    0x82: (SegmentReply, struct.Struct("<I")),
    0x83: (Absent, struct.Struct("")),
    0x84: (MembersReply, struct.Struct("<QI")),
}
"""The type of each kind of message but refusals, and the body that its fields are."""
_BY_TYPE = {message: (kind, layout) for kind, (message, layout) in LAYOUTS.items()}


def encode(number: int, message: Message) -> bytes:
    """The packet of a message that belongs to request `number`."""
    if isinstance(message, Refusal):
        text = message.message.encode("utf-8", "backslashreplace")
        packet = _HEAD.pack(REFUSAL_KIND, number) + _CODE.pack(message.code) + text
        return packet[:NODE_PACKET_BYTES_MAX]
    kind, layout = _BY_TYPE[type(message)]
    return _HEAD.pack(kind, number) + layout.pack(*message)


def decode(packet: bytes) -> tuple[int, Message | Unknown]:
    """The number of the request, and the message. Raises ProtocolError for anything malformed."""
    if not _HEAD.size <= len(packet) <= NODE_PACKET_BYTES_MAX:
        raise ProtocolError(f"a packet of {len(packet)} bytes")
    kind, number = _HEAD.unpack_from(packet)
    body = packet[_HEAD.size :]
    try:
        if kind == REFUSAL_KIND:
            (code,) = _CODE.unpack_from(body)
            return number, Refusal(code, body[_CODE.size :].decode("utf-8", "replace"))
        if kind not in LAYOUTS:
            return number, Unknown(kind)
        of_kind, layout = LAYOUTS[kind]
        message = of_kind(*layout.unpack(body))
    except struct.error:
        raise ProtocolError(f"a packet of kind {kind} has {len(packet)} bytes") from None
    if isinstance(message, Hello) and message.magic != MAGIC:
        raise ProtocolError("not the greeting of a reader")
    return number, message
