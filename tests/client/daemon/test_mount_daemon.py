import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from dieselfs.errors import MountError
from dieselfs.settings.table import FUSE
from dieselfs_client.daemon import mount_daemon
from dieselfs_client.mount.points.layers import Layers, MountView, cover
from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.mounting import unmount
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.supervisor_client import Command, SupervisorClient
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.mounted import mounted, serve_what_is_open
from tests.support.users import NOBODY, as_nobody

FOR_AN_HOUR = partial(serve_what_is_open, 3600.0)

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    return pack_entries(
        [
            TreeEntry(b"open", 0o100644, 0, b"for all"),
            TreeEntry(b"closed", 0o100600, 0, b"for the owner"),
            TreeEntry(b"program", 0o100755, 0, b"#!/bin/sh\nexit 7\n"),
        ]
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts(packed: PackedDataset, tmp_path: Path, signum: signal.Signals) -> None:
    with mounted(packed, tmp_path) as running:
        running.send(signum)
        assert running.wait() == 0
        assert mount_at(str(running.path)) is None
        assert "is unmounted" in running.log()


def test_files_that_are_open_are_served_a_while_after_a_signal(packed: PackedDataset, tmp_path: Path) -> None:
    with mounted(packed, tmp_path, sabotage=FOR_AN_HOUR) as running:
        with open(running.path / "open", "rb") as file:
            running.send(signal.SIGTERM)
            while mount_at(str(running.path)) is not None:
                time.sleep(0.01)
            assert file.read() == b"for all"
        assert running.wait() == 0


def test_files_that_stay_open_do_not_keep_it(packed: PackedDataset, tmp_path: Path) -> None:
    with mounted(packed, tmp_path, sabotage=partial(serve_what_is_open, 0.1)) as running:
        descriptor = os.open(running.path / "open", os.O_RDONLY)
        running.send(signal.SIGTERM)
        assert running.wait() == 0
        with suppress(OSError):  # there is nobody left to hear of it
            os.close(descriptor)


def test_a_second_signal_ends_it_at_once(packed: PackedDataset, tmp_path: Path) -> None:
    with mounted(packed, tmp_path, sabotage=FOR_AN_HOUR) as running:
        descriptor = os.open(running.path / "open", os.O_RDONLY)
        running.send(signal.SIGTERM)
        while mount_at(str(running.path)) is not None:
            time.sleep(0.01)
        running.send(signal.SIGTERM)
        assert running.wait() == 0
        with suppress(OSError):  # there is nobody left to hear of it
            os.close(descriptor)


def stop_while_layers_are_mounted() -> None:
    """For `sabotage`: the order to stop is obeyed before what users see is mounted."""
    obeyed = threading.Event()
    orders = SupervisorClient.orders

    async def watched(self: SupervisorClient) -> AsyncGenerator[Command, None]:
        async for order in orders(self):
            yield order
            obeyed.set()

    def late(layers: Layers, mount_view: MountView, dataset: str, noexec: bool = False) -> Layers:
        os.kill(os.getpid(), signal.SIGTERM)
        obeyed.wait()
        return cover(layers, mount_view, dataset, noexec)

    SupervisorClient.orders = watched  # type: ignore[method-assign]  # the child runs this version
    vars(mount_daemon)["cover"] = late


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_signal_before_all_layers_are_mounted_leaves_nothing(packed: PackedDataset, tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="did not start"),
        mounted(packed, tmp_path, sabotage=stop_while_layers_are_mounted),
    ):
        pass
    assert mount_at(str(tmp_path / "mount")) is None
    assert "is unmounted" in (tmp_path / "mount.log").read_text()


def test_it_ends_when_somebody_else_unmounts(packed: PackedDataset, tmp_path: Path) -> None:
    with mounted(packed, tmp_path, options=MountOptions(view=FUSE)) as running:
        subprocess.run(["umount", str(running.path)], check=True)
        assert running.wait() == 0


def test_it_ends_when_the_last_file_is_closed_after_a_lazy_unmount(
    packed: PackedDataset, tmp_path: Path
) -> None:
    with mounted(packed, tmp_path) as running:
        with open(running.path / "open", "rb") as file:
            unmount(str(running.path), lazily=True)
            assert file.read() == b"for all"
            assert running.process.is_alive()
        assert running.wait() == 0


