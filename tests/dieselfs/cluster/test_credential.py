"""Certificates of a job: who gets through the handshake between two of its processes, and who does not."""

import ssl
from dataclasses import replace

import pytest

from dieselfs.cluster.credential import PLAIN, JobCredential
from dieselfs.cluster.secret import JobSecret
from dieselfs.errors import Unavailable
from dieselfs.net.address import TcpAddress
from dieselfs.net.tls import ClientTls, TlsEngine, new_context
from tests.dieselfs.cluster.test_member import MEMBER

SECRET, OTHER = JobSecret(b"s" * 32), JobSecret(b"t" * 32)
ADDRESS = TcpAddress("10.0.0.1", 7071)


def meet(client: ClientTls | None, server: JobCredential) -> bytes:
    """Shake hands and exchange a byte, as only then the client knows that it is accepted. Returns the certificate."""
    assert client is not None
    one = TlsEngine(client.context, is_server=False)
    other = TlsEngine(server.server_tls().context, is_server=True)
    is_done = False
    while not is_done:
        one.shake()
        other.feed(one.take())
        is_done = other.shake()
        one.feed(other.take())
    other.encrypt(b"x")
    one.feed(other.take())
    assert one.decrypt_into(memoryview(bytearray(1))) == 1
    client.check(one.certificate, ADDRESS)
    return one.certificate


def test_processes_of_a_job_meet_and_know_the_member() -> None:
    one, other = JobCredential(SECRET), JobCredential(SECRET)
    assert one.fingerprint != other.fingerprint and one.fingerprint == one.fingerprint
    meet(one.client_tls(replace(MEMBER, fingerprint=other.fingerprint)), other)


def test_a_process_without_the_secret_gets_in_nowhere() -> None:
    inside, outside = JobCredential(SECRET), JobCredential(OTHER)
    with pytest.raises(ssl.SSLError):  # as a server
        meet(inside.client_tls(replace(MEMBER, fingerprint=outside.fingerprint)), outside)
    with pytest.raises(ssl.SSLError):  # as a client
        meet(outside.client_tls(replace(MEMBER, fingerprint=inside.fingerprint)), inside)
    bare = ClientTls(new_context(ssl.PROTOCOL_TLS_CLIENT), fingerprint=inside.fingerprint)
    with pytest.raises(ssl.SSLError):  # without any certificate
        meet(bare, inside)


def test_another_process_of_the_job_is_not_the_member() -> None:
    """As when a port of a dead member has a new owner, or somebody passes the connection on to another member."""
    one, dead, other = (JobCredential(SECRET) for _ in range(3))
    with pytest.raises(Unavailable, match="another certificate than its record"):
        meet(one.client_tls(replace(MEMBER, fingerprint=dead.fingerprint)), other)


def test_tls_is_off_for_all_nodes_or_for_none() -> None:
    on, off = JobCredential(SECRET), JobCredential(SECRET, has_tls=False)
    plain = replace(MEMBER, fingerprint=PLAIN)
    assert off.fingerprint == PLAIN and off.client_tls(plain) is None
    with pytest.raises(Unavailable, match="has tls off, this one has it on"):
        on.client_tls(plain)
    with pytest.raises(Unavailable, match="has tls on, this one has it off"):
        off.client_tls(replace(MEMBER, fingerprint=on.fingerprint))


def test_keys_are_not_printed() -> None:
    credential = JobCredential(SECRET)
    assert credential.fingerprint
    assert "PRIVATE KEY" not in repr(credential._made)
