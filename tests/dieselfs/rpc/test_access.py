"""The key and the terms of TLS of a client, from files that may change; keys are replaced under a running client."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.errors import AccessDenied
from dieselfs.net.auth import Key
from dieselfs.net.private_file import write_private_file
from dieselfs.rpc.access import CHANGES_LOOK_S, AccessFiles, read_access
from dieselfs.settings.table import OFF, Settings
from tests.support.certificates import make_certificate

KEY = Key.generate("ada", bytes(range(32)))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    write_private_file(tmp_path / "key", KEY.text().encode())
    return Settings(tmp_path, tmp_path, "tcp://127.0.0.1:1", str(tmp_path / "key"))


def test_servers_are_known_by_the_pin_in_the_key_file(settings: Settings) -> None:
    access = read_access(settings)
    assert access.key == KEY and access.tls is not None and access.tls.pins == (KEY.pin,)


def test_with_an_authority_the_pin_is_not_needed(settings: Settings, tmp_path: Path) -> None:
    certificate, _ = make_certificate(tmp_path)
    tls = read_access(replace(settings, tls_ca=str(certificate))).tls
    assert tls is not None and not tls.pins
    assert tls.context.verify_mode is ssl.CERT_REQUIRED and tls.context.check_hostname
    with pytest.raises(AccessDenied, match="none"):
        read_access(replace(settings, tls_ca=str(tmp_path / "none")))


def test_tls_is_off_only_if_it_is_said(settings: Settings) -> None:
    assert read_access(replace(settings, tls=OFF)).tls is None


def test_a_changed_key_file_is_read_again(settings: Settings, tmp_path: Path) -> None:
    now_s = 0.0
    files = AccessFiles(settings, lambda: now_s)
    new = Key.generate("ada", KEY.pin)
    write_private_file(tmp_path / "key", new.text().encode())
    assert files.current().key == KEY  # it has just looked
    now_s += CHANGES_LOOK_S
    assert files.current().key == new
    assert files.current() is files.current()


def test_a_refusal_makes_it_look_at_once(settings: Settings, tmp_path: Path) -> None:
    files = AccessFiles(settings, lambda: 0.0)
    new = Key.generate("ada", KEY.pin)
    write_private_file(tmp_path / "key", new.text().encode())
    assert files.current(is_urgent=True).key == new


def test_a_file_that_is_half_written_or_gone_changes_nothing(settings: Settings, tmp_path: Path) -> None:
    files = AccessFiles(settings, lambda: 0.0)
    write_private_file(tmp_path / "key", b"dieselfs-key ada")
    assert files.current(is_urgent=True).key == KEY
    (tmp_path / "key").unlink()
    assert files.current(is_urgent=True).key == KEY
    new = Key.generate("ada", KEY.pin)
    write_private_file(tmp_path / "key", new.text().encode())
    assert files.current(is_urgent=True).key == new
