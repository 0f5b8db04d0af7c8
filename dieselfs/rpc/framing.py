"""Frames: 4 bytes of big-endian length, then one Thrift message. No I/O."""

import struct

from dieselfs.errors import ProtocolError

FRAME_HEADER_BYTES = 4
_LENGTH = struct.Struct(">I")


def frame(message: bytes) -> bytes:
    """`message` as it goes on the wire."""
    return _LENGTH.pack(len(message)) + message


def frame_length(header: bytes | bytearray | memoryview, limit_bytes: int) -> int:
    """Bytes of the message behind this frame header. Raises ProtocolError if it is more than the limit."""
    (length,) = _LENGTH.unpack(header)
    if not 0 < length <= limit_bytes:
        raise ProtocolError(
            f"the other side announces a message of {length} bytes, limit {limit_bytes}: "
            "is it a dieselfs server, and is TLS switched on at both ends or at neither?"
        )
    return int(length)
