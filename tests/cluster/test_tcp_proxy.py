"""The proxy that misbehaves does what it is asked for, and nothing else."""

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Thread

import pytest

from lab.network import Network
from lab.tcp_proxy import Passed, TcpProxy, tcp_proxy

TIMEOUT_S = 60.0
SILENCE_S = 0.3


class Echo:
    """A server that sends back what it gets."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.thread = Thread(target=self._serve)

    def _serve(self) -> None:
        with ExitStack() as stack:
            threads = []
            try:
                while True:
                    connection = stack.enter_context(self.listening.accept()[0])
                    threads.append(Thread(target=self._echo, args=[connection]))
                    threads[-1].start()
            except OSError:
                pass
            for thread in threads:
                thread.join()

    def _echo(self, connection: socket.socket) -> None:
        try:
            while received := connection.recv(1 << 16):
                connection.sendall(received)
            connection.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    """In front of an echo."""
    echo = Echo()
    echo.thread.start()
    try:
        with tcp_proxy(echo.listening.getsockname()) as running:
            yield running
    finally:
        echo.listening.shutdown(socket.SHUT_RDWR)
        echo.thread.join()
        echo.listening.close()


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    with socket.create_connection(proxy.address, TIMEOUT_S) as connected:
        yield connected


def echoed(client: socket.socket, content: bytes) -> bytes:
    client.sendall(content)
    return received(client, len(content))


def received(client: socket.socket, length: int) -> bytes:
    """As much as comes, up to `length`."""
    content = b""
    while len(content) < length and (piece := client.recv(length - len(content))):
        content += piece
    return content


def test_everything_passes_as_it_came(proxy: TcpProxy, client: socket.socket) -> None:
    content = bytes(range(256)) * 4000
    sender = Thread(target=client.sendall, args=[content])
    sender.start()
    assert received(client, len(content)) == content
    sender.join()
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""  # and so does the end
    assert proxy.passed() == Passed(connections=1, bytes_to_clients=len(content))


def test_a_delay_goes_both_ways(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.delay(0.2)
    began_s = time.monotonic()
    assert echoed(client, b"late") == b"late"
    assert time.monotonic() - began_s >= 0.4
    proxy.heal()
    assert echoed(client, b"soon") == b"soon"


def test_a_stalled_connection_stays_open_and_goes_on(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.stall()
    client.sendall(b"word")
    with socket.create_connection(proxy.address, TIMEOUT_S) as other:
        other.sendall(b"another")
        client.settimeout(SILENCE_S)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(TIMEOUT_S)
        proxy.heal()
        assert received(client, 4) == b"word"
        assert received(other, 7) == b"another"


def test_all_connections_are_cut(proxy: TcpProxy, client: socket.socket) -> None:
    assert echoed(client, b"a") == b"a"
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with socket.create_connection(proxy.address, TIMEOUT_S) as other:
        assert echoed(other, b"b") == b"b"
    assert proxy.passed() == Passed(connections=2, bytes_to_clients=2, cuts=1)


def test_a_connection_is_cut_behind_so_many_bytes(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.cut_after(5)
    assert echoed(client, b"123") == b"123"
    client.sendall(b"4567")
    content, code = b"", 0
    while not code:
        try:
            content += client.recv(10)
        except OSError as error:
            code = error.errno or 0
    assert b"45".startswith(content) and code == errno.ECONNRESET  # a reset may overtake bytes
    assert proxy.passed() == Passed(connections=1, bytes_to_clients=5, cuts=1)


def test_one_bit_is_turned_and_no_other(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.alter_after(4)
    assert echoed(client, b"abc") == b"abc"
    assert echoed(client, b"dedcba") == b"dddcba"
    assert echoed(client, b"abcdefgh") == b"abcdefgh"
    assert proxy.passed() == Passed(connections=1, bytes_to_clients=17, alterations=1)


def test_it_stands_on_a_host_of_a_network() -> None:
    with Network() as net, ExitStack() as stack:
        storage, node = net.host("storage"), net.host("node")
        with storage.inside():
            listening = stack.enter_context(socket.create_server((storage.address, 0)))
            proxy = stack.enter_context(tcp_proxy(listening.getsockname(), storage.address))
        with node.inside(), socket.create_connection(proxy.address, TIMEOUT_S) as near:
            near.sendall(b"word")
            with listening.accept()[0] as far:
                assert received(far, 4) == b"word"
