"""What every decoder must do with bytes that are cut short or go on too long."""

from collections.abc import Callable

import pytest

from dieselfs.errors import Damaged


def check_decoder(decode: Callable[[bytes], object], data: bytes, source: str) -> None:
    """`decode` takes `data` whole, and refuses every beginning of it and anything behind it, naming `source`."""
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
