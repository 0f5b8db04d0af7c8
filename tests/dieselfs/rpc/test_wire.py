"""Bytes over a real socket: all of them, whatever the portions, and no wait without an end."""

import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread, get_ident

import pytest

from dieselfs.limits import MIB, READ_GONE_S, SERVER_GONE_S
from dieselfs.net import tls
from dieselfs.net.address import TcpAddress
from dieselfs.net.tls import ClientTls, TlsSocket, new_context
from dieselfs.rpc.wire import Wire
from tests.support.certificates import make_certificate

LONG_S = 60.0
SHORT_S = 0.3
CONTENT = os.urandom(3 * MIB + 12_345)

Ends = tuple[socket.socket | TlsSocket, socket.socket]


def tcp_ends() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


def tls_ends(folder: Path) -> Ends:
    certificate, key = make_certificate(folder)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = new_context(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(certificate)
    client.verify_mode, client.check_hostname = ssl.CERT_REQUIRED, True
    ours, theirs = tcp_ends()
    secured: list[socket.socket] = []
    other = Thread(target=lambda: secured.append(server.wrap_socket(theirs, server_side=True)))
    other.start()
    wrapped = tls.secured(ours, TcpAddress("127.0.0.1", 0), ClientTls(client), LONG_S)
    other.join(LONG_S)
    return wrapped, secured[0]


@pytest.fixture(params=["tcp", "unix", "tls"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ends]:
    kinds: dict[str, Callable[[], Ends]] = {
        "tcp": tcp_ends,
        "unix": socket.socketpair,
        "tls": lambda: tls_ends(tmp_path),
    }
    ours, theirs = kinds[request.param]()
    with closing(ours), closing(theirs):
        yield ours, theirs


@pytest.fixture
def wire(ends: Ends) -> Iterator[Wire]:
    with closing(Wire(ends[0])) as wire:
        wire.limit(LONG_S)
        yield wire


@pytest.fixture
def theirs(ends: Ends) -> socket.socket:
    return ends[1]


def in_portions(end: socket.socket, content: bytes, portion_bytes: int) -> Thread:
    def send() -> None:
        for start in range(0, len(content), portion_bytes):
            end.sendall(content[start : start + portion_bytes])

    thread = Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("portion_bytes", [len(CONTENT), 100_000, 7_001])
def test_what_comes_in_portions_is_received_in_its_order(
    wire: Wire, theirs: socket.socket, portion_bytes: int
) -> None:
    sender = in_portions(theirs, CONTENT, portion_bytes)
    parts = [wire.receive(4), wire.receive(1_000), wire.receive(2 * MIB), wire.receive(70_000)]
    parts.append(wire.receive(len(CONTENT) - sum(map(len, parts))))
    sender.join(LONG_S)
    assert b"".join(parts) == CONTENT
    assert wire.is_idle


def test_all_is_sent_to_one_who_takes_his_time(wire: Wire, theirs: socket.socket) -> None:
    received = bytearray()

    def receive() -> None:
        while len(received) < len(CONTENT):
            received.extend(theirs.recv(50_000))

    receiver = Thread(target=receive)
    receiver.start()
    wire.send([CONTENT[:5], memoryview(CONTENT)[5:100], b"", bytearray(CONTENT[100:])])
    receiver.join(LONG_S)
    assert received == CONTENT


def test_silence_in_the_middle_is_not_waited_out(wire: Wire, theirs: socket.socket) -> None:
    theirs.sendall(bytes(200_000))
    wire.limit(SHORT_S)
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        wire.receive(300_000)
    assert time.monotonic() - began_s >= SHORT_S


def test_whoever_takes_nothing_is_not_waited_for(wire: Wire) -> None:
    wire.limit(SHORT_S)
    with pytest.raises(TimeoutError):
        wire.send([bytes(MIB)] * 64)


def test_the_kernel_watches_the_other_machine_as_closely_as_a_long_wait_needs(
    wire: Wire, ends: Ends, theirs: socket.socket
) -> None:
    def watched_ms() -> int:
        with socket.socket(fileno=os.dup(ends[0].fileno())) as ours:
            return ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    if theirs.family == socket.AF_UNIX:
        pytest.skip("the other end is on this machine")
    before_ms = watched_ms()
    wire.gone_s = READ_GONE_S
    theirs.sendall(b"x")
    assert wire.receive(1) == b"x" and watched_ms() == before_ms  # what comes at once costs no calls
    for gone_s in (READ_GONE_S, SERVER_GONE_S):
        wire.gone_s = gone_s
        wire.limit(SHORT_S)
        with pytest.raises(TimeoutError):
            wire.receive(1)
        assert watched_ms() == gone_s * 1000


def test_bytes_that_trickle_do_not_put_off_the_end(wire: Wire, theirs: socket.socket) -> None:
    is_over = Event()

    def trickle() -> None:
        with suppress(OSError):
            while not is_over.wait(SHORT_S / 10):
                theirs.sendall(b"x")

    trickling = Thread(target=trickle)
    trickling.start()
    try:
        wire.limit(LONG_S, SHORT_S)
        with pytest.raises(TimeoutError):
            wire.receive(MIB)
    finally:
        is_over.set()
        trickling.join(LONG_S)


def test_an_end_in_the_middle_is_no_answer(wire: Wire, theirs: socket.socket) -> None:
    theirs.sendall(bytes(100_000))
    theirs.close()
    with pytest.raises((ConnectionError, ssl.SSLError)):
        wire.receive(200_000)
    assert not wire.is_idle


def test_what_nobody_asked_for_is_seen(wire: Wire, theirs: socket.socket) -> None:
    assert wire.is_idle
    assert wire.is_idle  # looking changes nothing
    in_portions(theirs, b"answer", 6).join(LONG_S)
    assert wire.receive(6) == b"answer"
    assert wire.is_idle
    theirs.sendall(b"more")
    end_s = time.monotonic() + LONG_S
    while wire.is_idle and time.monotonic() < end_s:  # until it has come
        pass
    assert not wire.is_idle


def test_a_signal_interrupts_a_wait(wire: Wire, theirs: socket.socket) -> None:
    theirs.sendall(bytes(100_000))
    main, is_over = get_ident(), Event()

    def interrupt(*_: object) -> None:
        if not is_over.is_set():  # later signals find nothing to do
            is_over.set()
            raise InterruptedError("by the test")

    def send_signals() -> None:
        while not is_over.wait(SHORT_S / 10):
            signal.pthread_kill(main, signal.SIGUSR1)

    old = signal.signal(signal.SIGUSR1, interrupt)
    sender = Thread(target=send_signals)
    try:
        with pytest.raises(InterruptedError, match="by the test"):
            sender.start()
            wire.receive(200_000)
    finally:
        is_over.set()
        sender.join(LONG_S)
        signal.signal(signal.SIGUSR1, old)
