"""Another implementation of Thrift reads what is written here, and is read."""

import string
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.transport import TMemoryBuffer

from dieselfs.errors import ProtocolError
from dieselfs.rpc.idl import BOOL, I32, I64, LIST, MAP, STRING, Struct, ValueType
from dieselfs.rpc.scan import VALUES_MAX
from dieselfs.rpc.thrift_binary import CALL, REPLY, encode_message, read_body, read_start
from tests.dieselfs.rpc.test_idl import OURS, THEIRS

STRUCTS = sorted(OURS.structs)


def values(kind: ValueType) -> st.SearchStrategy[Any]:
    """Any value of this type."""
    if kind.struct is not None:
        return structs(kind.struct)
    if kind.kind == LIST:
        return st.lists(values(kind.elements[0]), max_size=4)
    if kind.kind == MAP:
        return st.dictionaries(*map(values, kind.elements), max_size=4)
    if kind.kind == STRING:
        return st.text(max_size=20) if kind.is_text else st.binary(max_size=20)
    bits = {I32: 31, I64: 63}
    return (
        st.booleans()
        if kind.kind == BOOL
        else st.integers(-(1 << bits[kind.kind]), (1 << bits[kind.kind]) - 1)
    )


def structs(kind: type[Struct]) -> st.SearchStrategy[Struct]:
    fields = {field.name: values(field.type) for field in kind.fields.values()}
    return st.fixed_dictionaries(fields).map(lambda content: kind(**content))


any_struct = st.sampled_from(STRUCTS).flatmap(lambda name: structs(OURS.structs[name]))


def to_theirs(value: Any) -> Any:
    if isinstance(value, Struct):
        content = {name: to_theirs(part) for name, part in vars(value).items()}
        return getattr(THEIRS, type(value).__name__)(**content)
    return [to_theirs(part) for part in value] if isinstance(value, list) else value


def their_message(method: str, kind: int, sequence: int, value: Any) -> bytes:
    buffer = TMemoryBuffer()
    protocol = TBinaryProtocol(buffer)
    protocol.write_message_begin(method, kind, sequence)
    protocol.write_struct(value)
    written: bytes = buffer.getvalue()
    return written


def read(kind: type[Struct], message: bytes) -> Any:
    return read_body(kind, message, read_start(message), VALUES_MAX)


@given(any_struct, st.text(string.ascii_letters + "_", min_size=1), st.integers(0, (1 << 31) - 1))
def test_messages_are_those_of_the_other_implementation(value: Struct, method: str, sequence: int) -> None:
    message = encode_message(method, REPLY, sequence, value)
    assert message == their_message(method, REPLY, sequence, to_theirs(value))


@given(any_struct)
def test_messages_survive_the_trip(value: Struct) -> None:
    message = encode_message("method", CALL, 5, value)
    assert read_start(message)[:3] == ("method", CALL, 5)
    assert read(type(value), message) == value


@given(any_struct, st.sampled_from(STRUCTS), st.data())
def test_bytes_of_any_struct_are_read_or_refused(value: Struct, name: str, data: st.DataObject) -> None:
    """As another struct, and with altered bytes: nothing but ProtocolError is raised."""
    message = bytearray(encode_message("method", CALL, 5, value))
    for place in data.draw(st.lists(st.integers(0, len(message) - 1), max_size=3)):
        message[place] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        read(OURS.structs[name], bytes(message))


def test_fields_that_the_idl_does_not_have_are_passed_over() -> None:
    """A later version of the protocol may add some."""
    message = encode_message("m", REPLY, 1, OURS.structs["UserInfo"](name="ada", keys=[], grants={"a": "b"}))
    added = (
        b"\x0c\x00\x63\x0f\x00\x01\x0b\x00\x00\x00\x01\x00\x00\x00\x02hi\x00"  # struct with a list of text
    )
    body = read_start(message).body
    extended = message[:body] + added + message[body:]
    assert read(OURS.structs["UserInfo"], extended).name == "ada"


def test_missing_fields_and_wrong_types_are_named() -> None:
    bulk, key = OURS.structs["Bulk"], OURS.structs["SharedPayloads"]
    message = encode_message("m", REPLY, 1, bulk())
    with pytest.raises(ProtocolError, match="'bulk_length' is missing"):
        read(bulk, message)
    message = encode_message("m", REPLY, 1, bulk(bulk_length=3))
    with pytest.raises(ProtocolError, match="'payloads' has the wrong type"):
        read(key, message)
