"""Frames and their limit."""

import pytest

from dieselfs.errors import ProtocolError
from dieselfs.rpc.messages import FRAME_HEADER_BYTES, frame, frame_length


def test_a_frame_announces_its_message() -> None:
    framed = frame(b"hello")
    assert framed[FRAME_HEADER_BYTES:] == b"hello"
    assert frame_length(framed[:FRAME_HEADER_BYTES], 5) == 5


@pytest.mark.parametrize("header", [b"\0\0\0\0", b"\0\0\0\x06", b"HTTP", b"\xff\xff\xff\xff"])
def test_empty_and_long_messages_are_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError, match="limit 5"):
        frame_length(header, 5)


@pytest.mark.parametrize("header", [b"\x16\x03\x01\x02", b"\x15\x03\x03\x00"])
def test_tls_is_recognized(header: bytes) -> None:
    """The hello of a client, and the alert of a server."""
    with pytest.raises(ProtocolError, match="speaks TLS"):
        frame_length(header, 1 << 30)
