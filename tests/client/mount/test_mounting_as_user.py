"""Mounting without being root: through fusermount3. The process that serves gives its rights up before it mounts."""

import fcntl
import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.mounting import DEVICE
from dieselfs_client.mount.points.options import MountOptions
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.mounted import mounted
from tests.support.users import NOBODY, as_nobody, become_nobody

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user"),
    pytest.mark.skipif(not os.path.exists(DEVICE), reason=f"needs {DEVICE}"),
    pytest.mark.skipif(not os.path.exists("/usr/bin/fusermount3"), reason="needs fusermount3"),
]


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    return pack_entries([TreeEntry(b"file", 0o100644, 0, b"content")], name="pets")


@pytest.fixture(autouse=True)
def device_for_all() -> Iterator[None]:
    """`/dev/fuse` as udev sets it up everywhere; a machine without udev has it for root only.

    One run of these tests at a time, or one would take away what another has just allowed.
    """
    lock = os.open(os.path.dirname(DEVICE), os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mode = stat.S_IMODE(os.stat(DEVICE).st_mode)
        os.chmod(DEVICE, 0o666)
        yield
        os.chmod(DEVICE, mode)
    finally:
        os.close(lock)


@pytest.fixture
def folder(open_path: Path) -> Path:
    """A folder of nobody's."""
    own = open_path / "own"
    (own / "mount").mkdir(parents=True)
    os.chown(own, NOBODY, NOBODY)
    os.chown(own / "mount", NOBODY, NOBODY)
    return own


def test_the_user_reads_and_nobody_else(packed: PackedDataset, folder: Path) -> None:
    with mounted(packed, folder, sabotage=become_nobody) as running:
        assert as_nobody("cat", str(running.path / "file")).stdout == b"content"
        status = as_nobody("stat", "-c", "%u %g %a", str(running.path / "file")).stdout.split()
        assert status == [b"65534", b"65534", b"644"]
        with pytest.raises(PermissionError):
            (running.path / "file").read_bytes()
        record = mount_at(str(running.path))
        assert record is not None
        assert (record.source, record.filesystem) == ("dl://pets", "fuse.dieselfs")
        assert {"ro", "nosuid", "nodev", "noatime", "default_permissions"} <= set(record.options)


def test_the_user_writes_losses_and_changes_nothing_else(packed: PackedDataset, folder: Path) -> None:
    """With the option `scores`. A file that could be mapped to write would change in the page cache."""
    with mounted(packed, folder, options=MountOptions(scores=True), sabotage=become_nobody) as running:
        file, control = running.path / "file", running.path / ".dieselfs"
        assert as_nobody("sh", "-c", f"printf '2.5 file\\n\\n' > {control}/scores").returncode == 0
        stats = json.loads(as_nobody("cat", str(control / "stats")).stdout)
        assert stats["importance"].items() >= {"batches": 1, "scored_files": 1}.items()
        malformed = as_nobody("sh", "-c", f"echo nonsense > {control}/scores")
        assert malformed.returncode != 0 and b"I/O error" in malformed.stderr
        assert b"'nonsense' is not LOSS PATH" in as_nobody("cat", str(control / "errors")).stdout
        assert as_nobody("stat", "-c", "%a", str(file)).stdout == b"444\n"
        assert b"-r--r--r--" in as_nobody("ls", "-l", str(running.path)).stdout
        assert b"Permission denied" in as_nobody("sh", "-c", f"echo x >> {file}").stderr
        assert b"Read-only file system" in as_nobody("rm", "-f", str(file)).stderr
        assert b"Read-only file system" in as_nobody("touch", f"{running.path}/new").stderr
        assert as_nobody("cat", str(file)).stdout == b"content"


def test_a_signal_unmounts(packed: PackedDataset, folder: Path) -> None:
    with mounted(packed, folder, sabotage=become_nobody) as running:
        running.send(signal.SIGTERM)
        assert running.wait() == 0
        assert mount_at(str(running.path)) is None


def test_the_user_unmounts(packed: PackedDataset, folder: Path) -> None:
    with mounted(packed, folder, sabotage=become_nobody) as running:
        assert as_nobody("fusermount3", "-u", str(running.path)).returncode == 0
        assert running.wait() == 0


def test_a_dead_mount_is_replaced(packed: PackedDataset, folder: Path) -> None:
    with mounted(packed, folder, sabotage=become_nobody) as killed:
        killed.send(signal.SIGKILL)
        killed.wait()
        with mounted(packed, folder, sabotage=become_nobody) as running:
            assert as_nobody("cat", str(running.path / "file")).stdout == b"content"


def test_a_refusal_is_told_in_the_helpers_words(packed: PackedDataset, folder: Path) -> None:
    os.chown(folder / "mount", 0, 0)
    with (
        pytest.raises(AssertionError, match=r"MountError: .*fusermount3: user has no write access"),
        mounted(packed, folder, sabotage=become_nobody),
    ):
        pass


def test_a_device_that_others_may_not_open_is_a_refusal(packed: PackedDataset, folder: Path) -> None:
    os.chmod(DEVICE, 0o600)
    with (
        pytest.raises(AssertionError, match=r"MountDenied: .*does not allow mounts; 'dlcmd doctor'"),
        mounted(packed, folder, sabotage=become_nobody),
    ):
        pass


def test_large_files_are_read_all_the_same(folder: Path) -> None:
    data = os.urandom(3 << 20)
    packed = pack_entries([TreeEntry(b"big", 0o100644, 0, data)])
    with mounted(packed, folder, options=MountOptions(timeout_s=20), sabotage=become_nobody) as running:
        assert as_nobody("cat", str(running.path / "big")).stdout == data
        assert "128 KiB" in running.log()
