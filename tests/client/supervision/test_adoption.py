"""Supervisors that are killed or hang: the daemon starts another one, and readers notice nothing."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.errors import MountError
from dieselfs.settings.table import FUSE, IMAGE, OVERLAY
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.status import SupervisorStatus, supervision_of
from lab.mount_processes import LASTING, kill_any, processes_of
from tests.client.test_image_view import forget, image_of
from tests.support import verifying_reader
from tests.support.supervised import (
    is_dead,
    log_of,
    readers,
    state,
    supervisor_and_zygote_run,
    wait_for,
    wait_until_ended,
)

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

STORM_S = {FUSE: 5.0, OVERLAY: 3.0, IMAGE: 5.0}
STORM_PAUSE_S = 0.1


def is_served_by_others(*supervisors: int) -> Callable[[SupervisorStatus], bool]:
    return lambda now: now.is_served and now.daemon != 0 and now.supervisor not in supervisors


def is_restarted_since(before: SupervisorStatus) -> Callable[[SupervisorStatus], bool]:
    return lambda now: now.is_served and now.restarts > before.restarts


def keeper_of(mountpoint: Path) -> int:
    """It is forked once the mount is ready."""
    deadline_s = time.monotonic() + 60
    while not (found := processes_of(mountpoint)["keeper"]):
        assert time.monotonic() < deadline_s
    return found[0]


def kill_with_keeper(mountpoint: Path, supervisor: int) -> None:
    """Neither replaces the other."""
    keeper_of(mountpoint)
    os.kill(supervisor, signal.SIGSTOP)
    for process in (*processes_of(mountpoint)["keeper"], supervisor):
        os.kill(process, signal.SIGKILL)


def test_readers_do_not_notice_that_supervisors_are_killed(
    options: MountOptions, dataset: str, mountpoint: Path, tmp_path: Path
) -> None:
    control.mount(dataset, mountpoint, options)
    first = state(mountpoint)
    killed: list[int] = []
    with readers(mountpoint, tmp_path) as reading:
        for _ in range(5):
            killed.append(wait_for(mountpoint, is_served_by_others(*killed)).supervisor)
            os.kill(killed[-1], signal.SIGKILL)
        after = wait_for(mountpoint, is_served_by_others(*killed))
        reading.finish()
    assert (after.daemon, after.restarts, after.device) == (first.daemon, 0, first.device)
    assert f"supervisor {killed[-1]} is gone" in after.trouble
    [found] = [mount for mount in control.mounts() if mount.mountpoint == str(mountpoint)]
    assert (found.process, found.daemon, found.is_stale) == (after.supervisor, after.daemon, False)
    assert control.upgrade(mountpoint).daemon != after.daemon
    assert (mountpoint / "7").read_bytes() == verifying_reader.content_of("7")
    control.unmount(mountpoint)
    wait_until_ended(after.supervisor)
    assert mount_at(str(mountpoint)) is None


def test_a_supervisor_that_replaces_another_replaces_daemons(
    options: MountOptions, dataset: str, mountpoint: Path, tmp_path: Path
) -> None:
    """With the zygote of the first, and with one of its own."""
    control.mount(dataset, mountpoint, options)
    with readers(mountpoint, tmp_path) as reading:
        for number in range(4):
            before = wait_for(mountpoint, lambda now: now.is_served)
            os.kill(before.supervisor, signal.SIGKILL)
            now = wait_for(mountpoint, is_served_by_others(before.supervisor))
            if number % 2:
                for zygote in processes_of(mountpoint)["zygote"]:
                    os.kill(zygote, signal.SIGKILL)
            os.kill(now.daemon, signal.SIGKILL)
            wait_for(mountpoint, is_restarted_since(before))
        reading.finish()
    control.unmount(mountpoint)


def test_the_keeper_has_what_nobody_else_has(
    options: MountOptions, view: str, dataset: str, mountpoint: Path, tmp_path: Path
) -> None:
    """Nothing but supervisor and keeper is left, then the keeper alone, then the keeper of that."""
    control.mount(dataset, mountpoint, replace(options, view=view))
    with readers(mountpoint, tmp_path) as reading:
        for _ in range(2):
            before = wait_for(mountpoint, lambda now: now.is_served)
            keeper_of(mountpoint)
            found = processes_of(mountpoint)
            for kind in ("zygote", "standby", "daemon", "supervisor"):
                for process in found[kind]:
                    os.kill(process, signal.SIGKILL)
            wait_for(mountpoint, is_served_by_others(before.supervisor))
        reading.finish()
    control.unmount(mountpoint)


def test_a_keeper_that_hangs_or_whose_supervisor_hangs_does_not_harm(
    options: MountOptions, dataset: str, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper kills a supervisor that is stopped, while there is no daemon to do it."""
    code = """
from dieselfs_client.supervision import child, keeper
child.HANG_S, keeper.SILENT_INTERVALS_MAX = 2.5, 2
"""
    supervisor_and_zygote_run(monkeypatch, in_supervisor=code)
    control.mount(dataset, mountpoint, options)
    with readers(mountpoint, tmp_path) as reading:
        before = wait_for(mountpoint, lambda now: now.is_served)
        keeper = keeper_of(mountpoint)
        os.kill(keeper, signal.SIGSTOP)
        wait_until_ended(keeper)
        keeper_of(mountpoint)
        os.kill(before.supervisor, signal.SIGSTOP)
        os.kill(before.daemon, signal.SIGKILL)
        after = wait_for(mountpoint, is_served_by_others(before.supervisor))
        reading.finish()
    assert after.daemon != before.daemon
    control.unmount(mountpoint)


