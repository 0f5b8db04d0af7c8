"""What stands in etcd, and what is made of things that should not stand there."""

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.etcd.keys import (
    ADDRESSES_MAX,
    CONFIG_PREFIX,
    VALUE_BYTES_MAX,
    decode_server,
    decode_servers,
    decode_settings,
    decode_version,
    encode_server,
    server_id,
    server_key,
)
from dieselfs.net.address import TcpAddress

A, B = TcpAddress("10.0.0.5", 7070), TcpAddress("::1", 7071)


def test_a_server_under_its_key() -> None:
    assert server_key(server_id([A, B])) == "/dieselfs/servers/10.0.0.5:7070"
    both = b'{"addresses": ["tcp://10.0.0.5:7070", "tcp://[::1]:7071"]'
    assert encode_server([A, B], "0.1") == both + b', "version": "0.1"}'
    assert decode_version(both + b"}") == decode_version(both + b', "version": 1}') == ""  # of older servers
    assert decode_server(encode_server([A, B])) == [A, B]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"addresses": 1}',
        b'{"addresses": ["x y"]}',
        b"[" * 10_000,
        b'{"addresses": [null, {}]}',
        b" " * VALUE_BYTES_MAX + encode_server([A]),
    ],
)
def test_entries_that_nobody_can_read_are_passed_over(value: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode_server(value)
    assert decode_servers({"/dieselfs/servers/x": value, "/dieselfs/servers/y": encode_server([A])}) == (A,)


def test_only_tcp_leads_anywhere_and_only_so_many() -> None:
    assert decode_server(b'{"addresses": ["unix:/etc/passwd", "tcp://10.0.0.5"]}') == [A]
    many = [TcpAddress("h", 1 + number) for number in range(ADDRESSES_MAX + 1)]
    assert decode_server(encode_server(many)) == many[:ADDRESSES_MAX]


def test_servers_come_in_order_and_once() -> None:
    values = {"/2": encode_server([A]), "/1": encode_server([B, A])}
    assert decode_servers(values) == (B, A)


def test_settings_by_name() -> None:
    assert decode_settings({f"{CONFIG_PREFIX}store": b"posix:///x"}) == {"store": "posix:///x"}
    with pytest.raises(InvalidInput, match="UTF-8"):
        decode_settings({f"{CONFIG_PREFIX}store": b"\xff"})
