"""The behaviour of every decoder with bytes that are truncated or too long."""

from collections.abc import Callable

import pytest

from dieselfs.errors import Damaged


def check_decoder(decode: Callable[[bytes], object], data: bytes, source: str) -> None:
    """Assert that `decode` accepts `data`, and refuses each of its prefixes and extra bytes, naming `source`."""
    decode(data)
    for length in range(len(data)):
        refused(decode, data[:length], source)
    refused(decode, data + b"\0", source)


def refused(decode: Callable[[bytes], object], data: bytes, source: str) -> str:
    """Assert that `decode` refuses `data` with an error that names the object and an offset; return its message."""
    with pytest.raises(Damaged) as caught:
        decode(data)
    message = str(caught.value)
    assert message.startswith(f"{source}: offset "), message
    return message
