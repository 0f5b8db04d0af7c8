"""`dlcmd top` with the embedded server of one home, and its marks."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_USAGE
from dieselfs_client.daemon import control
from dieselfs_tools.commands.watch import _shown, _unmounted
from dieselfs_tools.observe.watching import Seen
from tests.dieselfs.telemetry.test_diagnosis import SERVER, SLOW
from tests.support.dlcmd import COMMAND, TIMEOUT_S, Dlcmd, wait_until


def test_one_view_for_people_and_for_programs(dlcmd: Dlcmd, pets: str) -> None:
    dlcmd("ls", f"dl://{pets}")
    assert "calls/s" in dlcmd("top", "--once", "--interval", "0.1s").stdout.decode()
    *seen, summary = map(
        json.loads, dlcmd("top", "--once", "--interval", "0.1s", "--json").stdout.splitlines()
    )
    assert summary["processes"] == len(seen) > 0
    assert any(each["about"] == {"component": "server"} and each["activity"]["seconds"] > 0 for each in seen)


def test_an_interval_of_nothing_is_refused(dlcmd: Dlcmd) -> None:
    dlcmd("top", "--once", "--interval", "0s", exit_code=EXIT_USAGE)


def test_of_several_nodes_only_a_daemon_of_this_machine_can_be_the_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Daemons of a job have their node in `about`; reports of other nodes have the process here that asked them."""
    earlier, later = os.getppid(), os.getpid()
    here, there = {"mountpoint": "/mnt/x", "node": "a"}, {"mountpoint": "/mnt/x", "node": "b"}
    seen: Seen = [
        replace(SLOW, process=earlier, about=here),
        replace(SLOW, process=later, about=here),
        replace(SERVER, process=1),
        replace(SLOW, process=earlier, about=there),
        replace(SLOW, process=later, about=there),
    ]
    monkeypatch.setattr(control, "daemon_at", lambda place: {"/mnt/x": later}[place])
    assert _unmounted(seen) == [True, False, False, False, False]
    assert [each.about.get("mountpoint", "") for each in _shown(seen)[:2]] == ["/mnt/x (unmounted)", "/mnt/x"]
    monkeypatch.setattr(control, "daemon_at", lambda place: None)
    assert not any(_unmounted(seen)), "which one is the earlier is not known"


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse")
def test_the_mount_of_another_namespace_is_not_an_earlier_one(
    dlcmd: Dlcmd, pets: str, tmp_path: Path
) -> None:
    place, ready = tmp_path / "data", tmp_path / "ready"
    place.mkdir()
    command = [*COMMAND, "run", "--at", str(place), pets, "--", "sh", "-c", f"touch '{ready}'; read line"]
    with subprocess.Popen(
        command, cwd=dlcmd.folder, env=dlcmd.environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as private:
        try:
            wait_until(ready.exists)
            dlcmd("mount", f"dl://{pets}", str(place))
            try:
                shown = dlcmd("top", "--once", "--json", "--interval", "0.1s").objects
                marks = [one["is_unmounted"] for one in shown if one["about"].get("mountpoint") == str(place)]
                assert marks == [False, False]
            finally:
                dlcmd("umount", str(place))
        finally:
            private.communicate(b"\n", timeout=TIMEOUT_S)
