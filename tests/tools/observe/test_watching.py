"""Daemons that come and go while they are watched."""

import os
from collections.abc import Iterator
from itertools import islice

import pytest

from dieselfs.telemetry.activity import ServerActivity
from dieselfs.telemetry.registry import Registry, Report
from dieselfs_client.mount.points import mount_table
from dieselfs_client.mount.points.mount_table import MountRecord
from dieselfs_tools.observe.watching import not_found, watched, with_nodes


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
