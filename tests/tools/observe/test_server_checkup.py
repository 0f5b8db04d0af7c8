"""Each check of servers and peers, with what is fine and with the fault that it is for; then checks of real servers."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dieselfs import __version__
from dieselfs.net.address import TcpAddress, UnixAddress
from dieselfs.rpc.records import FAILURE, OK, WARNING
from dieselfs.settings.table import OFF, ON
from dieselfs.telemetry.registry import Report
from dieselfs_tools.cli.session import Session
from dieselfs_tools.observe.checkup import clock, peers, server_checks, transport, versions
from lab.ports import free_port
from tests.support.server import RunningServer, running_server


@pytest.mark.parametrize(
    ("server_s", "state", "said"),
    [
        (1000.2, OK, "agrees"),
        (1003.0, OK, "agrees"),  # less than seconds apart
        (1060.0, WARNING, "59 s behind"),
        (900.0, WARNING, "ahead of"),
        (10.0, FAILURE, "refuses what is written here"),
        (9000.0, WARNING, "behind"),
    ],
)
def test_clocks(server_s: float, state: str, said: str) -> None:
    found = clock(server_s, 1000.0, 1001.0)
    assert found.state == state and said in found.text, found
    assert bool(found.fix) == (state != OK)


@pytest.mark.parametrize(
    ("server", "setting", "state"),
    [
        (UnixAddress("/run/x"), OFF, OK),
        (TcpAddress("storage", 7070), ON, OK),
        (TcpAddress("127.0.0.1", 7070), OFF, OK),
        (TcpAddress("storage", 7070), OFF, WARNING),
    ],
    ids=str,
)
def test_requests_in_the_clear(server: Any, setting: str, state: str) -> None:
    assert transport(server, setting).state == state


def test_servers_of_another_version() -> None:
    assert versions({"a": __version__, "b": __version__}).state == OK
    found = versions({"a": __version__, "b": "0.0.1"})
    assert found.state == WARNING and "b has 0.0.1" in found.text and "a has" not in found.text


def report(**infos: Any) -> Report:
    return Report({}, [], {name.replace("_", ".", 1): value for name, value in infos.items()})


def test_peers_that_are_suspected() -> None:
    job = {"job_name": "j", "job_members": ["a", "b", "c"]}
    found = [
        *peers(
            [
                report(),
                report(**job, job_suspected=[]),
                report(**job, job_suspected=["b", "c"]),
                report(**job, job_suspected=[], membership_out="another snapshot"),
            ]
        )
    ]
    assert [each.state for each in found] == [OK, WARNING, FAILURE]
    assert "2 of 3 nodes do not answer: b, c" in found[1].text and "another snapshot" in found[2].text


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
    states = {each.name: each.state for each in server_checks(session, lambda: time.time() + 3600)}
    assert states["clock"] == FAILURE and states["store"] == states["metadata"] == OK


def test_one_of_two_servers_is_away(session: Session, server: RunningServer) -> None:
    session.server = f"{server.unix},tcp://127.0.0.1:{free_port()}"
    found = [*server_checks(session)]
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
    names = [each.name for each in server_checks(other)]
    other.close()
    assert names == ["clock", "transport"]
