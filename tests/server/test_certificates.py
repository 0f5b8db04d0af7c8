"""Certificates of servers: from the identity of the store, and from files that change."""

import ssl
from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput
from dieselfs_server.certificates import CHANGES_LOOK_S, CertificateFiles, browser_tls, identity_tls
from dieselfs_server.identity import Identity
from tests.support.certificates import make_certificate


def test_all_servers_of_a_store_show_one_certificate() -> None:
    identity = Identity.generate()
    assert identity_tls(identity).channel == identity_tls(identity).channel
    assert identity_tls(Identity.generate()).channel != identity_tls(identity).channel


def test_browsers_get_a_certificate_of_their_own() -> None:
    identity = Identity.generate()
    made = browser_tls(identity, ["storage-1"])
    assert made.channel != identity_tls(identity).channel
    assert made.context.minimum_version == ssl.TLSVersion.TLSv1_3


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
