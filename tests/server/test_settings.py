"""Options go before the TOML file, the file before etcd; a mistake is one line that names it."""

import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dieselfs.errors import InvalidInput, Unavailable
from dieselfs.etcd.client import EtcdAccess
from dieselfs.etcd.keys import CONFIG_PREFIX, SERVERS_PREFIX
from dieselfs.limits import SERVER_LEASE_S
from dieselfs.net.address import TcpAddress, UnixAddress, parse_etcd
from dieselfs.settings.table import Place, given_at
from dieselfs_server.main import serve
from dieselfs_server.settings import RegistrySettings, ServerSettings, advertised, default_workers
from dieselfs_server.store.wrapper import Bounds
from tests.support.documents import REPOSITORY
from tests.support.etcd import running_etcd
from tests.support.server import free_port

STORES = {"store": "posix:///chunks", "metadata": "sqlite:///data/metadata.db"}
A, B = TcpAddress("a", 1), TcpAddress("b", 2)


def written(path: Path, **values: str) -> Path:
    path.write_text("".join(f'{name} = "{value}"\n' for name, value in values.items()))
    return path


def test_options_then_file_then_etcd(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd:
        client = etcd.client()
        for name in ("store", "metadata", "state"):
            client.put(f"/dieselfs/config/{name}", f"posix:///etcd-{name}")
        address = str(etcd.address).removeprefix("etcd://")
        config = written(
            tmp_path / "server.toml", etcd=address, metadata="sqlite:///file-metadata", store="posix:///x"
        )
        settings = ServerSettings.load(config, {"store": "posix:///option-store", "listen": ("tcp://a:1",)})
        assert settings.store == "posix:///option-store"
        assert settings.metadata == "sqlite:///file-metadata"
        assert settings.state == Path("posix:///etcd-state")
        assert settings.registry is not None
        assert (settings.registry.etcd, settings.registry.addresses) == (etcd.address, [A])
        client.put("/dieselfs/config/stroe", "posix:///x")
        with pytest.raises(InvalidInput, match="/dieselfs/config/: unknown setting 'stroe'"):
            ServerSettings.load(config, {})


def test_the_file_alone_serves_the_same(tmp_path: Path) -> None:
    settings = ServerSettings.load(written(tmp_path / "server.toml", state="/s", **STORES), {})
    assert (settings.store, settings.metadata, settings.state) == (*STORES.values(), Path("/s"))
    assert settings.registry is None


def test_only_this_machine_can_connect_by_default() -> None:
    assert ServerSettings.load(None, STORES).listen == [TcpAddress("127.0.0.1", 7070)]


def test_the_help_names_all_stores() -> None:
    shown = CliRunner().invoke(serve, ["--help"]).output
    for store in (
        "posix://",
        "rados://",
        "s3://",
        "gs://",
        "az://",
        "tiered:",
        "memory:",
        "sqlite://",
        "redis://",
    ):
        assert store in shown


def test_etcd_that_is_not_there_is_one_line() -> None:
    with pytest.raises(Unavailable, match=r"^cannot reach etcd at etcd://127.*no connection\)$"):
        ServerSettings.load(None, {"etcd": f"127.0.0.1:{free_port()}", **STORES})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"etcd": "http://x", **STORES}, "etcd://HOST:PORT"),
        ({"etcd_user": "ada", **STORES}, "etcd_password_file"),
        ({"store": "posix:///x"}, "--metadata is missing"),
        ({"tls_key": "/x", **STORES}, "--tls-certificate"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ServerSettings.load(None, options)


@pytest.mark.parametrize("line", ['colour = "red"', "listen = 1", "store = 1", "advertise = [1]", "="])
def test_mistakes_in_the_file_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(line)
    with pytest.raises(InvalidInput, match=str(path)):
        ServerSettings.load(path, dict(STORES))


def test_large_reads_of_the_store_are_limited(tmp_path: Path) -> None:
    assert ServerSettings.load(None, STORES).bounds == Bounds()
    of_file = ServerSettings.load(written(tmp_path / "server.toml", large_reads="2", **STORES), {})
    assert of_file.bounds == Bounds(large_reads_max=2)
    assert ServerSettings.load(None, {**STORES, "large_reads": 1}).bounds.large_reads_max == 1
    for wrong in (0, 17):
        with pytest.raises(InvalidInput, match=f"^large_reads is {wrong}: give a number from 1 to 16$"):
            ServerSettings.load(None, {**STORES, "large_reads": wrong})


def test_the_page_has_the_names_and_addresses_of_the_server() -> None:
    given = {"listen": ["0.0.0.0:7070"], "web": "10.0.0.5:7071", "web_names": ["Data.example.org"], **STORES}
    names = ServerSettings.load(None, given).web_names
    assert {"data.example.org", "10.0.0.5", socket.gethostname().lower()} <= {*names}
    assert "0.0.0.0" not in names


def test_what_is_registered() -> None:
    assert advertised([A, UnixAddress("/x"), B], []) == [A, B]
    assert advertised([TcpAddress("0.0.0.0", 1)], [B]) == [B]
    for listen in ([UnixAddress("/x")], [TcpAddress("0.0.0.0", 1)], [A, TcpAddress("::", 1)]):
        with pytest.raises(InvalidInput):
            advertised(listen, [])


@pytest.mark.parametrize(
    ("etcd", "access", "danger"),
    [
        ("127.0.0.1,localhost", EtcdAccess(), "every user of this machine"),
        ("127.0.0.1,localhost", EtcdAccess("dieselfs", "/password"), ""),
        ("127.0.0.1,10.0.0.1", EtcdAccess(), "no users"),
        ("10.0.0.1", EtcdAccess("dieselfs", "/password"), "without TLS"),
        ("10.0.0.1", EtcdAccess("dieselfs", "/password", tls_ca="/ca"), ""),
        ("10.0.0.1", EtcdAccess(tls_certificate="/c", tls_key="/k"), ""),
    ],
)
def test_an_etcd_that_lets_everybody_in_is_known(etcd: str, access: EtcdAccess, danger: str) -> None:
    found = RegistrySettings(parse_etcd(etcd), access, [A]).danger()
    assert danger in found and bool(found) == bool(danger)


def test_the_document_says_what_may_stand_in_etcd() -> None:
    document = (REPOSITORY / "docs" / "guide" / "several-servers.md").read_text()
    assert f"`{CONFIG_PREFIX}<name>`" in document and f"`{SERVERS_PREFIX}<host>:<port>`" in document
    assert all(f"`{row.name}`" in document for row in given_at(Place.ETCD))
    assert f"lease of {SERVER_LEASE_S} s" in document


def test_half_of_the_processors_have_a_worker_by_default() -> None:
    assert [default_workers(number) for number in (1, 2, 3, 4, 6, 16, 128)] == [1, 1, 1, 2, 3, 8, 8]


@pytest.mark.parametrize(
    ("changed", "workers"), [({}, 4), ({"store": "memory:"}, 1), ({"listen": ["unix:/run/server.sock"]}, 1)]
)
def test_servers_that_need_one_process_have_one(
    changed: dict[str, Any], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(8)})
    options = {"store": "posix:///chunks", "metadata": "sqlite:///metadata.db", **changed}
    settings = ServerSettings.load(None, options)
    assert settings.workers == workers
    assert settings.bounds.reads_max * workers >= Bounds().reads_max >= settings.bounds.reads_max


def test_workers_have_equal_parts_of_the_reads_of_the_store() -> None:
    options = {
        "store": "posix:///chunks",
        "metadata": "sqlite:///metadata.db",
        "workers": 3,
        "large_reads": 8,
    }
    bounds = ServerSettings.load(None, options).bounds
    assert (bounds.reads_max, bounds.large_reads_max) == (6, 3)
