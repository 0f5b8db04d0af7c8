"""The identity of the servers of a store."""

import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from dieselfs.errors import AccessDenied, Damaged, InvalidInput
from dieselfs.net.auth import check_signature
from dieselfs.net.tls import ServerTls
from dieselfs_server.access.certificates import CHANGES_LOOK_S, CertificateFiles, browser_tls, identity_tls
from dieselfs_server.access.identity import IDENTITY_RECORD, Identity, store_identity
from dieselfs_server.store.memory import MemoryStore
from tests.support.certificates import make_certificate


def test_all_servers_of_a_store_have_one_identity() -> None:
    store = MemoryStore()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: store_identity(store), range(8)))
    assert len({identity.pin for identity in found}) == 1
    assert store_identity(MemoryStore()).pin != found[0].pin


def test_a_signature_is_checked_against_the_pin() -> None:
    ours, other = Identity.generate(), Identity.generate()
    signature = ours.sign(b"content")
    check_signature(ours.pin, ours.public_key, b"content", signature, "snapshot")
    with pytest.raises(AccessDenied, match="snapshot: the signature"):
        check_signature(ours.pin, ours.public_key, b"altered", signature, "snapshot")
    with pytest.raises(AccessDenied, match="snapshot: signed by another server"):
        check_signature(ours.pin, other.public_key, b"content", other.sign(b"content"), "snapshot")


def test_a_damaged_record_is_no_reason_for_a_new_identity() -> None:
    store = MemoryStore()
    store_identity(store)
    store.put_record(IDENTITY_RECORD, b"dieselfs-identity 1 00 00\n")
    with pytest.raises(Damaged, match="identity"):
        store_identity(store)


def test_the_private_key_is_not_printed() -> None:
    identity = Identity.generate()
    assert identity.seed.hex() not in repr(identity) and repr(identity.seed) not in repr(identity)


def test_all_servers_of_a_store_show_one_certificate() -> None:
    identity = Identity.generate()
    assert identity_tls(identity).channel == identity_tls(identity).channel
    assert identity_tls(Identity.generate()).channel != identity_tls(identity).channel


def test_browsers_get_a_certificate_of_their_own() -> None:
    identity = Identity.generate()
    made = browser_tls(identity, ["storage-1"])
    assert made.channel != identity_tls(identity).channel
    assert made.context.minimum_version == ssl.TLSVersion.TLSv1_3


def test_browsers_know_the_certificate_again_after_a_restart() -> None:
    identity = Identity.generate()
    names = ["storage-1", "10.0.0.5", "::1"]
    assert browser_tls(identity, names).channel == browser_tls(identity, names).channel
    assert browser_tls(Identity.generate(), names).channel != browser_tls(identity, names).channel


def test_an_old_openssl_makes_a_certificate_for_browsers(monkeypatch: pytest.MonkeyPatch) -> None:
    sign = x509.CertificateBuilder.sign

    def sign_as_before(*arguments: Any, **options: Any) -> x509.Certificate:
        if options.get("ecdsa_deterministic"):
            raise UnsupportedAlgorithm("ECDSA with deterministic signature (RFC 6979) is not supported")
        return sign(*arguments, **options)

    monkeypatch.setattr(x509.CertificateBuilder, "sign", sign_as_before)
    made = shown(browser_tls(Identity.generate(), ["storage-1"]))
    assert made.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def shown(tls: ServerTls) -> x509.Certificate:
    """The certificate that a client gets."""
    outgoing, incoming = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = context.wrap_bio(incoming, outgoing)
    server = tls.context.wrap_bio(outgoing, incoming, server_side=True)
    for side in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    certificate = client.getpeercert(binary_form=True)
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate)


def test_a_certificate_for_browsers_has_names_addresses_and_a_number_of_its_own() -> None:
    identity = Identity.generate()
    one = shown(browser_tls(identity, ["storage-1", "10.0.0.5"]))
    names = one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["storage-1"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("10.0.0.5")]
    other = shown(browser_tls(identity, ["storage-2"]))
    assert one.issuer == other.issuer and one.serial_number != other.serial_number


def test_a_certificate_that_is_renewed_is_read_again(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    now_s = 0.0
    files = CertificateFiles(str(certificate), str(key), lambda: now_s)
    first = files.current()
    now_s += CHANGES_LOOK_S
    assert files.current() is first
    make_certificate(tmp_path)
    assert files.current() is first
    now_s += CHANGES_LOOK_S
    assert files.current().channel != first.channel


def test_a_pair_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    now_s = 0.0
    files = CertificateFiles(str(certificate), str(key), lambda: now_s)
    first = files.current()
    other = tmp_path / "other"
    other.mkdir()
    key.write_bytes(make_certificate(other)[1].read_bytes())
    now_s += CHANGES_LOOK_S
    assert files.current() is first
    with pytest.raises(InvalidInput, match="TLS certificate"):
        CertificateFiles(str(certificate), str(key))