def test_a_daemon_that_is_killed_while_the_supervisor_is_replaced_is_replaced(
    options: MountOptions, dataset: str, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is essential lies in the channel before the next supervisor runs."""
    wait = f"""
import os, sys, time
if "--adopt" in sys.argv:
    open("{tmp_path}/started", "w").close()
    while not os.path.exists("{tmp_path}/go"):
        time.sleep(0.01)
"""
    supervisor_and_zygote_run(monkeypatch, in_supervisor=wait)
    control.mount(dataset, mountpoint, options)
    before = state(mountpoint)
    with readers(mountpoint, tmp_path) as reading:
        kill_with_keeper(mountpoint, before.supervisor)
        deadline_s = time.monotonic() + 60
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        os.kill(before.daemon, signal.SIGKILL)
        (tmp_path / "go").touch()
        after = wait_for(mountpoint, is_restarted_since(before))
        reading.finish()
    assert after.daemon != before.daemon and after.supervisor != before.supervisor
    control.unmount(mountpoint)


def test_a_supervisor_that_hangs_is_replaced(
    options: MountOptions, dataset: str, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from dieselfs_client.supervision import supervisor_client; supervisor_client.UNANSWERED_MAX = 3"
    supervisor_and_zygote_run(monkeypatch, in_zygote=code)
    control.mount(dataset, mountpoint, options)
    hanging = state(mountpoint).supervisor
    with readers(mountpoint, tmp_path) as reading:
        os.kill(hanging, signal.SIGSTOP)
        wait_for(mountpoint, is_served_by_others(hanging))
        reading.finish()
    wait_until_ended(hanging)
    assert f"supervisor {hanging} does not answer" in log_of(options)
    control.unmount(mountpoint)


def test_a_supervisor_that_cannot_start_is_tried_again_while_the_daemon_serves(
    options: MountOptions, dataset: str, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    code = f"import os\nif os.path.exists('{broken}'): open('{broken}', 'a').write('.'); raise SystemExit(3)"
    supervisor_and_zygote_run(monkeypatch, in_supervisor=code)
    control.mount(dataset, mountpoint, options)
    before = state(mountpoint)
    broken.touch()
    with readers(mountpoint, tmp_path) as reading:
        kill_with_keeper(mountpoint, before.supervisor)
        deadline_s = time.monotonic() + 60
        while broken.stat().st_size < 3:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        broken.unlink()
        after = wait_for(mountpoint, is_served_by_others(before.supervisor))
        reading.finish()
    assert after.daemon == before.daemon
    control.unmount(mountpoint)


def test_an_upgrade_goes_on_when_the_supervisor_is_killed_meanwhile(
    options: MountOptions, dataset: str, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zygote of the upgrade ends with the first supervisor; the second is asked again."""
    wait = f"""
import os, time
while os.path.exists("{tmp_path}/held"):
    open("{tmp_path}/started", "w").close()
    time.sleep(0.01)
"""
    supervisor_and_zygote_run(monkeypatch, in_zygote=wait)
    control.mount(dataset, mountpoint, options)
    before = state(mountpoint)
    (tmp_path / "held").touch()
    found: list[control.Mount] = []
    upgrade = threading.Thread(target=lambda: found.append(control.upgrade(mountpoint)))
    upgrade.start()
    try:
        deadline_s = time.monotonic() + 60
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        os.kill(before.supervisor, signal.SIGKILL)
    finally:
        (tmp_path / "held").unlink()
        upgrade.join(150)
    [after] = found
    assert after.daemon not in (None, before.daemon)
    assert after.upgrades == 1
    control.unmount(mountpoint)


def test_all_killed_at_once_end_the_mount_which_can_be_mounted_again(
    options: MountOptions, dataset: str, mountpoint: Path
) -> None:
    control.mount(dataset, mountpoint, options)
    before = state(mountpoint)
    os.kill(before.daemon, signal.SIGSTOP)  # so that it starts no other
    kill_with_keeper(mountpoint, before.supervisor)
    os.kill(before.daemon, signal.SIGKILL)
    assert is_dead(mountpoint)
    with pytest.raises(OSError):
        os.listdir(mountpoint)
    [found] = [mount for mount in control.mounts() if mount.mountpoint == str(mountpoint)]
    assert (found.is_stale, found.process) == (True, None)
    with pytest.raises(MountError, match="its supervisor is dead"):
        control.upgrade(mountpoint)
    control.mount(dataset, mountpoint, options)
    assert (mountpoint / "7").read_bytes() == verifying_reader.content_of("7")
    control.unmount(mountpoint)


def test_readers_notice_no_storm_of_kills(
    options: MountOptions, view: str, dataset: str, mountpoint: Path, tmp_path: Path
) -> None:
    """Each process of the mount, at random moments. The pages of an image are dropped after each kill."""
    control.mount(dataset, mountpoint, replace(options, view=view))
    image = image_of(mountpoint) if view == IMAGE else None
    choice = random.Random(7)
    kills: Counter[str] = Counter()
    with readers(mountpoint, tmp_path) as reading:
        end_s = time.monotonic() + STORM_S[view]
        while time.monotonic() < end_s or not kills.keys() >= {*LASTING}:
            assert time.monotonic() < end_s + 120, kills
            killed = kill_any(mountpoint, choice)
            kills.update([killed] if killed else [])
            if image is not None:
                forget(image)
            time.sleep(STORM_PAUSE_S)
        wait_for(mountpoint, lambda now: now.is_served)
        reading.finish()
    control.unmount(mountpoint)
    assert supervision_of(str(mountpoint)) is None
