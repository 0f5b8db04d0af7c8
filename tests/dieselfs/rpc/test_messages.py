"""Calls and replies survive the trip, and types are held on both sides."""

import pytest

from dieselfs.errors import (
    CODE_BY_ERROR,
    DieselfsError,
    InvalidInput,
    ProtocolError,
    SourceChanged,
    Unavailable,
)
from dieselfs.rpc.messages import (
    decode_call,
    decode_reply,
    encode_call,
    encode_refusal,
    encode_reply,
    thrift,
)
from dieselfs.rpc.methods import SERVER_METHODS


def test_a_call_arrives_with_its_arguments() -> None:
    message = encode_call("put_chunk", 7, {"dataset": "dä", "chunk_id": b"\xff\x00", "bulk_length": 1 << 40})
    method, sequence, arguments = decode_call(message)
    assert (method, sequence) == ("put_chunk", 7)
    assert (arguments.dataset, arguments.chunk_id, arguments.bulk_length) == ("dä", b"\xff\x00", 1 << 40)


def test_a_reply_arrives_with_its_value() -> None:
    assert decode_reply("reserve_versions", 3, encode_reply("reserve_versions", 3, 12345)) == 12345
    assert decode_reply("drop_dataset", 3, encode_reply("drop_dataset", 3, None)) is None
    info = decode_reply("get_payload", 3, encode_reply("get_payload", 3, thrift.Bulk(bulk_length=9)))
    assert info.bulk_length == 9


@pytest.mark.parametrize("kind", CODE_BY_ERROR)
def test_a_refusal_is_raised_as_the_same_class(kind: type[DieselfsError]) -> None:
    with pytest.raises(kind, match="schön"):
        decode_reply("status", 1, encode_refusal("status", 1, kind("schön")))


def test_an_error_without_a_number_of_its_own_crosses_as_unavailable() -> None:
    with pytest.raises(Unavailable):
        decode_reply("status", 1, encode_refusal("status", 1, SourceChanged("x")))


@pytest.mark.parametrize("method", sorted(SERVER_METHODS))
def test_a_call_without_arguments_is_refused_unless_it_has_none(method: str) -> None:
    message = encode_call(method, 1, {})
    spec = getattr(thrift, f"{method}_args")
    if len(spec.default_spec) > sum(default is not None for _, default in spec.default_spec):
        with pytest.raises(ProtocolError, match="missing"):
            decode_call(message)
    else:
        assert decode_call(message)[0] == method


@pytest.mark.parametrize(
    ("method", "arguments", "added"),
    [
        ("drop_dataset", {"name": "pets"}, {"dataset_id": b""}),
        ("put_chunk", {"dataset": "pets", "chunk_id": bytes(16), "bulk_length": 1}, {"key_id": b""}),
        ("fsck", {"dataset": "pets", "is_deep": True, "is_repair": True}, {"with_progress": False}),
    ],
)
def test_a_call_of_an_older_client_has_defaults(
    method: str, arguments: dict[str, object], added: dict[str, object]
) -> None:
    message = encode_call(method, 1, arguments | dict.fromkeys(added))  # without the added arguments
    found = decode_call(message)[2]
    assert {name: getattr(found, name) for name in added} == added


def test_text_that_is_not_utf8_is_refused() -> None:
    message = encode_call("get_dataset", 1, {"name": "pets"}).replace(b"pets", b"p\xfft\xff")
    with pytest.raises(ProtocolError, match="'name' has the wrong type"):
        decode_call(message)


def test_unknown_methods_and_other_replies_are_refused() -> None:
    with pytest.raises(ProtocolError, match="not a call"):
        decode_call(encode_call("status", 1, {}).replace(b"status", b"stetus"))
    with pytest.raises(ProtocolError, match="another message"):
        decode_reply("status", 2, encode_reply("drop_dataset", 2, None))
    with pytest.raises(ProtocolError, match="another message"):
        decode_reply("drop_dataset", 3, encode_reply("drop_dataset", 2, None))
    with pytest.raises(ProtocolError, match="empty"):
        decode_reply("status", 2, encode_reply("status", 2, None))


def test_our_own_misuse_is_not_sent() -> None:
    with pytest.raises(TypeError):
        encode_call("status", 1, {"no_such_argument": 1})
    assert issubclass(InvalidInput, ValueError)
