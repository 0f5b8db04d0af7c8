"""Checks of real servers: a wrong clock, an ordinary user, one of several servers that is away."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.rpc.records import FAILURE, OK
from dieselfs_tools.cli.session import Session
from dieselfs_tools.observe.server_facts import server_findings
from lab.ports import free_port
from tests.support.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def session(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("DIESELFS_HOME", str(tmp_path / "home"))
    session = Session(server=server.unix)
    yield session
    session.close()


def test_a_clock_that_is_ahead(session: Session) -> None:
    states = {each.name: each.state for each in server_findings(session, lambda: time.time() + 3600)}
    assert states["clock"] == FAILURE and states["store"] == states["metadata"] == OK


def test_one_of_two_servers_is_away(session: Session, server: RunningServer) -> None:
    session.server = f"{server.unix},tcp://127.0.0.1:{free_port()}"
    found = [*server_findings(session)]
    assert [each.state for each in found if each.name == "clock"] == [OK]
    (away,) = (each for each in found if each.name == "server")
    assert away.state == FAILURE and "127.0.0.1" in away.text


def test_an_ordinary_user_gets_the_clock_alone(
    session: Session, server: RunningServer, tmp_path: Path
) -> None:
    key = session.client.add_key("ada")
    place = tmp_path / "ada.key"
    place.write_text(key.text())
    place.chmod(0o600)
    other = Session(server=server.tcp, key_file=str(place))
    names = [each.name for each in server_findings(other)]
    other.close()
    assert names == ["clock", "transport"]
