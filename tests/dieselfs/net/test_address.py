"""Addresses as users write them."""

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.net.address import (
    EtcdAddress,
    ServerList,
    TcpAddress,
    UnixAddress,
    parse_address,
    parse_etcd,
    parse_servers,
)


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


A, B = TcpAddress("a", 7070), TcpAddress("b", 7071)


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("tcp://a:7070", A),
        ("unix:/run/x.sock", UnixAddress("/run/x.sock")),
        ("tcp://a,tcp://b:7071", ServerList((A, B))),
        ("a,b:7071,a", ServerList((A, B))),
        ("a,a:7070", A),
        ("tcp://a,unix:/x", ServerList((A, UnixAddress("/x")))),
        ("etcd://a", EtcdAddress((TcpAddress("a", 2379),))),
        ("etcd://a:1,[::1]:2", EtcdAddress((TcpAddress("a", 1), TcpAddress("::1", 2)))),
    ],
)
def test_several_servers(text: str, servers: object) -> None:
    assert parse_servers(text) == servers
    assert parse_servers(str(servers)) == servers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,",
        ",a",
        "etcd://",
        "etcd://a,",
        "etcd://tcp://a",
        "a,etcd://b",
        "etcd://unix:/x",
        "etcd://a:99999",
    ],
)
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_servers(text)


def test_the_scheme_of_etcd_may_be_left_out_where_only_etcd_can_be_meant() -> None:
    assert parse_etcd("a:1,b") == EtcdAddress((TcpAddress("a", 1), TcpAddress("b", 2379)))
