"""The other servers on the page: real ones in a real etcd, of which one is killed and one hangs."""

import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from dieselfs import __version__
from dieselfs.etcd.keys import SERVERS_PREFIX, encode_server, server_id, server_key
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.records import FAILURE, OK, WARNING
from dieselfs_server.web.others import REMEMBERED_S, SERVERS_MAX, checks, known
from lab.namespace import wait_for
from tests.server.web.test_app import Browser
from tests.support.etcd import RunningEtcd, running_etcd
from tests.support.server import RunningServer, start_server

WAIT_S = 60.0
A, B = TcpAddress("10.0.0.5", 7070), TcpAddress("10.0.0.6", 7070)
KEYS = tuple(server_key(server_id([each])) for each in (A, B))


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[RunningEtcd]:
    with running_etcd(tmp_path / "etcd") as running:
        yield running


@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (Debian: etcd-server)")
def test_a_killed_server_and_one_that_hangs(etcd: RunningEtcd, tmp_path: Path) -> None:
    with ExitStack() as stack:

        def start(name: str, *more: str) -> RunningServer:
            server = start_server(tmp_path / name, ["--etcd", str(etcd.address), *more])
            stack.callback(server.kill)
            return server

        alive, killed, hanging = (start(name) for name in "abc")
        wait_for(lambda: len(etcd.client().values(SERVERS_PREFIX)) == 3, "etcd lists all", WAIT_S)
        client = stack.enter_context(closing(start("page", "--web", "127.0.0.1:0").client()))
        browser = stack.enter_context(Browser(client))
        browser.log_in()

        def seen() -> Mapping[str, Mapping[str, str]]:
            """The records of servers by their addresses."""
            found = browser.get("/api/health").json()["checks"]
            return {each["text"].partition(",")[0]: each for each in found if each["name"] == "server"}

        servers = alive, killed, hanging
        states = {each.tcp: OK for each in servers}
        wait_for(
            lambda: {name: each["state"] for name, each in seen().items()} == states, "all answer", WAIT_S
        )
        assert f"version {__version__}, answers" in seen()[alive.tcp]["text"]
        killed.kill()
        hanging.process.send_signal(signal.SIGSTOP)
        wait_for(
            lambda: all(seen()[each.tcp]["state"] != OK for each in (killed, hanging)),
            "both are missed",
            WAIT_S,
        )
        found = seen()
        assert found[alive.tcp]["state"] == OK
        assert all("not answering since 20" in found[each.tcp]["text"] for each in (killed, hanging))
        assert "no answer in time" in found[hanging.tcp]["text"]
        with closing(alive.client()) as asking:
            assert asking.status().metrics["rpc.refused_logins"] == 0  # nobody has tried to log in
        assert "handshake failed" not in alive.log()


def test_what_is_known_of_servers() -> None:
    values = {KEYS[0]: encode_server([A], "1"), KEYS[1]: encode_server([B], "0.0.1"), "/x": b"{", "/y": b"[]"}
    first = known({}, values, KEYS[0], 100.0)
    assert [*first] == [KEYS[1]] and [*checks(first.values())] == []  # none was asked yet
    first[KEYS[1]].answered_s, first[KEYS[1]].fault = 100.0, ""
    found = [*checks(first.values())]
    assert [each.state for each in found] == [OK, WARNING] and found[1].name == "versions"
    first[KEYS[1]].fault = "refused"
    (listed, _) = checks(known(first, values, KEYS[0], 110.0).values())
    assert listed.state == FAILURE and "not answering since 1970-01-01 00:01:40 UTC: refused" in listed.text
    (gone,) = checks(known(first, {}, KEYS[0], 110.0).values())
    assert gone.state == WARNING and "left the list" in gone.text
    assert known(first, {}, KEYS[0], 100.0 + REMEMBERED_S) == {}


def test_a_long_list_and_hostile_versions() -> None:
    many = {f"/{number}": encode_server([A], "1\n" * 99) for number in range(2 * SERVERS_MAX)}
    found = known({}, many, "", 0.0)
    assert len(found) == SERVERS_MAX
    assert all(len(each.version) <= 60 and each.version.isprintable() for each in found.values())
