"""Addresses as users write them."""

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.rpc.address import TcpAddress, UnixAddress, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://host:1234", TcpAddress("host", 1234)),
        ("host", TcpAddress("host", 7070)),
        ("dl://host:7070", TcpAddress("host", 7070)),
        ("tcp://[::1]:80", TcpAddress("::1", 80)),
        ("10.0.0.1:7", TcpAddress("10.0.0.1", 7)),
        ("unix:/run/x.sock", UnixAddress("/run/x.sock")),
        ("unix:///run/x.sock", UnixAddress("/run/x.sock")),
        ("unix:x.sock", UnixAddress("x.sock")),
    ],
)
def test_addresses(text: str, address: object) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", "tcp://", "tcp://h:99999", "http://h:1", "h:x", "unix:", "a b", "unix:a\0b"]
)
def test_anything_else_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_address(text)


def test_loopback_is_known() -> None:
    assert parse_address("127.0.0.1").is_loopback  # type: ignore[union-attr]  # a TCP address
    assert not parse_address("10.0.0.1").is_loopback  # type: ignore[union-attr]  # a TCP address
