"""Metrics of a real mount, cache daemon and server: `dlcmd metrics`, `top`, `why`, and a server's HTTP address."""

import fcntl
import json
import os
import pty
import re
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from select import POLLIN, poll
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_NOT_FOUND
from dieselfs.limits import MIB
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.status import supervision_of
from lab.network import clear
from tests.support.dlcmd import Dlcmd
from tests.support.job_mounts import JOB, job_mounts
from tests.support.promtool import check_metrics, needs_promtool
from tests.support.server import RunningServer, free_port, running_server
from tests.support.small_chunks import FILES, store

TIMEOUT_S = 60.0
ENTERED_SCREEN, LEFT_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
HIDDEN_CURSOR, SHOWN_CURSOR = b"\x1b[?25l", b"\x1b[?25h"

needs_fuse = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with Dataset(server.settings(), "counted", must_exist=False) as data:
            store(data, tmp_path_factory.mktemp("files"))
        yield server


@pytest.fixture
def dlcmd(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dlcmd:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return Dlcmd(
        tmp_path / "home", tmp_path, {"XDG_RUNTIME_DIR": str(tmp_path), "DIESELFS_SERVER": server.unix}
    )


@pytest.fixture
def place(server: RunningServer, dlcmd: Dlcmd) -> Iterator[Path]:
    folder = dlcmd.folder / "mount"
    folder.mkdir()
    options = MountOptions(server=server.unix, memory_bytes=128 * MIB, log_file=f"{folder}.log")
    control.mount("counted", folder, options)
    yield folder
    clear(folder)


def read_in_order(place: Path) -> None:
    paths = (place / ".dieselfs/shuffle/seed=1,epoch=0").read_text().splitlines()
    assert len(paths) == FILES and all((place / path).read_bytes() for path in paths)


@needs_fuse
def test_one_command_has_the_metrics_of_a_mount_that_is_read(dlcmd: Dlcmd, place: Path) -> None:
    read_in_order(place)
    text = dlcmd("metrics").stdout.decode()
    found = {
        (sample.name, sample.labels["mountpoint"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("component") == "mount" and len(sample.labels) == 3
    }
    assert 0 < found["dieselfs_page_cache_planned_files_total", str(place)] <= FILES  # as far as it is known
    assert found["dieselfs_fetches_chunk_bytes_total", str(place)] > 0


@needs_fuse
@needs_promtool
def test_prometheus_accepts_the_metrics_of_a_mount_and_a_cache(dlcmd: Dlcmd, place: Path) -> None:
    read_in_order(place)
    with cache_daemon(dlcmd):
        text = dlcmd("metrics").stdout
    assert b'component="mount"' in text and b'component="cache"' in text
    check_metrics(text)


@needs_promtool
def test_prometheus_accepts_the_metrics_of_a_server(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    port, folder = free_port(), tmp_path / "server"
    tiers = f"tiered:fast=posix://{folder}/fast,slow=posix://{folder}/chunks,size=1GiB"
    with running_server(folder, ["--metrics", f"127.0.0.1:{port}", "--store", tiers]) as server:
        with Dataset(server.settings(), "few", must_exist=False) as data:
            store(data, tmp_path / "files")
            assert all(data.get_many(data.files()))
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read()
    for name in (b"store_answered_seconds_bucket", b"rpc_answered_seconds_bucket", b"tier_hits_total"):
        assert b"\ndieselfs_" + name in text
    check_metrics(text)


@needs_fuse
def test_top_and_why_name_the_mount(dlcmd: Dlcmd, place: Path) -> None:
    read_in_order(place)
    *seen, _ = map(json.loads, dlcmd("top", "--once", "--interval", "0.1s", "--json").stdout.splitlines())
    assert [each["about"]["mountpoint"] for each in seen if "mountpoint" in each["about"]] == [str(place)]
    record, summary = map(json.loads, dlcmd("why", place, "--since-start", "--json").stdout.splitlines())
    assert record["limit"] == summary["limit"] and record["activity"]["plans"][0]["positions"] == FILES
    assert dlcmd("why", place, "--for", "0.1s").stdout.startswith(b"No read reaches the daemon")


@needs_fuse
def test_the_live_view_shows_a_mount_and_restores_the_terminal(dlcmd: Dlcmd, place: Path) -> None:
    # Paths of tests are long, and would be wrapped. Mounts of other tests are shown too: for root, all are. The
    # variables count more than the terminal, and processes of pytest-xdist have them.
    rows_and_columns = 400, 400
    size = dict(zip(("LINES", "COLUMNS"), map(str, rows_and_columns), strict=True))
    ours, theirs = pty.openpty()
    with open(ours, "r+b", buffering=0) as screen, open(theirs, "r+b", buffering=0) as terminal:
        termios.tcsetwinsize(theirs, rows_and_columns)
        before = termios.tcgetattr(theirs)
        process = dlcmd.start(
            *("top", "--interval", "0.1s"),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**dlcmd.environment(), "TERM": "xterm-256color", **size},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        try:
            shown = until(screen, os.fsencode(place))
            screen.write(b"\x03")
            shown += until(screen, LEFT_SCREEN)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
            process.wait()
        assert shown.startswith(ENTERED_SCREEN) and b"Traceback" not in shown
        assert shown.rfind(HIDDEN_CURSOR) < shown.rfind(SHOWN_CURSOR)
        assert termios.tcgetattr(theirs) == before


def until(screen: FileIO, end: bytes) -> bytes:
    """What a program writes to a terminal, up to `end`."""
    shown, waiting, end_s = b"", poll(), time.monotonic() + TIMEOUT_S
    waiting.register(screen, POLLIN)
    while end not in shown:
        assert time.monotonic() < end_s, shown[-1000:]
        assert waiting.poll(TIMEOUT_S * 1000), shown
        shown += screen.read(4096)
    return shown


@needs_fuse
def test_an_epoch_on_one_page(dlcmd: Dlcmd, place: Path) -> None:
    read_in_order(place)
    page = dlcmd.folder / "report.html"
    ran = dlcmd("report", place, "-o", page, "--json")
    (epoch,) = ran.objects
    assert epoch["plan"]["positions"] == FILES and 0 < epoch["quality"]["entropy_ratio"] <= 1
    assert 0 < epoch["totals"]["files"] <= FILES and epoch["totals"]["fetched_bytes"]["server"] > 0
    assert epoch["totals"]["failed"] == 0 and [each["world"] for each in epoch["ranks"]] == [1]
    assert f"{place}: epoch 0, seed 1" in page.read_text()
    assert (
        "known epochs: 0"
        in dlcmd("report", place, "-o", page, "--epoch", "9", exit_code=EXIT_NOT_FOUND).stderr
    )


@needs_fuse
def test_the_nodes_of_a_job_are_seen_from_one_of_them(
    server: RunningServer, dlcmd: Dlcmd, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    with job_mounts(server, "counted", folder, ["a", "b"]) as places:
        for rank, place in enumerate(places):
            names = (place / f".dieselfs/shuffle/seed=1,epoch=0,rank={rank},world=2").read_text().splitlines()
            assert all((place / name).read_bytes() for name in names)
        other = supervision_of(str(places[1]))
        assert other is not None
        (tmp_path / "dieselfs/metrics" / f"{other.daemon}.sock").unlink()  # as on another machine
        alone = dlcmd("top", "--once", "--interval", "0.1s", "--json").objects
        assert {each["about"].get("node") for each in alone} == {"a"}
        seen = dlcmd("top", "--once", "--nodes", "--interval", "0.1s", "--json").objects
        nodes = {each["about"]["node"]: each for each in seen if "node" in each["about"]}
        assert nodes.keys() == {"a", "b"} and nodes["b"]["about"]["mountpoint"] == str(places[1])
        assert nodes["b"]["activity"]["plans"][0]["positions"] == FILES
        (epoch,) = dlcmd("report", JOB, "--json", "-o", "job.html").objects
        assert {each["node"] for each in epoch["daemons"]} == {f"a: {places[0]}", f"b: {places[1]}"}
        assert {each["rank"] for each in epoch["ranks"]} == {0, 1}


@contextmanager
def cache_daemon(dlcmd: Dlcmd) -> Iterator[None]:
    dlcmd("cache", "counted", "--memory", "128MiB")
    try:
        yield
    finally:
        dlcmd("cache", "--stop", "counted")


def test_a_cache_daemon_is_seen(dlcmd: Dlcmd, server: RunningServer) -> None:
    with cache_daemon(dlcmd):
        with Dataset(server.settings(), "counted") as data:
            assert all(data.get_many(data.files()))
        seen = [json.loads(line) for line in dlcmd("metrics", "--json").stdout.splitlines()]
        (cache,) = (each for each in seen if each.get("about", {}).get("component") == "cache")
        assert cache["about"]["dataset"] == "counted"
        values = {family["name"]: family["samples"] for family in cache["families"]}
        assert "dieselfs_node_cache_hits_total" in values
        assert values["dieselfs_memory_granted_bytes"] == [[[], 128 * MIB]]
        used = {labels[0]: value for labels, value in values["dieselfs_memory_used_bytes"]}
        ((_, fetched_bytes),) = values["dieselfs_node_cache_fetched_bytes_total"]
        assert used["pinned"] + used["evictable"] == fetched_bytes > 0
        ((_, process_bytes),) = values["dieselfs_memory_process_bytes"]
        ((_, age_s),) = values["dieselfs_snapshot_age_seconds"]
        assert process_bytes > MIB and 0 <= age_s < 3600
        assert {"dieselfs_servers_failures", "dieselfs_servers_retries_total"} <= values.keys()
        shown = dlcmd("top", "--once", "--interval", "0.1s").stdout.decode()
        assert "dl://counted (cache)" in shown and "of 128 MiB" in shown
        assert "reads/s" not in shown and "waiting" not in shown  # a cache daemon has none


def test_a_server_serves_its_metrics_at_an_address(tmp_path: Path) -> None:
    words = ["--init", "--store", "memory:", "--metadata", "memory:", "--state", str(tmp_path / "state")]
    words += ["--listen", f"unix:{tmp_path}/server.sock", "--metrics", "127.0.0.1:0"]
    program = [sys.executable, "-m", "dieselfs_server.main", *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            url = next(found[0] for line in lines if (found := re.search(r"http://\S+/metrics", line)))
            with urlopen(url, timeout=30) as answer:
                assert b'dieselfs_rpc_connections{component="server"} 0.0' in answer.read()
        finally:
            process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0
