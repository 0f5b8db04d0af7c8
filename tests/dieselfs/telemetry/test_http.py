"""Metrics over HTTP, as Prometheus asks for them."""

import socket
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from dieselfs.errors import Unavailable
from dieselfs.net.address import TcpAddress
from dieselfs.telemetry import http
from dieselfs.telemetry.http import serving
from dieselfs.telemetry.registry import Registry

LOCAL = TcpAddress("127.0.0.1", 0)


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


def test_each_request_gets_the_present_values_in_the_format_it_accepts() -> None:
    metrics = Registry()
    hits = metrics.counter("node_cache.hits", "Hits.")
    with serving(LOCAL, lambda: [metrics.report({})]) as url:
        for number in (1, 2):
            hits.value = number
            with urlopen(url, timeout=10) as answer:
                assert f"dieselfs_node_cache_hits_total {number}.0\n" in answer.read().decode()
        asked = Request(url, headers={"Accept": "application/openmetrics-text"})
        with urlopen(asked, timeout=10) as answer:
            assert "application/openmetrics-text" in answer.headers["Content-Type"]
            assert answer.read().endswith(b"# EOF\n")


def test_a_client_that_says_nothing_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http._Handler, "timeout", 0.05)
    with (
        serving(LOCAL, list) as url,
        socket.create_connection(("127.0.0.1", port_of(url))),
        urlopen(url, timeout=30) as answer,
    ):
        assert answer.status == 200


def test_a_client_that_sends_single_bytes_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http._Handler, "request_s", 0.5)
    with serving(LOCAL, list) as url, socket.create_connection(("127.0.0.1", port_of(url))) as slow:
        slow.settimeout(0.05)
        for _ in range(600):
            try:
                slow.sendall(b"G")
                assert not slow.recv(1)
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            raise AssertionError("it was answered, or is connected")
        with urlopen(url, timeout=30) as answer:
            assert answer.status == 200


def test_an_address_that_is_taken_is_refused() -> None:
    with (
        serving(LOCAL, list) as url,
        pytest.raises(Unavailable, match="cannot serve metrics at"),
        serving(TcpAddress("127.0.0.1", port_of(url)), list),
    ):
        raise AssertionError


def test_ipv6() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with serving(TcpAddress("::1", 0), list) as url, urlopen(url, timeout=10) as answer:
        assert answer.status == 200
