"""The tables of the IDL are those that another implementation of Thrift reads from the same file."""

from importlib import resources
from typing import Any

import pytest
import thriftpy2
from thriftpy2.thrift import TType

from dieselfs.rpc.idl import BOOL, I32, I64, LIST, MAP, STRING, STRUCT, Struct, ValueType, parse_idl

_FILE = resources.files("dieselfs.rpc") / "dieselfs.thrift"
OURS = parse_idl(_FILE.read_text("utf-8"))
with resources.as_file(_FILE) as _path:
    THEIRS: Any = thriftpy2.load(str(_path), module_name="judge_thrift")


def fields(struct: type[Struct]) -> dict[int, object]:
    return {number: (field.name, _described(field.type)) for number, field in struct.fields.items()}


def _described(kind: ValueType) -> object:
    name = kind.struct.__name__ if kind.struct else ("text" if kind.is_text else "")
    return kind.kind, name, [_described(element) for element in kind.elements]


def their_fields(struct: Any) -> dict[int, object]:
    found: dict[int, object] = {}
    for number, (kind, name, *details) in struct.thrift_spec.items():
        found[number] = name, _their_type(kind, details[0] if len(details) > 1 else None)
    return found


def _their_type(kind: Any, detail: Any) -> object:
    if isinstance(kind, tuple):
        kind, detail = kind
    if kind == TType.LIST:
        return LIST, "", [_their_type(detail, None)]
    if kind == TType.MAP:
        return MAP, "", [_their_type(element, None) for element in detail]
    if kind == TType.STRUCT:
        return STRUCT, detail.__name__, []
    ours = {TType.BINARY: STRING, TType.STRING: STRING, TType.BOOL: BOOL, TType.I32: I32, TType.I64: I64}
    return ours[kind], "text" if kind == TType.STRING else "", []


@pytest.mark.parametrize("service", ["Handshake", "Peer", "ChunkServer"])
def test_services_have_the_same_methods(service: str) -> None:
    theirs = getattr(THEIRS, service)
    assert set(OURS.services[service]) == set(theirs.thrift_services)
    for name, method in OURS.services[service].items():
        for kind, suffix in ((method.arguments, "args"), (method.result, "result")):
            parent = theirs if hasattr(theirs, f"{name}_{suffix}") else THEIRS.Handshake
            assert fields(kind) == their_fields(getattr(parent, f"{name}_{suffix}")), name


def test_structs_and_constants_are_the_same() -> None:
    theirs = {kind.__name__: kind for kind in THEIRS.__thrift_meta__["structs"]}
    theirs |= {kind.__name__: kind for kind in THEIRS.__thrift_meta__["exceptions"]}
    assert {name: fields(kind) for name, kind in OURS.structs.items()} == {
        name: their_fields(kind) for name, kind in theirs.items()
    }
    assert OURS.constants == {"PROTOCOL_VERSION": THEIRS.PROTOCOL_VERSION}


def test_a_struct_has_the_fields_of_the_idl_and_no_others() -> None:
    bulk = OURS.structs["Bulk"]
    assert bulk(bulk_length=3) == bulk(bulk_length=3) != bulk()
    assert bulk().bulk_length is None
    assert repr(bulk(bulk_length=3)) == "Bulk(bulk_length=3)"
    with pytest.raises(TypeError, match="'length'"):
        bulk(length=3)
    with pytest.raises(AttributeError, match="'length'"):
        _ = bulk().length


def test_a_type_that_is_used_before_it_is_known_is_an_error() -> None:
    with pytest.raises(KeyError, match="Later"):
        parse_idl("struct Early { 1: required Later later } struct Later { 1: required i32 number }")
