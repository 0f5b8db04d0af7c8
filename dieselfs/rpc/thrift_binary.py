"""The strict binary protocol of Thrift: structs as bytes, and back. No I/O.

Only the types that the IDL uses. What a message announces is not believed (`dieselfs.rpc.scan`).
"""

import struct
from typing import Any, NamedTuple

from dieselfs.errors import ProtocolError
from dieselfs.rpc.idl import BOOL, FIELD_HEADER, I32, I64, MAP, STRING, STRUCT, Field, Struct, ValueType
from dieselfs.rpc.scan import ValueBudget, element_count, skip_value

CALL, REPLY, EXCEPTION = 1, 2, 3
"""Kinds of messages."""

_STRICT_VERSION = b"\x80\x01\x00"
_WORD = struct.Struct(">I")
_NUMBERS = {BOOL: struct.Struct(">?"), I32: struct.Struct(">i"), I64: struct.Struct(">q")}
_NUMBER_FIELDS = {
    BOOL: struct.Struct(">3s?").pack,
    I32: struct.Struct(">3si").pack,
    I64: struct.Struct(">3sq").pack,
}
"""A field with its header."""
_STOP = 0


class MessageStart(NamedTuple):
    """`kind`: CALL, REPLY, ...; `body`: where the struct begins."""

    method: str
    kind: int
    sequence: int
    body: int


class _WrongType(Exception):
    """A value does not have the type of its field."""


def encode_message(method: str, kind: int, sequence: int, body: Struct) -> bytes:
    """Fields without a value are left out. Raises TypeError, ValueError or struct.error for a value of another type."""
    name = method.encode()
    out = bytearray(_STRICT_VERSION)
    out.append(kind)
    out += _WORD.pack(len(name))
    out += name
    out += _WORD.pack(sequence)
    _write_struct(out, body)
    return bytes(out)


def read_start(message: bytes) -> MessageStart:
    """The beginning of a message. Raises ProtocolError."""
    if message[:3] != _STRICT_VERSION:
        raise ProtocolError("not a Thrift message (strict binary protocol expected)")
    try:
        name, end = _binary(message, 4)
        return MessageStart(name.decode(), message[3], _WORD.unpack_from(message, end)[0], end + _WORD.size)
    except UnicodeDecodeError:
        raise ProtocolError("not a Thrift message (the method has no name)") from None
    except (IndexError, struct.error):
        raise _too_short() from None


def read_body(kind: type[Struct], message: bytes, start: MessageStart, values_max: int) -> Any:
    """The struct of a message, of up to `values_max` values, with nothing behind it.

    Fields that the IDL does not have are passed over. Raises ProtocolError if the message is malformed, or a field is
    missing or has another type.
    """
    try:
        body, end = _struct(kind, message, start.body, ValueBudget(values_max))
    except (IndexError, struct.error):
        raise _too_short() from None
    if end != len(message):
        raise ProtocolError(f"malformed Thrift message: {len(message) - end} bytes behind its end")
    return body


def _too_short() -> ProtocolError:
    return ProtocolError("malformed Thrift message: it ends too early")


def _write_struct(out: bytearray, value: Struct) -> None:
    content = vars(value)
    for header, (name, kind, _) in value.headers.items():
        part = content[name]
        if part is None:
            continue
        number = _NUMBER_FIELDS.get(kind.kind)
        if number is not None:  # most fields of long listings
            out += number(header, part)
        else:
            out += header
            _write(out, kind, part)
    out.append(_STOP)


def _write(out: bytearray, kind: ValueType, value: Any) -> None:
    code = kind.kind
    if code == STRING:
        content = value.encode() if kind.is_text else value
        out += _WORD.pack(len(content))
        out += content
    elif code in _NUMBERS:
        out += _NUMBERS[code].pack(value)
    elif code == STRUCT:
        _write_struct(out, value)
    else:
        out += bytes(element.kind for element in kind.elements)
        out += _WORD.pack(len(value))
        for row in value.items() if code == MAP else zip(value, strict=True):
            for element, part in zip(kind.elements, row, strict=True):
                _write(out, element, part)


def _struct(kind: type[Struct], message: bytes, position: int, budget: ValueBudget) -> tuple[Struct, int]:
    fields = kind.headers
    budget.spend(1 + len(fields))
    content: dict[str, Any] = {}
    while True:
        header = message[position : position + 3]
        field = fields.get(header)
        if field is None:
            if message[position] == _STOP:
                break
            position = _strange_field(kind, message, position, budget)
            continue
        name, value_type, _ = field
        number = _NUMBERS.get(value_type.kind)
        if number is not None:  # most fields of long listings
            (content[name],) = number.unpack_from(message, position + 3)
            position += 3 + number.size
            continue
        try:
            content[name], position = _value(value_type, message, position + 3, budget)
        except (_WrongType, UnicodeDecodeError):
            raise _wrong_type(field) from None
    if len(content) < len(fields):
        for field in fields.values():
            if field.is_required and field.name not in content:
                raise ProtocolError(f"malformed Thrift message (field {field.name!r} is missing)")
            content.setdefault(field.name, None)
    return kind.of(content), position + 1


def _strange_field(kind: type[Struct], message: bytes, position: int, budget: ValueBudget) -> int:
    """The end of a field that the IDL does not have."""
    wire_kind, number = FIELD_HEADER.unpack_from(message, position)
    if number in kind.fields:
        raise _wrong_type(kind.fields[number])
    return skip_value(message, position + FIELD_HEADER.size, wire_kind, budget)


def _wrong_type(field: Field) -> ProtocolError:
    return ProtocolError(f"malformed Thrift message (field {field.name!r} has the wrong type)")


def _value(kind: ValueType, message: bytes, position: int, budget: ValueBudget) -> tuple[Any, int]:
    code = kind.kind
    number = _NUMBERS.get(code)
    if number is not None:
        return number.unpack_from(message, position)[0], position + number.size
    if code == STRING:
        content, end = _binary(message, position)
        return content.decode() if kind.is_text else content, end
    if kind.struct is not None:
        return _struct(kind.struct, message, position, budget)
    return _container(kind, message, position, budget)


def _container(kind: ValueType, message: bytes, position: int, budget: ValueBudget) -> tuple[Any, int]:
    """A list, or a map."""
    wire_kinds = message[position : position + len(kind.elements)]
    position += len(kind.elements)
    count = element_count(message, position)
    position += _WORD.size
    if count and wire_kinds != bytes(element.kind for element in kind.elements):
        raise _WrongType
    budget.spend(count * len(kind.elements))
    rows = []
    for _ in range(count):
        row = []
        for element in kind.elements:
            part, position = _value(element, message, position, budget)
            row.append(part)
        rows.append(row)
    return (dict(rows) if kind.kind == MAP else [row[0] for row in rows]), position


def _binary(message: bytes, position: int) -> tuple[bytes, int]:
    start = position + _WORD.size
    end = start + int(_WORD.unpack_from(message, position)[0])
    if end > len(message):
        element_count(message, position)  # raises
    return message[start:end], end
