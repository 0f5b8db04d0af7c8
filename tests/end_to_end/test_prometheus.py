"""A real Prometheus with the files of `deploy/monitoring/` reads a server and the mounts of a job."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import NotFound
from lab.namespace import wait_for
from lab.ports import free_ports
from tests.support.dlcmd import Dlcmd
from tests.support.documents import REPOSITORY
from tests.support.job_mounts import job_mounts
from tests.support.server import running_server
from tests.support.small_chunks import store

pytestmark = [
    pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse"),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's package prometheus"),
]

MONITORING = REPOSITORY / "deploy/monitoring"
START_TIMEOUT_S, DATA_TIMEOUT_S = 30.0, 60.0
RATE_INTERVAL = "1m"
"""In place of the interval that Grafana chooses."""
WITHOUT_DATA = {
    "dieselfs_store_failures_total": "the store has not failed",
    "dieselfs_store_retries_total": "the store has not failed",
    "dieselfs_quota_used_ratio": "servers look at quotas once a minute; tests/server/admission/test_fill.py",
}


@dataclass(frozen=True)
class Prometheus:
    port: int

    def get(self, path: str, **arguments: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/{path}?{urlencode(arguments)}"
        with urlopen(url, timeout=START_TIMEOUT_S) as answer:
            return json.load(answer)["data"]

    def is_ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=START_TIMEOUT_S):
                return True
        except OSError:  # it is starting
            return False

    def has(self, expression: str) -> bool:
        return bool(self.get("api/v1/query", query=expression)["result"])


@contextmanager
def running_prometheus(folder: Path, server_port: int, node_port: int) -> Iterator[Prometheus]:
    """With the configuration that users get, but for the addresses and the interval."""
    folder.mkdir()
    text = (MONITORING / "prometheus.yml").read_text()
    for there, here in (("15s", "1s"), (":9568", f":{server_port}"), (":9569", f":{node_port}")):
        assert text.count(there) == 1
        text = text.replace(there, here)
    text = text.replace("global:\n", "global:\n  evaluation_interval: 1s\n")
    assert text.count("evaluation_interval") == 1
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(MONITORING / "alerts.yml", folder)
    (port,) = free_ports(1)
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    words += [f"--web.listen-address=127.0.0.1:{port}"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(["prometheus", *words], stdout=log, stderr=log)
    try:
        prometheus = Prometheus(port)
        wait_for(prometheus.is_ready, "Prometheus is ready", START_TIMEOUT_S)
        yield prometheus
    finally:
        process.kill()
        process.wait()


def panels() -> list[str]:
    dashboard = json.loads((MONITORING / "grafana/dieselfs.json").read_text())
    return [
        target["expr"].replace("$__rate_interval", RATE_INTERVAL)
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


def test_every_panel_has_data_and_every_rule_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    files, job = tmp_path / "files", tmp_path / "job"
    files.mkdir()
    job.mkdir()
    server_port, node_port = free_ports(2)
    metrics = ["--metrics", f"127.0.0.1:{server_port}"]
    with running_server(tmp_path / "server", metrics) as server:
        with Dataset(server.settings(), "counted", must_exist=False) as data:
            store(data, files)
        with closing(server.client()) as client, pytest.raises(NotFound):
            client.usage("none")  # a call that fails
        dlcmd = Dlcmd(tmp_path / "home", tmp_path, {"XDG_RUNTIME_DIR": str(tmp_path)})
        with job_mounts(server, "counted", job, ["a", "b"]) as places:
            for rank, place in enumerate(places):
                plan = place / f".dieselfs/shuffle/seed=1,epoch=0,rank={rank},world=2"
                assert all((place / name).read_bytes() for name in plan.read_text().splitlines())
            with dlcmd.start("metrics", "--listen", f"127.0.0.1:{node_port}") as exporter:
                try:
                    with running_prometheus(tmp_path / "prometheus", server_port, node_port) as prometheus:
                        check(prometheus)
                finally:
                    exporter.terminate()


def check(prometheus: Prometheus) -> None:
    wanted = [each for each in panels() if not any(name in each for name in WITHOUT_DATA)]
    assert len(wanted) > 10
    missing = set(wanted)

    def is_all_there() -> bool:
        missing.difference_update([each for each in missing if prometheus.has(each)])
        return not missing

    try:
        wait_for(is_all_there, "every panel has data", DATA_TIMEOUT_S)
    except AssertionError:
        raise AssertionError(f"panels without data: {sorted(missing)}") from None
    assert prometheus.has('up{job="dieselfs-server"} == 1') and prometheus.has('up{job="dieselfs-node"} == 1')

    def rules() -> list[Any]:
        (group,) = prometheus.get("api/v1/rules")["groups"]
        return list(group["rules"])

    wait_for(
        lambda: all(rule["health"] == "ok" for rule in rules()), "every rule was evaluated", DATA_TIMEOUT_S
    )
    named = re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text())
    assert [rule["name"] for rule in rules()] == named
    for rule in rules():
        assert prometheus.get("api/v1/query", query=rule["query"])["resultType"] == "vector"
        assert rule["state"] != "firing" and not rule.get("lastError"), rule
