"""Thrift messages as bytes: calls and replies of `dieselfs.thrift`. No I/O.

The structs of the IDL are untyped: `rpc.client` and the server's service convert to typed values.
"""

import struct
from pkgutil import get_data
from types import SimpleNamespace
from typing import Any, ClassVar

from dieselfs.errors import CODE_BY_ERROR, ERROR_BY_CODE, DieselfsError, ProtocolError, Unavailable
from dieselfs.limits import CALL_VALUES_MAX
from dieselfs.rpc.call_limits import reply_values_max
from dieselfs.rpc.idl import STRING, Field, Struct, ValueType, parse_idl
from dieselfs.rpc.thrift_binary import CALL, EXCEPTION, REPLY, encode_message, read_body, read_start

FRAME_HEADER_BYTES = 4
"""Each message has its length before it, big-endian."""
_LENGTH = struct.Struct(">I")
KEEP_ALIVE = bytes(FRAME_HEADER_BYTES)
"""An empty message, before a reply: the server still works on the call."""

_INTERFACE = parse_idl((get_data("dieselfs.rpc", "dieselfs.thrift") or b"").decode())
thrift: Any = SimpleNamespace(**_INTERFACE.structs)
"""The structs of the IDL, by name."""
PROTOCOL_VERSION = _INTERFACE.constants["PROTOCOL_VERSION"]
METHODS = frozenset(_INTERFACE.services["ChunkServer"])
PEER_METHODS = frozenset(_INTERFACE.services["Peer"])
"""Methods between the nodes of a job; except for the handshake, the server has none of them."""
SIGNATURES = _INTERFACE.services["ChunkServer"] | _INTERFACE.services["Peer"]
"""Arguments and result of each method of either service."""


class _Fault(Struct):
    """How Thrift reports that the receiver of a call does not know the method (TApplicationException)."""

    fields: ClassVar = {1: Field("message", ValueType(STRING, is_text=True), is_required=False)}


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


def connection_name(client_nonce: bytes) -> str:
    """What both sides call a connection in their logs; with the number of a call, it names a request."""
    return client_nonce[:4].hex()


def encode_call(method: str, sequence: int, arguments: dict[str, object]) -> bytes:
    """A call of `method`; arguments by their names in the IDL. Raises TypeError for another name."""
    return encode_message(method, CALL, sequence, SIGNATURES[method].arguments(**arguments))


def decode_call(message: bytes, methods: frozenset[str] = METHODS) -> tuple[str, int, Any]:
    """`(method, sequence, arguments)`; arguments are attributes. Raises ProtocolError for anything malformed, and for
    a call of another method.
    """
    start = read_start(message)
    if start.kind != CALL or start.method not in methods:
        raise ProtocolError(f"not a call of a known method ({start.method[:40]!r})")
    arguments = read_body(SIGNATURES[start.method].arguments, message, start, CALL_VALUES_MAX)
    return start.method, start.sequence, arguments


def encode_reply(method: str, sequence: int, value: object) -> bytes:
    kind = SIGNATURES[method].result
    result = kind() if value is None else kind(success=value)
    return encode_message(method, REPLY, sequence, result)


def encode_refusal(method: str, sequence: int, error: DieselfsError) -> bytes:
    """The reply for which the caller raises `error`."""
    code = next(
        (CODE_BY_ERROR[kind] for kind in type(error).__mro__ if kind in CODE_BY_ERROR),
        CODE_BY_ERROR[Unavailable],
    )
    refusal = thrift.Refusal(code=code, message=str(error))
    return encode_message(method, REPLY, sequence, SIGNATURES[method].result(refusal=refusal))


def decode_reply(method: str, sequence: int, message: bytes) -> Any:
    """The value that the call returned. Raises the server's refusal, ProtocolError for anything malformed."""
    start, values_max = read_start(message), reply_values_max(method)
    if start.kind == EXCEPTION:
        fault = read_body(_Fault, message, start, values_max)
        raise ProtocolError(f"the server cannot answer {method!r}: {fault.message}")
    if start[:3] != (method, REPLY, sequence):
        raise ProtocolError(f"expected the reply to {method!r}, got another message")
    kind = SIGNATURES[method].result
    result = read_body(kind, message, start, values_max)
    if result.refusal is not None:
        raise ERROR_BY_CODE.get(result.refusal.code, Unavailable)(result.refusal.message)
    if 0 not in kind.fields:
        return None
    if result.success is None:
        raise ProtocolError(f"the reply to {method!r} is empty")
    return result.success
