"""Values and leases in a real etcd, over members that are dead, and with users."""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.errors import AccessDenied, InvalidInput, Unavailable
from dieselfs.etcd.client import Etcd, EtcdAccess
from dieselfs.limits import ETCD_TIMEOUT_S
from dieselfs.net.address import EtcdAddress, TcpAddress
from tests.support.certificates import make_certificate
from tests.support.etcd import RunningEtcd, running_etcd
from tests.support.server import free_port


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEtcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


def test_values_under_a_prefix(etcd: RunningEtcd) -> None:
    client = etcd.client()
    client.put("/values/a", "1")
    client.put("/values/b", b"\xff")
    client.put(b"/values/\xff", "any bytes")
    client.put("/valuesx", "3")
    assert client.values("/values/") == {
        "/values/a": b"1",
        "/values/b": b"\xff",
        "/values/\ufffd": b"any bytes",
    }
    assert client.values("/nothing/") == {}


def values_until_a_lease_runs_out(client: Etcd, lease_s: int) -> tuple[list[set[str]], float]:
    """The values that there were, of which one has a lease that is kept and the other does not; and the longest time
    for which the first was left alone.
    """
    began_s = kept_s = time.monotonic()
    pinned, lost, ended = (client.grant_lease(lease_s) for _ in range(3))
    for name, lease in (("kept", pinned), ("lost", lost), ("ended", ended)):
        client.put(f"/leases/{name}", "x", lease)
    client.revoke(ended)
    client.revoke(ended)  # is no error
    seen, alone_s = [set(client.values("/leases/"))], 0.0
    while "/leases/lost" in seen[-1]:
        assert time.monotonic() < began_s + lease_s + 60
        is_pinned = client.keep_alive(pinned)
        alone_s, kept_s = max(alone_s, time.monotonic() - kept_s), time.monotonic()
        assert is_pinned or alone_s >= lease_s
        time.sleep(0.1)
        seen.append(set(client.values("/leases/")))
    assert not client.keep_alive(lost)
    return seen, max(alone_s, time.monotonic() - kept_s)


def test_a_value_lasts_as_long_as_its_lease(etcd: RunningEtcd) -> None:
    client = etcd.client()
    for lease_s in (2, 8, 32):  # a machine that stalls for as long as a lease gets a longer one
        seen, alone_s = values_until_a_lease_runs_out(client, lease_s)
        if alone_s < lease_s:
            break
    assert alone_s < lease_s
    assert seen[0] == {"/leases/kept", "/leases/lost"} and seen[-1] == {"/leases/kept"}


def test_a_value_that_is_put_again_outlives_its_first_lease(etcd: RunningEtcd) -> None:
    """So a server that is started again takes the place of the one that died."""
    client = etcd.client()
    first, second = client.grant_lease(60), client.grant_lease(60)
    client.put("/again/x", "1", first)
    client.put("/again/x", "2", second)
    client.revoke(first)
    assert client.values("/again/") == {"/again/x": b"2"}


def test_dead_members_are_passed_over(etcd: RunningEtcd) -> None:
    dead = TcpAddress("127.0.0.1", free_port())
    client = Etcd(EtcdAddress((dead, *etcd.address.members)), EtcdAccess())
    client.put("/members/x", "1")
    assert client.values("/members/") == {"/members/x": b"1"}


def test_nobody_there_is_one_clear_line_in_time() -> None:
    address = EtcdAddress((TcpAddress("127.0.0.1", free_port()), TcpAddress("127.0.0.1", free_port())))
    started_s = time.monotonic()
    with pytest.raises(Unavailable, match=r"^cannot reach etcd at etcd://.* \(127.*no connection; .*\)$"):
        Etcd(address, EtcdAccess()).values("/")
    assert time.monotonic() - started_s < 2 * ETCD_TIMEOUT_S + 2


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyetcd", None)
    with pytest.raises(InvalidInput, match=r"pip install '\.\[etcd\]'"):
        Etcd(EtcdAddress((TcpAddress("127.0.0.1", 1),)), EtcdAccess())


def test_who_is_let_in(tmp_path: Path) -> None:
    right, wrong, loose = tmp_path / "right", tmp_path / "wrong", tmp_path / "loose"
    for path, text in ((right, "secret word\n"), (wrong, "other"), (loose, "secret word")):
        path.write_text(text)
        path.chmod(0o644 if path == loose else 0o600)
    with running_etcd(tmp_path) as etcd:
        etcd.require_users(("ada", "secret word", {"/who/": "READWRITE"}))
        etcd.client(EtcdAccess("ada", str(right))).put("/who/x", "1")
        for access in (EtcdAccess(), EtcdAccess("ada", str(wrong)), EtcdAccess("nobody", str(right))):
            with pytest.raises(AccessDenied, match="refuses user") as caught:
                etcd.client(access).values("/who/")
            assert "secret" not in str(caught.value)
        with pytest.raises(AccessDenied, match="permission denied"):
            etcd.client(EtcdAccess("ada", str(right))).values("/elsewhere/")
        with pytest.raises(AccessDenied, match="chmod 600"):
            etcd.client(EtcdAccess("ada", str(loose))).values("/who/")
        with pytest.raises(AccessDenied, match="No such file"):
            etcd.client(EtcdAccess("ada", str(tmp_path / "none"))).values("/who/")


def test_a_user_where_there_are_none_is_said_to_be_one(etcd: RunningEtcd, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("word")
    password.chmod(0o600)
    with pytest.raises(Unavailable, match="authentication is not enabled"):
        etcd.client(EtcdAccess("ada", str(password))).values("/")


def test_tls_both_ways(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    stranger, strangers_key = map(str, make_certificate(other))
    with running_etcd(tmp_path, make_certificate(own)) as etcd:
        etcd.client().put("/tls/x", "1")
        assert etcd.client().values("/tls/") == {"/tls/x": b"1"}
        trusting = etcd.access.tls_ca
        for access in (
            EtcdAccess(),
            EtcdAccess(tls_ca=trusting),
            EtcdAccess(tls_ca=trusting, tls_certificate=stranger, tls_key=strangers_key),
            replace(etcd.access, tls_ca=stranger),
        ):
            with pytest.raises(Unavailable, match="no connection"):
                etcd.client(access).values("/tls/")


def test_half_of_a_pair_of_settings_is_refused() -> None:
    assert EtcdAccess.of({"etcd_user": "a", "etcd_password_file": "/x", "store": "y"}) == EtcdAccess(
        "a", "/x"
    )
    for half in ("etcd_user", "etcd_password_file", "etcd_tls_certificate", "etcd_tls_key"):
        with pytest.raises(InvalidInput, match="needs both"):
            EtcdAccess.of({half: "x"})
