"""Packets as `docs/reference/shared-memory.md` has them, and what is made of those that are none."""

import pytest

from dieselfs import limits
from dieselfs.cluster.node_messages import (
    LAYOUTS,
    MAGIC,
    PROTOCOL_VERSION,
    REFUSAL_KIND,
    Absent,
    ChunkRequest,
    HeldRequest,
    Hello,
    MembersReply,
    MembersRequest,
    Message,
    Refusal,
    SegmentReply,
    Unknown,
    Welcome,
    decode,
    encode,
)
from dieselfs.errors import CODE_BY_ERROR, InvalidInput, NotFound, ProtocolError, SourceChanged, Unavailable
from tests.support.documents import DOCUMENTS, hex_dump, table

DOCUMENT = "reference/shared-memory.md"
DIGEST = bytes(range(32))
CONVERSATION: list[tuple[int, Message]] = [
    (1, Hello(digest=DIGEST)),
    (1, Welcome()),
    (2, ChunkRequest(7, 4096)),
    (2, SegmentReply(4 << 20)),
]
MESSAGES: list[Message] = [
    *(message for _, message in CONVERSATION),
    ChunkRequest((1 << 32) - 1, (1 << 32) - 1),
    Absent(),
    MembersRequest(1 << 63),
    HeldRequest(),
    MembersReply((1 << 64) - 1, 8192),
    Refusal(2, "no such chunk \N{SNOWMAN}"),
]


def test_the_example_in_the_document_is_what_is_sent() -> None:
    packets = [encode(number, message) for number, message in CONVERSATION]
    assert b"".join(packets).hex(" ") == hex_dump(DOCUMENT).hex(" ")


def test_the_table_of_kinds() -> None:
    rows = {int(kind, 16): body for kind, _, _, body in table(DOCUMENT, "### Kinds")}
    assert set(rows) == {*LAYOUTS, REFUSAL_KIND}
    assert {kind for kind, _ in LAYOUTS.values()} == {type(message) for message in MESSAGES} - {Refusal}
    assert f"`{MAGIC.hex(' ')}`" in rows[0x01]
    assert f"Version {PROTOCOL_VERSION}." in (DOCUMENTS / DOCUMENT).read_text(encoding="utf-8")


def test_the_limits_in_the_document() -> None:
    text = (DOCUMENTS / DOCUMENT).read_text(encoding="utf-8")
    assert f"{limits.NODE_PACKET_BYTES_MAX:,} bytes" in text
    assert f"{limits.NODE_READERS_MAX:,}\n" in text
    waits = {name: wait for _, wait, _ in table(DOCUMENT, "### Time") for name in wait.split("`")[1::2]}
    for name, wait in waits.items():
        assert wait.startswith(f"{getattr(limits, name):g} s")


@pytest.mark.parametrize("message", MESSAGES)
def test_what_is_sent_is_what_arrives(message: Message) -> None:
    assert decode(encode(77, message)) == (77, message)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_packet_of_another_length_is_refused(message: Message) -> None:
    packet = encode(1, message)
    if not isinstance(message, Refusal):
        for other in (packet[:-1], packet + b"\0"):
            with pytest.raises(ProtocolError):
                decode(other)
    with pytest.raises(ProtocolError):
        decode(packet + bytes(limits.NODE_PACKET_BYTES_MAX))


@pytest.mark.parametrize("packet", [b"", b"\x01", bytes([0xFF, 0, 0, 0, 1, 0, 0, 0, 1])])
def test_half_a_packet_is_refused(packet: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(packet)


def test_a_greeting_of_something_else_is_refused() -> None:
    packet = bytearray(encode(1, Hello(digest=DIGEST)))
    packet[8] ^= 1
    with pytest.raises(ProtocolError, match="not the greeting"):
        decode(bytes(packet))


def test_a_kind_of_a_later_version_is_told_apart() -> None:
    assert decode(bytes([0x05, 0, 0, 0, 9, 0, 0, 0]) + b"anything") == (9, Unknown(5))


def test_a_refusal_is_the_same_error_at_the_other_end() -> None:
    for error in (InvalidInput("another snapshot"), NotFound("chunk 7"), Unavailable("later")):
        _, refusal = decode(encode(1, Refusal.because(error)))
        assert isinstance(refusal, Refusal)
        assert (type(refusal.error), str(refusal.error)) == (type(error), str(error))
    assert Refusal.because(SourceChanged("no number on the wire")).code == CODE_BY_ERROR[Unavailable]
    assert isinstance(Refusal(999, "of a later version").error, Unavailable)


def test_a_long_refusal_fits_into_a_packet() -> None:
    packet = encode(1, Refusal.because(InvalidInput("\N{SNOWMAN}" * 5000)))
    assert len(packet) == limits.NODE_PACKET_BYTES_MAX
    assert isinstance(decode(packet)[1], Refusal)
