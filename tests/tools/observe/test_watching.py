"""Watching the daemons of a node, and asking the servers of a mount."""

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from dieselfs.telemetry.activity import SERVER_METRICS, ServerActivity, activity
from dieselfs.telemetry.registry import Registry, Report
from dieselfs_client.daemon import control
from dieselfs_client.mount.points import mount_table
from dieselfs_client.mount.points.mount_table import MountRecord
from dieselfs_tools.observe.watching import ELSEWHERE, MountServers, not_found, server_of, watched, with_nodes
from lab.ports import free_port
from tests.support.server import RunningServer


def server(uptime_s: float, calls: int) -> Report:
    metrics = Registry()
    metrics.gauge("uptime_s", "Age.").value = uptime_s
    metrics.counter("rpc.requests", "Calls.").value = calls
    return metrics.report({"component": "server"})


def test_each_view_is_of_the_time_since_the_last() -> None:
    views = [[(1, server(100, 1000))], [(1, server(104, 1008)), (2, server(2, 8))], []]
    now_s = 0.0
    waited = []

    def read() -> Iterator[tuple[int, Report]]:
        return iter(views.pop(0))

    def wait(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        waited.append(seconds)

    first, second, third = islice(watched(4.0, read, lambda: now_s, wait), 3)

    def calls(seen: list[object]) -> list[float]:
        return [each.calls for each in seen if isinstance(each, ServerActivity)]

    assert calls([*first]) == [10.0] and calls([*second]) == [2.0, 4.0] and third == []
    assert waited == [4.0, 4.0]


def test_the_other_nodes_of_a_job_are_asked_once() -> None:
    def daemon(node: str, job: str = "j") -> Report:
        return Report({"component": "mount", "job": job, "node": node}, [])

    asked = []

    def ask(process: int) -> dict[str, Report]:
        asked.append(process)
        return {"a": daemon("a"), "b": daemon("b"), "c": daemon("c")}

    here = [(1, server(1, 1)), (2, daemon("a")), (3, daemon("b"))]
    found = [*with_nodes(lambda: iter(here), ask)]
    assert asked == [2] and found[:3] == here
    assert [(process, report.about["node"]) for process, report in found[3:]] == [(2, "c")]


def test_who_sees_the_mount_of_another_user_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = MountRecord("/data/my pets", "dl://pets", "fuse.dieselfs", "0:50", ("ro",))
    assert mounted.is_dieselfs
    monkeypatch.setattr(mount_table, "mount_at", {mounted.mountpoint: mounted}.get)
    for user, place, said in (
        (7, "/data/my pets", "sudo dlcmd why '/data/my pets'"),
        (7, "/data", "dlcmd mounts"),
        (0, "/data/my pets", "dlcmd mounts"),
    ):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        error = str(not_found(place, "why"))
        assert error.startswith(f"{place}: ") and said in error


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


def test_a_server_that_is_away_is_told(server: RunningServer) -> None:
    away = MountServers(f"tcp://127.0.0.1:{free_port()}", server.settings())
    assert [*away.with_published(lambda: iter(()))] == []
    assert away.unknown.startswith("no status of the server: ")
