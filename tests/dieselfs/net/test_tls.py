"""TLS in memory and over sockets: bytes arrive as they were sent, whatever the pieces."""

import os
import socket
import ssl
from contextlib import closing
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from dieselfs.errors import Unavailable
from dieselfs.limits import KIB, MIB
from dieselfs.net.address import TcpAddress
from dieselfs.net.tls import (
    STEP_BYTES,
    ClientTls,
    ServerTls,
    TlsEngine,
    TlsSocket,
    fingerprint,
    new_context,
    pin_of_certificate,
    secured,
)
from dieselfs.rpc.wire import Wire
from dieselfs_server.access.certificates import identity_tls
from dieselfs_server.access.identity import Identity
from tests.support.certificates import make_certificate

IDENTITY = Identity.generate()
SERVER: ServerTls = identity_tls(IDENTITY)
CLIENT = ClientTls(new_context(ssl.PROTOCOL_TLS_CLIENT), pins=[IDENTITY.pin])
ADDRESS = TcpAddress("127.0.0.1", 7070)
PATIENCE_S = 60.0


def shake(one: TlsEngine, other: TlsEngine) -> None:
    while not (one.shake() & other.shake()):
        other.feed(one.take())
        one.feed(other.take())
    other.feed(one.take())
    one.feed(other.take())


def engines() -> tuple[TlsEngine, TlsEngine]:
    client = TlsEngine(CLIENT.context, is_server=False)
    server = TlsEngine(SERVER.context, is_server=True)
    shake(client, server)
    return client, server


def test_both_ends_know_the_certificate_of_the_server() -> None:
    client, server = engines()
    assert fingerprint(client.certificate) == SERVER.channel
    assert server.certificate == b""
    CLIENT.check(client.certificate, ADDRESS)


@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
def test_bytes_arrive_whatever_the_pieces(piece_bytes: int) -> None:
    client, server = engines()
    plain = os.urandom(40_000)
    server.encrypt(plain)
    sent = server.take()
    received = bytearray(len(plain))
    view, filled = memoryview(received), 0
    for start in range(0, len(sent), piece_bytes):
        client.feed(sent[start : start + piece_bytes])
        filled += client.decrypt_into(view[filled : filled + 7000])
    while filled < len(plain):
        filled += client.decrypt_into(view[filled:])
    assert bytes(received) == plain
    assert client.waiting_bytes == 0


def test_an_altered_record_is_noticed() -> None:
    client, server = engines()
    server.encrypt(b"content" * 100)
    sent = bytearray(server.take())
    sent[300] ^= 1
    client.feed(sent)
    with pytest.raises(ssl.SSLError):
        client.decrypt_into(memoryview(bytearray(700)))


class Ends:
    """Two ends of a connection: ours, and the standard library's."""

    def __init__(self, tls: ClientTls = CLIENT) -> None:
        ours, other = socket.socketpair()
        other.settimeout(PATIENCE_S)
        accepted: list[ssl.SSLSocket] = []
        thread = Thread(target=lambda: accepted.append(SERVER.context.wrap_socket(other, server_side=True)))
        thread.start()
        try:
            self.ours: TlsSocket = secured(ours, ADDRESS, tls, PATIENCE_S)
        except BaseException:
            ours.close()
            thread.join(PATIENCE_S)
            for end in accepted:
                end.close()
            raise
        thread.join(PATIENCE_S)
        (self.other,) = accepted

    def close(self) -> None:
        self.ours.close()
        self.other.close()


@pytest.mark.parametrize("length", [1, 100, 64 * KIB, STEP_BYTES, 5 * MIB + 17])
def test_a_wire_over_tls_moves_any_length(length: int) -> None:
    with closing(Ends()) as ends:
        wire = Wire(ends.ours)
        wire.limit(PATIENCE_S)
        content = os.urandom(length)
        thread = Thread(target=ends.other.sendall, args=(content,))
        thread.start()
        assert wire.receive(length) == content
        thread.join(PATIENCE_S)
        echoed = bytearray()

        def receive() -> None:
            while len(echoed) < length:
                echoed.extend(ends.other.recv(1 << 16))

        thread = Thread(target=receive)
        thread.start()
        wire.send([content[:10], memoryview(content)[10:]])
        thread.join(PATIENCE_S)
        assert echoed == content
        assert wire.is_idle


def test_no_wait_asks_for_more_than_will_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for more bytes than are left would end with the first look at the clock only, which never comes here."""
    monkeypatch.setattr("dieselfs.rpc.wire.WAIT_LOOK_S", 3600.0)
    with closing(Ends()) as ends:
        wire = Wire(ends.ours)
        wire.limit(PATIENCE_S)
        for length in range(200_000, 600_000, 9_973):
            content = os.urandom(length)
            thread = Thread(target=ends.other.sendall, args=(content,))
            thread.start()
            assert wire.receive(length) == content
            thread.join(PATIENCE_S)


def test_an_end_that_closes_and_unexpected_bytes_are_noticed() -> None:
    with closing(Ends()) as ends:
        wire = Wire(ends.ours)
        assert wire.is_idle
        ends.other.sendall(b"nobody asked")
        assert not wire.is_idle
    with closing(Ends()) as ends:
        wire = Wire(ends.ours)
        wire.limit(PATIENCE_S)
        ends.other.close()
        with pytest.raises(ConnectionError):
            wire.receive(1)


def test_a_silent_end_times_out() -> None:
    with closing(Ends()) as ends:
        wire = Wire(ends.ours)
        wire.limit(0.05)
        with pytest.raises(TimeoutError):
            wire.receive(1)


def test_another_key_is_refused_and_the_right_fingerprint_is_not() -> None:
    with pytest.raises(Unavailable, match="not the real one"):
        Ends(ClientTls(CLIENT.context, pins=[Identity.generate().pin]))
    with pytest.raises(Unavailable, match="another certificate"):
        Ends(ClientTls(CLIENT.context, fingerprint=bytes(32)))
    Ends(ClientTls(CLIENT.context, fingerprint=SERVER.channel)).close()


def test_pins_of_certificates_are_those_of_a_full_parser(tmp_path_factory: pytest.TempPathFactory) -> None:
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    for path in (make_certificate(tmp_path_factory.mktemp("one"))[0],):
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        info = certificate.public_key().public_bytes(encoding, form)
        assert pin_of_certificate(certificate.public_bytes(encoding)) == fingerprint(info)


def test_malformed_certificates_have_no_pin() -> None:
    whole = TlsEngine(CLIENT.context, is_server=False)
    other = TlsEngine(SERVER.context, is_server=True)
    shake(whole, other)
    for end in range(0, len(whole.certificate), 7):
        assert pin_of_certificate(whole.certificate[:end]) != IDENTITY.pin
    assert pin_of_certificate(whole.certificate) == IDENTITY.pin
