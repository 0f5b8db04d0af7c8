"""Thrift messages as bytes: calls and replies of `dieselfs.thrift`. No I/O.

Classes of an IDL are untyped: `rpc.calls` and the server's service convert to typed values.
"""

import struct
from functools import cache
from typing import Any

from thriftpy2.protocol.cybin.cybin import TCyBinaryProtocol
from thriftpy2.protocol.exc import TProtocolException
from thriftpy2.thrift import TApplicationException, TMessageType, TType
from thriftpy2.transport.base import TTransportException
from thriftpy2.transport.memory.cymemory import TCyMemoryBuffer

from dieselfs.errors import ERROR_BY_CODE, DieselfsError, ProtocolError, Unavailable, code_of
from dieselfs.limits import CALL_VALUES_MAX
from dieselfs.rpc.methods import METHODS, SERVER_METHODS
from dieselfs.rpc.records import CopyProgress
from dieselfs.rpc.scan import check_message
from dieselfs.rpc.structs import thrift as thrift

FRAME_HEADER_BYTES = 4
"""Each message has its length before it, big-endian."""
_LENGTH = struct.Struct(">I")
KEEP_ALIVE = bytes(FRAME_HEADER_BYTES)
"""An empty message, before a reply: the server still works on the call."""

_PROGRESS = struct.Struct("<4Q")
PROGRESS_BYTES = _PROGRESS.size
PROGRESS = _LENGTH.pack(PROGRESS_BYTES)
"""Before a message with the progress of a copy, which is shorter than any reply to it."""

PROTOCOL_VERSION = thrift.PROTOCOL_VERSION
_BAD_BYTES = (
    TProtocolException,
    TTransportException,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    struct.error,
)
"""Errors from decoding a well-formed message with wrong content."""


_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""The first bytes of a TLS connection: an alert of a server, the hello of a client."""


def frame(message: bytes) -> bytes:
    """`message` behind its length."""
    return _LENGTH.pack(len(message)) + message


def frame_length(header: bytes | bytearray | memoryview, limit_bytes: int) -> int:
    """Bytes of the message behind this frame header. Raises ProtocolError if it is more than the limit."""
    (length,) = _LENGTH.unpack(header)
    if bytes(header[:2]) in _TLS_RECORDS:
        raise ProtocolError(
            "the other side speaks TLS, and here it is off: tls must be off at both ends or at neither"
        )
    if not 0 < length <= limit_bytes:
        raise ProtocolError(
            f"the other side announces a message of {length} bytes, limit {limit_bytes}: "
            "is it a dieselfs server?"
        )
    return int(length)


def encode_progress(progress: CopyProgress) -> bytes:
    """A sign of life of a server that copies."""
    return _PROGRESS.pack(*progress)


def decode_progress(message: bytes | bytearray) -> CopyProgress:
    """The progress in a message of PROGRESS_BYTES."""
    return CopyProgress(*_PROGRESS.unpack(message))


def connection_name(client_nonce: bytes) -> str:
    """What both sides call a connection in their logs; with the number of a call, it names a request."""
    return client_nonce[:4].hex()


def encode_call(method: str, sequence: int, arguments: dict[str, object]) -> bytes:
    """A call of `method`; arguments by their names in the IDL."""
    return _encode(method, TMessageType.CALL, sequence, getattr(thrift, f"{method}_args")(**arguments))


def decode_call(message: bytes, methods: frozenset[str] = SERVER_METHODS) -> tuple[str, int, Any]:
    """`(method, sequence, arguments)`; arguments are attributes. Raises ProtocolError for anything malformed, and for
    a call of another method.
    """
    method, kind, sequence, protocol = _begin(message, CALL_VALUES_MAX)
    if kind != TMessageType.CALL or method not in methods:
        raise ProtocolError(f"not a call of a known method ({method[:40]!r})")
    return method, sequence, _read(getattr(thrift, f"{method}_args")(), protocol)


def encode_reply(method: str, sequence: int, value: object) -> bytes:
    """A reply with a value or struct of the IDL, with a record that has the same fields, or with a list of them."""
    result = getattr(thrift, f"{method}_result")()
    if value is not None:
        kind, _, of, *_ = result.thrift_spec[0]
        result.success = _as_declared(kind, of, value)
    return _encode(method, TMessageType.REPLY, sequence, result)


def encode_refusal(method: str, sequence: int, error: DieselfsError) -> bytes:
    """The reply for which the caller raises `error`."""
    result = getattr(thrift, f"{method}_result")()
    result.refusal = thrift.Refusal(code=code_of(error), message=str(error))
    return _encode(method, TMessageType.REPLY, sequence, result)


def decode_reply(method: str, sequence: int, message: bytes) -> Any:
    """The value that the call returned. Raises the server's refusal, ProtocolError for anything malformed."""
    name, kind, reply_sequence, protocol = _begin(message, METHODS[method].sizes.reply_values)
    if kind == TMessageType.EXCEPTION:
        fault = _read(TApplicationException(), protocol)
        raise ProtocolError(f"the server cannot answer {method!r}: {fault.message}")
    if kind != TMessageType.REPLY or name != method or reply_sequence != sequence:
        raise ProtocolError(f"expected the reply to {method!r}, got another message")
    result = _read(getattr(thrift, f"{method}_result")(), protocol)
    refusal = result.refusal
    if refusal is not None:
        raise ERROR_BY_CODE.get(refusal.code, Unavailable)(refusal.message)
    returns_value = 0 in result.thrift_spec
    if returns_value and result.success is None:
        raise ProtocolError(f"the reply to {method!r} is empty")
    return result.success if returns_value else None


