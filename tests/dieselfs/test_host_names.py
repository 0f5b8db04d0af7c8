"""Host names: a name server that does not answer costs a caller its timeout, and one thread whatever the callers."""

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dieselfs import host_names
from dieselfs.address import TcpAddress
from dieselfs.errors import Unavailable
from dieselfs.host_names import addresses
from dieselfs.sockets import open_socket

BOUND_S = 60.0
SILENT = "silent.example"


class _NameServers:
    """Answers for all names but SILENT, for which it answers when it is told to."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.is_over = threading.Event()
        self.asked = 0

    def __call__(self, host: str, *arguments: Any, **options: Any) -> Any:
        if host == SILENT and not options.get("flags"):
            self.asked += 1
            assert self.is_over.wait(BOUND_S)
            host = "127.0.0.1"
        return self._real(host, *arguments, **options)


@pytest.fixture
def name_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[_NameServers]:
    servers = _NameServers(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", servers)
    yield servers
    servers.is_over.set()


def test_addresses_are_their_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_names, "_look_ups", None)  # no name server is asked
    assert [found[4][:2] for found in addresses("127.0.0.1", 7070, 0.0)] == [("127.0.0.1", 7070)]
    assert [found[4][:2] for found in addresses("::1", 7070, 0.0)] == [("::1", 7070)]


def test_a_name_is_looked_up() -> None:
    assert ("127.0.0.1", 7070) in [found[4][:2] for found in addresses("localhost", 7070, BOUND_S)]


@pytest.mark.parametrize("name", ["a..b", "no-such-host.invalid"])
def test_a_name_without_an_address_is_an_error_of_the_system(name: str) -> None:
    with pytest.raises(OSError, match=r"host|Name|name"):
        addresses(name, 7070, BOUND_S)


def test_a_silent_name_server_costs_the_timeout_and_one_thread(name_servers: _NameServers) -> None:
    for _ in range(3):
        with pytest.raises(Unavailable, match=f"no name server has answered for {SILENT}"):
            open_socket(TcpAddress(SILENT, 7070), 0.05)
    assert name_servers.asked == 1
    name_servers.is_over.set()
    assert addresses(SILENT, 7070, BOUND_S)[0][4] == ("127.0.0.1", 7070)  # the answer came


def test_a_forked_child_asks_itself(name_servers: _NameServers) -> None:
    with pytest.raises(TimeoutError):
        addresses(SILENT, 7070, 0.05)
    child = os.fork()
    if child == 0:
        name_servers.is_over = threading.Event()
        name_servers.is_over.set()
        try:
            os._exit(0 if addresses(SILENT, 7070, BOUND_S) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
