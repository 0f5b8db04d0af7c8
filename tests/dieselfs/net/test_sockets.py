"""Host names: a name server that does not answer costs a caller its timeout, and one thread whatever the callers."""

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.errors import Unavailable
from dieselfs.net import sockets
from dieselfs.net.address import TcpAddress
from dieselfs.net.sockets import addresses, open_socket
from tests.support.name_servers import BOUND_S, SILENT, NameServers, silent_name_servers


@pytest.fixture
def name_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServers]:
    with silent_name_servers(monkeypatch) as servers:
        yield servers


def test_addresses_are_their_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_look_ups", None)  # no name server is asked
    assert [found[4][:2] for found in addresses("127.0.0.1", 7070, 0.0)] == [("127.0.0.1", 7070)]
    assert [found[4][:2] for found in addresses("::1", 7070, 0.0)] == [("::1", 7070)]


def test_a_name_is_looked_up() -> None:
    assert ("127.0.0.1", 7070) in [found[4][:2] for found in addresses("localhost", 7070, BOUND_S)]


@pytest.mark.parametrize("name", ["a..b", "no-such-host.invalid"])
def test_a_name_without_an_address_is_an_error_of_the_system(name: str) -> None:
    with pytest.raises(OSError, match=r"host|Name|name"):
        addresses(name, 7070, BOUND_S)


def test_a_silent_name_server_costs_the_timeout_and_one_thread(name_servers: NameServers) -> None:
    for _ in range(3):
        with pytest.raises(Unavailable, match=f"no name server has answered for {SILENT}"):
            open_socket(TcpAddress(SILENT, 7070), 0.05)
    assert name_servers.asked == 1
    name_servers.is_over.set()
    assert addresses(SILENT, 7070, BOUND_S)[0][4] == ("127.0.0.1", 7070)  # the answer came


def test_a_forked_child_asks_itself(name_servers: NameServers) -> None:
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


def test_a_socket_is_never_open_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even between two calls; and nothing is changed by path, where another file may be by then."""
    monkeypatch.setattr(Path, "chmod", None)
    monkeypatch.setattr(os, "chmod", None)
    before = os.umask(0)
    try:
        with sockets.listening(tmp_path / "socket", socket.SOCK_STREAM):
            assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
    finally:
        os.umask(before)
