"""Bounds for what a Thrift message announces, and the way past values that the IDL does not have. No I/O.

Decoders of the binary protocol usually trust its counts: a list of 2 billion elements of an unknown type costs the
sender nine bytes and the receiver minutes. Here types must be known, nesting is bounded, and a count may not exceed
the bytes that are left, as every element has at least one.
"""

from dieselfs.errors import ProtocolError

DEPTH_MAX = 16
VALUES_MAX = 1 << 18
"""In a reply with a list; each of its values has eight bytes and more."""

_BOOL, _BYTE, _DOUBLE, _I16, _I32, _I64 = 2, 3, 4, 6, 8, 10
_STRING, _STRUCT, _MAP, _SET, _LIST = 11, 12, 13, 14, 15
_FIXED_BYTES = {_BOOL: 1, _BYTE: 1, _DOUBLE: 8, _I16: 2, _I32: 4, _I64: 8}
_STOP = 0


class ValueBudget:
    """The values that a message may still have."""

    def __init__(self, values_max: int) -> None:
        self._values_left = values_max

    def spend(self, values: int = 1) -> None:
        """Raises ProtocolError if it may not have that many."""
        self._values_left -= values
        if self._values_left < 0:
            raise ProtocolError("malformed Thrift message: too many values")


def element_count(message: bytes, position: int) -> int:
    """The count at `position`: of the bytes of a string, or the elements of a list or a map. Raises IndexError if the
    message ends there, ProtocolError for a count that cannot be.
    """
    if position + 4 > len(message):
        raise IndexError
    count = int.from_bytes(message[position : position + 4], "big")
    if count > len(message) - position - 4:
        raise ProtocolError(f"malformed Thrift message: it announces {count} elements, but has fewer bytes")
    return count


def skip_value(message: bytes, position: int, kind: int, budget: ValueBudget, depth: int = DEPTH_MAX) -> int:
    """The end of the value of type `kind` at `position`; may lie behind the message. Raises as `element_count`."""
    budget.spend()
    size = _FIXED_BYTES.get(kind)
    if size is not None:
        return position + size
    if kind == _STRING:
        return position + 4 + element_count(message, position)
    if depth == 0:
        raise ProtocolError("malformed Thrift message: nested too deeply")
    if kind == _STRUCT:
        while (field_kind := message[position]) != _STOP:
            position = skip_value(message, position + 3, field_kind, budget, depth - 1)
        return position + 1
    if kind in (_LIST, _SET):
        kinds = message[position : position + 1]
    elif kind == _MAP:
        kinds = message[position : position + 2]
    else:
        raise ProtocolError(f"malformed Thrift message: unknown type {kind}")
    position += len(kinds)
    count = element_count(message, position)
    position += 4
    for _ in range(count):
        for element_kind in kinds:
            position = skip_value(message, position, element_kind, budget, depth - 1)
    return position