def test_read_ahead_is_raised(packed: PackedDataset, tmp_path: Path) -> None:
    with mounted(packed, tmp_path, options=MountOptions(view=FUSE)) as running:
        record = mount_at(str(running.path))
        assert record is not None
        assert Path(f"/sys/class/bdi/{record.device}/read_ahead_kb").read_text() == "1024\n"


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_mount_is_private_unless_others_are_allowed(packed: PackedDataset, open_path: Path) -> None:
    with mounted(packed, open_path) as running:
        done = as_nobody("cat", str(running.path / "open"))
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"Permission denied" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_modes_hold_for_others_who_are_allowed(packed: PackedDataset, open_path: Path) -> None:
    with mounted(packed, open_path, options=MountOptions(allow_other=True)) as running:
        assert as_nobody("cat", str(running.path / "open")).stdout == b"for all"
        closed = as_nobody("cat", str(running.path / "closed"))
        assert (closed.returncode, closed.stdout) == (1, b"")
        assert b"Permission denied" in closed.stderr
        assert (running.path / "closed").read_bytes() == b"for the owner"


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("is_allowed", [False, True])
def test_others_declare_plans_only_if_that_is_allowed(
    packed: PackedDataset, open_path: Path, is_allowed: bool
) -> None:
    """A plan decides what the daemon fetches and keeps."""
    options = MountOptions(allow_other=True, allow_plans=is_allowed)
    with mounted(packed, open_path, options=options) as running:
        folder = running.path / ".dieselfs"
        for name in ("shuffle/seed=1,epoch=0", "warm"):
            assert as_nobody("cat", str(folder / name)).returncode == (0 if is_allowed else 1), name
            assert (folder / name).read_bytes()
        assert as_nobody("cat", str(folder / "stats")).returncode == 0


@pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")
def test_files_can_be_given_to_a_user(packed: PackedDataset, open_path: Path) -> None:
    options = MountOptions(allow_other=True, uid=NOBODY, gid=NOBODY)
    with mounted(packed, open_path, options=options) as running:
        status = (running.path / "closed").stat()
        assert (status.st_uid, status.st_gid) == (NOBODY, NOBODY)
        assert os.listdir(running.path) == ["closed", "open", "program"]
        assert {entry.stat().st_uid for entry in os.scandir(running.path)} == {NOBODY}
        assert as_nobody("cat", str(running.path / "closed")).stdout == b"for the owner"


def test_programs_can_be_run_unless_forbidden(packed: PackedDataset, tmp_path: Path) -> None:
    with mounted(packed, tmp_path) as running:
        assert subprocess.run([running.path / "program"], check=False).returncode == 7
    with (
        mounted(packed, tmp_path, options=MountOptions(noexec=True)) as running,
        pytest.raises(PermissionError),
    ):
        subprocess.run([running.path / "program"], check=False)


def test_the_log_is_for_this_user_only(packed: PackedDataset, tmp_path: Path) -> None:
    with mounted(packed, tmp_path) as running:
        assert stat.S_IMODE(running.log_file.stat().st_mode) == 0o600


def test_a_kernel_that_is_too_old(packed: PackedDataset, tmp_path: Path) -> None:
    """The reason reaches whoever mounts, and nothing stays mounted."""
    code = f"""
import sys, trio
sys.path[:0] = {sys.path!r}
from dieselfs.errors import MountError
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.daemon.mount_daemon import serve_mount
from dieselfs_client.mount.kernel import protocol
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.control_channel import ControlChannel
from dieselfs_client.supervision.supervisor_client import SupervisorClient
protocol.MINOR_MIN = 1000
ours, theirs = ControlChannel.pair()
ours.send("go")
client = SupervisorClient(ControlChannel(theirs))
snapshot = Snapshot(open(sys.argv[1], "rb").read(), "snapshot")
try:
    trio.run(serve_mount, snapshot, None, sys.argv[2], MountOptions(), None, client)
except MountError as error:
    print(error)
"""
    (tmp_path / "snapshot").write_bytes(packed.snapshot.content)
    (tmp_path / "mount").mkdir()
    command = [sys.executable, "-c", code, str(tmp_path / "snapshot"), str(tmp_path / "mount")]
    done = subprocess.run(command, capture_output=True, check=True)
    assert b"the kernel has FUSE 7." in done.stdout
    assert mount_at(str(tmp_path / "mount")) is None


def test_a_bad_mount_point_is_an_error_before_anything_is_mounted(
    packed: PackedDataset, tmp_path: Path
) -> None:
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount/file").write_bytes(b"")
    with pytest.raises(AssertionError, match="not empty"), mounted(packed, tmp_path):
        pass
    assert issubclass(MountError, Exception)
