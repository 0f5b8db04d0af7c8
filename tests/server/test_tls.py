"""TLS between clients and servers: attacks on it, both ways to know a server, and TLS that is off."""

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import AccessDenied, Damaged, DieselfsError, Unavailable
from dieselfs.net.address import parse_address
from dieselfs.net.auth import Key, pin_of, read_key_file
from dieselfs.net.private_file import write_private_file
from dieselfs.net.tls import ClientTls, ServerTls, new_context
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.connection import Connection, connected
from dieselfs.settings.table import OFF, Settings
from dieselfs.snapshot.store import SnapshotStore
from dieselfs_server.access.certificates import identity_tls
from dieselfs_server.access.identity import Identity
from tests.support.certificates import make_certificate
from tests.support.dlcmd import wait_until
from tests.support.server import RunningServer, running_server
from tests.support.strangers import PATIENCE_S, is_hung_up, pinned, raw_socket, tls_socket


def off(settings: Settings) -> Settings:
    return replace(settings, tls=OFF)


@contextmanager
def relay(target: str, tls: ServerTls) -> Iterator[str]:
    """Somebody in between, with a certificate of his own: he hands on all bytes in both directions."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def hand_on() -> None:
            with listening.accept()[0] as caller, tls_socket(target) as server:
                caller.settimeout(PATIENCE_S)
                with tls.context.wrap_socket(caller, server_side=True) as inside:
                    while call := inside.recv(65536):  # a call, its reply, and so on: a handshake is no more
                        server.sendall(call)
                        inside.sendall(server.recv(65536))

        def serve() -> None:
            try:
                hand_on()
            except OSError:  # the client has found out
                return

        thread = Thread(target=serve)
        thread.start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_data_crosses_encrypted(server: RunningServer) -> None:
    key = server.user("ada", secret="write")
    content = bytes(range(256)) * 40_000
    with Dataset(server.settings(key), "secret", must_exist=False) as data:
        data.put("file", content)
        data.flush()
        assert data.get("file") == content
    with tls_socket(server.tcp) as sock:
        assert sock.version() == "TLSv1.3"


def test_earlier_versions_of_tls_are_refused(server: RunningServer) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        tls_socket(server.tcp, ssl.TLSVersion.TLSv1_2)


def test_a_false_server_is_known_by_its_key(server: RunningServer) -> None:
    """A process that takes over the address has not the key of the store."""
    key = server.user("bob")
    with relay(server.tcp, identity_tls(Identity.generate())) as false:
        client = ServerClient(replace(server.settings(key), server=false))
        with pytest.raises(Unavailable, match="it is not the real one"):
            client.datasets()
        client.close()


def test_a_proof_is_worthless_to_somebody_in_between(server: RunningServer) -> None:
    """Even a client that checks no key gives nobody the right to speak in its name."""
    key = read_key_file(server.user("carol"))
    believing = ClientTls(new_context(ssl.PROTOCOL_TLS_CLIENT))
    with relay(server.tcp, identity_tls(Identity.generate())) as false:
        address = parse_address(false)
        with pytest.raises(AccessDenied, match="unknown key"):
            Connection(connected(address, believing), address, key)
    wait_until(lambda: f"user 'carol', key '{key.key_id}': wrong secret" in server.log())
    address = parse_address(server.tcp)
    Connection(connected(address, believing), address, key).close()  # without the relay it is right


def test_servers_of_one_store_have_one_key_also_after_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as first:
        key = read_key_file(first.user("ada", all_datasets="read"))
    with running_server(tmp_path / "server") as again:
        address = parse_address(again.tcp)
        Connection(connected(address, pinned(key)), address, key).close()
    with running_server(tmp_path / "other") as other:
        address = parse_address(other.tcp)
        with pytest.raises(Unavailable, match="not the real one"):
            connected(address, pinned(key))


def test_a_client_with_tls_off_is_told_so(server: RunningServer) -> None:
    client = ServerClient(off(server.settings(server.user("dave"))))
    with pytest.raises(DieselfsError, match="tls must be off at both ends or at neither"):
        client.datasets()
    client.close()
    wait_until(lambda: "the client speaks no TLS 1.3" in server.log())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("plain"), ["--tls", "off"]) as running:
        yield running


def test_a_client_never_gives_up_tls_by_itself(plain: RunningServer) -> None:
    client = ServerClient(plain.settings(plain.user("erin")))
    with pytest.raises(Unavailable, match="tls must be off at both ends or at neither"):
        client.datasets()
    client.close()
    wait_until(lambda: "the other side speaks TLS" in plain.log())


def test_without_tls_on_both_sides_it_works_and_the_server_warns_once(
    plain: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    key = plain.user("frank", all_datasets="read")
    client = ServerClient(off(plain.settings(key)))
    assert client.datasets() == []
    client.close()
    assert plain.log().count("tls is off") == 1


def test_a_client_warns_that_tls_is_off(plain: RunningServer) -> None:
    key = plain.user("grace", all_datasets="read")
    command = [
        sys.executable,
        "-m",
        "dieselfs_tools.dlcmd",
        "--server",
        plain.tcp,
        "--key-file",
        str(key),
        "ls",
    ]
    environment = {"PYTHONPATH": ":".join(sys.path), "DIESELFS_TLS": "off", "HOME": str(plain.folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stderr.count("tls is off") == 1


def test_a_key_is_not_shown_to_a_server_without_a_name(server: RunningServer) -> None:
    with raw_socket(server.tcp) as sock:
        sock.sendall(b"\x00\x00\x00\x10" + b"hello" * 4)
        assert is_hung_up(sock)


# -- certificates of an authority ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def certified(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[RunningServer]:
    options = ["--tls-certificate", str(certificate[0]), "--tls-key", str(certificate[1])]
    with running_server(tmp_path_factory.mktemp("tls-server"), options) as running:
        yield running


def test_an_authority_is_as_good_as_a_pin(certified: RunningServer, certificate: tuple[Path, Path]) -> None:
    key = certified.user("ada", all_datasets="read")
    client = ServerClient(certified.settings(key, certificate[0]))
    assert client.datasets() == []
    client.close()


def test_a_server_that_is_not_certified_is_refused(certified: RunningServer, tmp_path: Path) -> None:
    other, _ = make_certificate(tmp_path)
    client = ServerClient(certified.settings(certified.user("bob"), other))
    with pytest.raises(Unavailable, match="certificate"):
        client.datasets()
    client.close()


def test_a_certified_server_without_the_pinned_key_is_explained(certified: RunningServer) -> None:
    client = ServerClient(certified.settings(certified.user("eve")))
    with pytest.raises(Unavailable, match="set tls_ca if an authority"):
        client.datasets()
    client.close()


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    options = ["--tls-certificate", str(tmp_path / "none.pem"), "--tls-key", str(tmp_path / "none.key")]
    with pytest.raises(AssertionError, match=r"none\.pem"), running_server(tmp_path / "server", options):
        pass


def test_the_pin_of_a_key_file_is_that_of_the_store(server: RunningServer) -> None:
    record = (server.folder / "chunks/records/identity").read_bytes()
    assert Key.parse(server.user("henry").read_text(), "key").pin == pin_of(
        Identity.decode(record).public_key
    )


# -- keys that are replaced ------------------------------------------------------------------------------


def test_a_running_client_changes_to_a_new_key(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.rpc.access.CHANGES_LOOK_S", 0.0)
    path = server.user("nora", noras="write")
    old = read_key_file(path)
    with Dataset(server.settings(path), "noras", must_exist=False) as data, closing(server.client()) as admin:
        data.put("file", b"content")
        data.flush()
        with closing(server.client(path)) as client:
            write_private_file(path, client.add_key("nora").text().encode())
        admin.remove_key("nora", old.key_id)
        assert data.client.dataset("noras").files == 1
        data.put("second", b"content")
        data.flush()
        assert data.client.dataset("noras").files == 2


def test_a_refused_key_is_read_again_at_once(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dieselfs.rpc.access.CHANGES_LOOK_S", 3600.0)
    path = server.user("olga", olgas="read")
    old = read_key_file(path)
    with closing(server.client(path)) as client, closing(server.client()) as admin:
        write_private_file(path, admin.add_key("olga").text().encode())
        admin.remove_key("olga", old.key_id)
        assert client.datasets() == []


def test_a_snapshot_of_other_servers_is_refused(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from a server that shows the right key."""
    path = server.user("paul", pauls="write")
    with Dataset(server.settings(path), "pauls", must_exist=False) as data:
        data.put("file", b"content")
        data.flush()
        dataset = data.client.dataset("pauls")
        SnapshotStore(tmp_path / "one").get(data.client, dataset)
        monkeypatch.setattr(ServerClient, "servers_pins", (Identity.generate().pin,))
        with pytest.raises(Damaged, match="other servers than those"):
            SnapshotStore(tmp_path / "other").get(data.client, dataset)
