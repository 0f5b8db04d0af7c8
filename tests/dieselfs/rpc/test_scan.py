"""Only one well-formed Thrift message passes; everything else is refused in bounded time."""

import random
import time

import pytest

from dieselfs.errors import DieselfsError, ProtocolError
from dieselfs.rpc.messages import decode_call, decode_reply, encode_call, encode_reply, thrift
from dieselfs.rpc.scan import check_message

HELLO = encode_call("hello", 1, {"protocol_version": 1, "user": "ü", "key_id": "k", "client_nonce": b"\xff"})
USERS = encode_reply(
    "list_users",
    2,
    [
        thrift.UserInfo(
            name="ada",
            keys=[thrift.KeyInfo(key_id="1", created_s=5, expires_s=0)],
            grants={"*": "read", "d": "write"},
        )
    ],
)


@pytest.mark.parametrize("message", [HELLO, USERS])
def test_a_message_passes_and_no_beginning_of_it_does(message: bytes) -> None:
    check_message(message)
    for length in range(len(message)):
        with pytest.raises(ProtocolError):
            check_message(message[:length])
    with pytest.raises(ProtocolError, match="behind its end"):
        check_message(message + b"\0")


def _reply_with(body: bytes) -> bytes:
    return b"\x80\x01\x00\x02" + (6).to_bytes(4, "big") + b"status" + (1).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            b"\x0f\x00\x05\x63\x7f\xff\xff\xff\x00",
            "announces 2147483647 elements",
        ),  # a list of an unknown type
        (b"\x0f\x00\x05\x02\xff\xff\xff\xff\x00", "announces 4294967295 elements"),  # a negative count
        (b"\x63\x00\x05\x00", "unknown type"),
        (b"\x0b\x00\x05\x7f\xff\xff\xff\x00", "announces"),  # a string
        (b"\x0c\x00\x05" * 60 + b"\x00" * 61, "nested too deeply"),
        (b"\x0d\x00\x05\x0c\x0c\x00\x00\x00\x09\x00", "announces"),  # a map
    ],
)
def test_counts_types_and_depth_are_not_believed(body: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        check_message(_reply_with(body))


def test_a_call_has_few_values() -> None:
    """Each empty struct costs the sender 4 bytes."""
    name = b"\x80\x01\x00\x01" + (6).to_bytes(4, "big") + b"status" + (1).to_bytes(4, "big")
    call = name + b"\x0c\x00\x63\x00" * 100 + b"\x00"
    check_message(call)
    with pytest.raises(ProtocolError, match="too many values"):
        decode_call(call)


def test_deep_nesting_of_lists_is_refused_however_long_the_message() -> None:
    nested = b"".join(b"\x0f" + (1).to_bytes(4, "big") for _ in range(100_000))
    with pytest.raises(ProtocolError, match="deeply"):
        check_message(_reply_with(b"\x0f\x00\x05" + nested + b"\x00"))


def test_altered_messages_raise_protocol_errors_and_nothing_else() -> None:
    random_source = random.Random(20201)
    started_s = time.monotonic()
    for _ in range(20_000):
        altered = bytearray(random_source.choice([HELLO, USERS]))
        for _ in range(random_source.randrange(1, 5)):
            altered[random_source.randrange(len(altered))] = random_source.randrange(256)
        for decode in (decode_call, lambda message: decode_reply("list_users", 2, message)):
            try:
                decode(bytes(altered))
            except DieselfsError:
                continue
    assert time.monotonic() - started_s < 60  # no count in them may cost time
