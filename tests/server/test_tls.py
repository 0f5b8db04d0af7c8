"""TLS on TCP, where it is configured."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError, InvalidInput, Unavailable
from dieselfs.rpc.client import ServerClient
from tests.support.certificates import make_certificate
from tests.support.server import RunningServer, running_server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[RunningServer]:
    options = ["--tls-certificate", str(certificate[0]), "--tls-key", str(certificate[1])]
    with running_server(tmp_path_factory.mktemp("tls-server"), options) as running:
        yield running


def test_data_crosses_encrypted(server: RunningServer, certificate: tuple[Path, Path]) -> None:
    key = server.user("ada", secret="write")
    settings = server.settings(key, certificate[0])
    content = bytes(range(256)) * 40_000
    with Dataset(settings, "secret", is_created=False) as data:
        data.put("file", content)
        data.flush()
        assert data.get("file") == content


def test_a_server_that_is_not_certified_is_refused(server: RunningServer, tmp_path: Path) -> None:
    other, _ = make_certificate(tmp_path)
    client = ServerClient(server.settings(server.user("bob"), other))
    with pytest.raises(Unavailable, match="certificate"):
        client.datasets()


def test_a_client_without_tls_is_asked_for_it(server: RunningServer) -> None:
    client = ServerClient(server.settings(server.user("eve")))
    with pytest.raises(DieselfsError, match="is TLS switched on at both ends"):
        client.datasets()


def test_a_client_with_tls_at_a_server_without_is_asked_for_it(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    with running_server(tmp_path / "plain") as plain:
        client = ServerClient(plain.settings(plain.user("eve"), certificate[0]))
        with pytest.raises(Unavailable, match="is TLS switched on at both ends"):
            client.datasets()


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    options = ["--tls-certificate", str(tmp_path / "none.pem"), "--tls-key", str(tmp_path / "none.key")]
    with pytest.raises(AssertionError, match=r"none\.pem"), running_server(tmp_path / "server", options):
        pass
    assert issubclass(InvalidInput, DieselfsError)
