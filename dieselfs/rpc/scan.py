"""Checks that bytes are one well-formed Thrift message before a decoder sees them. No I/O.

Decoders of the binary protocol trust its counts: a list of 2 billion elements of an unknown type costs the sender nine
bytes and the receiver minutes. Here types must be known, nesting is bounded, and a count may not exceed the bytes that
are left, as every element has at least one.
"""

from dieselfs.errors import ProtocolError

DEPTH_MAX = 16
VALUES_MAX = 1 << 18
"""In a reply with a list; each of its values has eight bytes and more."""

_BOOL, _BYTE, _DOUBLE, _I16, _I32, _I64 = 2, 3, 4, 6, 8, 10
_STRING, _STRUCT, _MAP, _SET, _LIST = 11, 12, 13, 14, 15
_FIXED_BYTES = {_BOOL: 1, _BYTE: 1, _DOUBLE: 8, _I16: 2, _I32: 4, _I64: 8}
_STOP = 0
_STRICT_VERSION = b"\x80\x01\x00"


class _Scan:
    """The values that a message may still have."""

    def __init__(self, values_max: int) -> None:
        self.values_left = values_max


def check_message(message: bytes, values_max: int = VALUES_MAX) -> None:
    """Raise ProtocolError unless `message` is one strict binary Thrift message of up to `values_max` values, with
    nothing behind it.
    """
    if message[:3] != _STRICT_VERSION:
        raise ProtocolError("not a Thrift message (strict binary protocol expected)")
    try:
        name_end = _string_end(message, 4)
        end = _value_end(message, name_end + 4, _STRUCT, DEPTH_MAX, _Scan(values_max))
    except IndexError:
        raise ProtocolError("malformed Thrift message: it ends too early") from None
    if end != len(message):
        raise ProtocolError(f"malformed Thrift message: {len(message) - end} bytes behind its end")


def _count(message: bytes, position: int) -> int:
    if position + 4 > len(message):
        raise IndexError
    count = int.from_bytes(message[position : position + 4], "big")
    if count > len(message) - position - 4:
        raise ProtocolError(f"malformed Thrift message: it announces {count} elements, but has fewer bytes")
    return count


def _string_end(message: bytes, position: int) -> int:
    return position + 4 + _count(message, position)


def _value_end(message: bytes, position: int, kind: int, depth: int, scan: _Scan) -> int:
    """The end of the value of type `kind` at `position`; may lie behind the message."""
    scan.values_left -= 1
    if scan.values_left < 0:
        raise ProtocolError("malformed Thrift message: too many values")
    size = _FIXED_BYTES.get(kind)
    if size is not None:
        return position + size
    if kind == _STRING:
        return _string_end(message, position)
    if depth == 0:
        raise ProtocolError("malformed Thrift message: nested too deeply")
    if kind == _STRUCT:
        while (field_kind := message[position]) != _STOP:
            position = _value_end(message, position + 3, field_kind, depth - 1, scan)
        return position + 1
    if kind in (_LIST, _SET):
        kinds = message[position : position + 1]
        position += 1
    elif kind == _MAP:
        kinds = message[position : position + 2]
        position += 2
    else:
        raise ProtocolError(f"malformed Thrift message: unknown type {kind}")
    count = _count(message, position)
    position += 4
    for _ in range(count):
        for element_kind in kinds:
            position = _value_end(message, position, element_kind, depth - 1, scan)
    return position
