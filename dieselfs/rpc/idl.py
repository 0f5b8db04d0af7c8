"""Structs and methods of a Thrift IDL, from its text: the part of the language that `dieselfs.thrift` uses. No I/O.

A program that imports dieselfs waits for this, so the tables are made by a few regular expressions (3 ms), not by a
general parser of Thrift (60 ms with its imports). Tests compare them with those of thriftpy2.
"""

import re
import struct
from typing import Any, ClassVar, NamedTuple

BOOL, I32, I64, STRING, STRUCT, MAP, LIST = 2, 8, 10, 11, 12, 13, 15
"""The types of values in the binary protocol of Thrift, as far as they are used here."""
FIELD_HEADER = struct.Struct(">bh")

_NAMED_KINDS = {"bool": BOOL, "i32": I32, "i64": I64, "string": STRING, "binary": STRING}
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_CONSTANT = re.compile(r"const\s+i32\s+(\w+)\s*=\s*(\d+)")
_STRUCT = re.compile(r"(?:struct|exception)\s+(\w+)\s*\{(.*?)\}", re.DOTALL)
_SERVICE = re.compile(r"service\s+(\w+)(?:\s+extends\s+(\w+))?\s*\{(.*?)\}", re.DOTALL)
_TYPE = r"(\w+(?:<[\w, ]+>)?)"
_METHOD = re.compile(_TYPE + r"\s+(\w+)\s*\(([^)]*)\)\s*throws\s*\(([^)]*)\)")
_FIELD = re.compile(r"(\d+):\s*(?:required\s+)?" + _TYPE + r"\s+(\w+)")


class ValueType(NamedTuple):
    """`kind`: see above; `elements`: the types of what a list or a map contains; `struct`: of a struct."""

    kind: int
    is_text: bool = False
    elements: "tuple[ValueType, ...]" = ()
    struct: "type[Struct] | None" = None


class Field(NamedTuple):
    name: str
    type: ValueType
    is_required: bool


class Struct:
    """A struct, the arguments of a call, or a result. Its fields are attributes, None if there is no value.

    Raises TypeError for a field that the IDL does not have.
    """

    fields: ClassVar[dict[int, Field]] = {}
    """By number."""
    headers: ClassVar[dict[bytes, Field]] = {}
    """By the bytes that precede their values in a message: type and number."""

    def __init_subclass__(cls) -> None:
        cls.headers = {
            FIELD_HEADER.pack(field.type.kind, number): field for number, field in cls.fields.items()
        }

    def __init__(self, **values: object) -> None:
        content: dict[str, object] = {field.name: None for field in self.fields.values()}
        unknown = values.keys() - content.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {min(unknown)!r}")
        self.__dict__ = content | values

    @classmethod
    def of(cls, content: dict[str, object]) -> "Struct":
        """With these values; `content` has all fields, and is no longer the caller's."""
        made = cls.__new__(cls)
        made.__dict__ = content
        return made

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({values})"


class Method(NamedTuple):
    arguments: type[Struct]
    result: type[Struct]


class Interface(NamedTuple):
    """The content of an IDL, by name; a service has the methods that it extends, too."""

    constants: dict[str, int]
    structs: dict[str, type[Struct]]
    services: dict[str, dict[str, Method]]


def parse_idl(text: str) -> Interface:
    """Raises KeyError for a type that is not known before its use. What is not understood is left out."""
    text = _COMMENT.sub("", text)
    structs: dict[str, type[Struct]] = {}
    for name, body in _STRUCT.findall(text):
        structs[name] = _struct(name, _fields(body, structs, is_required=True))
    services: dict[str, dict[str, Method]] = {}
    for name, base, body in _SERVICE.findall(text):
        methods = dict(services[base]) if base else {}
        for returned, method, arguments, thrown in _METHOD.findall(body):
            success = {} if returned == "void" else _fields(f"0: {returned} success", structs, False)
            methods[method] = Method(
                _struct(f"{method}_args", _fields(arguments, structs, is_required=True)),
                _struct(f"{method}_result", success | _fields(thrown, structs, is_required=False)),
            )
        services[name] = methods
    return Interface(
        {name: int(value) for name, value in _CONSTANT.findall(text)},
        structs,
        services,
    )


def _struct(name: str, fields: dict[int, Field]) -> type[Struct]:
    return type(name, (Struct,), {"fields": fields, "__module__": __name__})


def _fields(text: str, structs: dict[str, type[Struct]], is_required: bool) -> dict[int, Field]:
    return {
        int(number): Field(name, _value_type(kind, structs), is_required)
        for number, kind, name in _FIELD.findall(text)
    }


def _value_type(text: str, structs: dict[str, type[Struct]]) -> ValueType:
    outer, _, inner = text.rstrip(">").partition("<")
    if inner:
        elements = tuple(_value_type(element.strip(), structs) for element in inner.split(","))
        return ValueType({"list": LIST, "map": MAP}[outer], elements=elements)
    if text in _NAMED_KINDS:
        return ValueType(_NAMED_KINDS[text], is_text=text == "string")
    return ValueType(STRUCT, struct=structs[text])