def _as_declared(kind: int, of: Any, value: Any) -> Any:
    """`value` as the IDL declares it: a record as its struct, a tuple as a list. `of`: the struct, or what a list has,
    as in a `thrift_spec`.
    """
    if kind == TType.LIST:
        element_kind, element_of = of if isinstance(of, tuple) else (of, None)
        return [_as_declared(element_kind, element_of, each) for each in value]
    if kind != TType.STRUCT or isinstance(value, of):
        return value
    fields = value._asdict()
    for name, nested_kind, nested_of in _nested(of):
        fields[name] = _as_declared(nested_kind, nested_of, fields[name])
    return of(**fields)


@cache
def _nested(struct_kind: Any) -> list[tuple[str, int, Any]]:
    """Name, type and content of the fields of a struct that are structs or lists."""
    specs = struct_kind.thrift_spec.values()
    return [(spec[1], spec[0], spec[2]) for spec in specs if spec[0] in (TType.STRUCT, TType.LIST)]


def _encode(method: str, kind: int, sequence: int, payload: Any) -> bytes:
    buffer = TCyMemoryBuffer()
    protocol = TCyBinaryProtocol(buffer)
    protocol.write_message_begin(method, kind, sequence)
    protocol.write_struct(payload)
    protocol.write_message_end()
    encoded: bytes = buffer.getvalue()
    return encoded


def _begin(message: bytes, values_max: int) -> tuple[str, int, int, Any]:
    check_message(message, values_max)
    protocol = TCyBinaryProtocol(TCyMemoryBuffer(message))
    try:
        method, kind, sequence = protocol.read_message_begin()
    except _BAD_BYTES as error:
        raise ProtocolError(f"not a Thrift message ({type(error).__name__})") from None
    if not isinstance(method, str):
        raise ProtocolError("not a Thrift message (the method has no name)")
    return method, kind, sequence, protocol


def _read(value: Any, protocol: Any) -> Any:
    try:
        protocol.read_struct(value)
    except _BAD_BYTES as error:
        raise ProtocolError(f"malformed Thrift message ({type(error).__name__})") from None
    fault = _type_fault(value)
    if fault is not None:
        raise ProtocolError(f"malformed Thrift message ({fault})")
    return value


_TYPES = {
    TType.BOOL: bool,
    TType.I32: int,
    TType.I64: int,
    TType.STRING: str,
    TType.BINARY: bytes,
    TType.LIST: list,
    TType.MAP: dict,
}


def _type_fault(value: Any) -> str | None:
    """Name a field that is missing or has another type than in the IDL; thriftpy2 does not check this. No argument may
    be missing.
    """
    is_result, is_call = (type(value).__name__.endswith(end) for end in ("_result", "_args"))
    for kind, name, *_, is_required in value.thrift_spec.values():
        field = getattr(value, name, None)
        if field is None:
            if is_call or (is_required and not is_result):
                return f"field {name!r} is missing"
        elif kind in _TYPES and type(field) is not _TYPES[kind]:
            return f"field {name!r} has the wrong type"
        for element in field if kind == TType.LIST and field else [field]:
            fault = _type_fault(element) if hasattr(element, "thrift_spec") else None
            if fault is not None:
                return fault
    return None
