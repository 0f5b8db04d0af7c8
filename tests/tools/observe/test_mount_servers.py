"""What the servers of a mount tell of themselves: to administrators, to others, and when they are away."""

import json
import os
from pathlib import Path

import pytest

from dieselfs.rpc.client import ServerClient
from dieselfs.telemetry.activity import SERVER_METRICS, ServerActivity, activity
from dieselfs_client.daemon import control
from dieselfs_tools.observe.watching import ELSEWHERE, MountServers, server_of
from lab.ports import free_port
from tests.support.server import RunningServer


def test_an_administrator_gets_the_report_of_the_server_of_the_mount(server: RunningServer) -> None:
    key = server.user("sees-servers", all_datasets="admin")
    servers = MountServers(server.tcp, server.settings(key))
    ((process, report),) = servers.with_published(lambda: iter(()))
    assert (process, servers.unknown) == (ELSEWHERE, "")
    assert report.about == {"component": "server", "address": server.tcp}
    assert {"dieselfs_rpc_answered_seconds", "dieselfs_process_cpu_seconds_total"} <= {
        family["name"] for family in report.families
    }
    assert len(report.families) <= len(SERVER_METRICS)
    assert isinstance(activity(process, None, report, 1.0), ServerActivity)


def test_another_user_is_told_so_and_does_not_ask_again(server: RunningServer) -> None:
    key = server.user("sees-no-servers")
    servers = MountServers(server.tcp, server.settings(key))
    for _ in range(2):
        assert [*servers.with_published(lambda: iter(()))] == []
        assert servers.unknown == "only administrators see how long the server and its store take"


def test_an_embedded_server_is_not_asked(server: RunningServer) -> None:
    servers = MountServers(None, server.settings())
    assert [*servers.with_published(lambda: iter(()))] == [] and servers.unknown == ""


@pytest.mark.parametrize(("named", "found"), [("tcp://a:1", "tcp://a:1"), ("embedded", None), (None, None)])
def test_a_mount_of_this_user_names_its_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None, found: str | None
) -> None:
    (tmp_path / ".dieselfs").mkdir()
    (tmp_path / ".dieselfs/info").write_text(json.dumps({"server": named}))
    assert server_of(str(tmp_path)) is None  # no mount
    monkeypatch.setattr(control, "daemon_at", lambda place: os.getpid())
    assert server_of(str(tmp_path)) == found
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    assert server_of(str(tmp_path)) is None


def test_a_server_that_is_away_or_old(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    away = MountServers(f"tcp://127.0.0.1:{free_port()}", server.settings())
    assert [*away.with_published(lambda: iter(()))] == []
    assert away.unknown.startswith("no status of the server: ")
    status = ServerClient.status
    monkeypatch.setattr(ServerClient, "status", lambda client: status(client)._replace(report=None))
    assert [*MountServers(server.unix, server.settings()).with_published(lambda: iter(()))] == []
