"""`dlcmd doctor` on this machine, with a server and without."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_PARTIAL
from dieselfs_client.mount.points.mount_table import mount_at
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer, running_server


def test_checks_of_the_machine_and_of_an_embedded_home(dlcmd: Dlcmd, pets: str) -> None:
    words = ("doctor", "--json")
    *checks, summary = map(json.loads, dlcmd(*words).stdout.splitlines())
    states = {each["name"]: each["state"] for each in checks}
    assert states["server"] == states["read"] == states["home"] == "ok"
    assert summary["ok"] + summary["warnings"] == len(checks)
    assert "failures" in dlcmd("doctor").stdout.decode().splitlines()[-1]


def test_a_server_that_cannot_be_reached_is_a_failure(dlcmd: Dlcmd) -> None:
    ran = dlcmd("doctor", "--server", "tcp://127.0.0.1:1", exit_code=EXIT_PARTIAL)
    assert "cannot reach the server" in ran.stderr
    assert any(line.startswith("FAIL server") for line in ran.stdout.decode().splitlines())


def test_settings_that_cannot_be_read_are_a_failure(dlcmd: Dlcmd, server: RunningServer) -> None:
    place = dlcmd.folder / ".config/dieselfs/config.toml"
    place.parent.mkdir(parents=True)
    place.write_text("serv = 1\n")
    ran = dlcmd("doctor", exit_code=EXIT_PARTIAL)
    assert "FAIL settings" in ran.stdout.decode()


def test_a_server_is_asked_what_it_depends_on(dlcmd: Dlcmd) -> None:
    """With a store in memory: a busy disk is slow, about which `doctor` warns."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        running_server(Path(folder, "server")) as server,
    ):
        found = {each["name"]: each for each in dlcmd("doctor", "--server", server.unix, "--json").objects}
    names = ("clock", "transport", "store", "metadata", "versions")
    assert {name: found[name]["state"] for name in names} == dict.fromkeys(names, "ok")
    assert "removed a record" in found["store"]["text"]


@pytest.mark.skipif(os.getuid() != 0, reason="sets the read-ahead of a mount")
def test_a_mount_with_a_small_read_ahead(dlcmd: Dlcmd, pets: str, tmp_path: Path) -> None:
    place = tmp_path / "mounted"
    place.mkdir()
    dlcmd("mount", "--view", "fuse", f"dl://{pets}", str(place))
    try:
        (good,) = (each for each in dlcmd("doctor", "--json").objects if each.get("name") == "read-ahead")
        record = mount_at(str(place))
        assert record is not None and str(place) not in good["text"]
        Path(f"/sys/class/bdi/{record.device}/read_ahead_kb").write_text("128")
        (small,) = (each for each in dlcmd("doctor", "--json").objects if each.get("name") == "read-ahead")
        assert small["state"] == "warning" and str(place) in small["text"]
        assert small["fix"] == f"as root: echo 1024 > /sys/class/bdi/{record.device}/read_ahead_kb"
    finally:
        dlcmd("umount", str(place))
