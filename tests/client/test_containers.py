"""A mount that is bound into a container: it outlives a daemon and the mount on the host, and leaves nothing behind."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.errors import NotFound
from dieselfs.settings.table import FUSE
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.layers import remove_bases
from dieselfs_client.mount.points.mount_table import MOUNTINFO, is_stale, mount_at, parse_mountinfo
from dieselfs_client.mount.points.options import MountOptions
from lab.mount_processes import processes_of
from tests.client.conftest import FILES, needs_root
from tests.support.supervised import wait_for, wait_until_ended


def is_on_root(path: str) -> bool:
    return os.stat(path).st_dev == os.stat("/").st_dev


pytestmark = [
    needs_root,
    pytest.mark.skipif(shutil.which("pivot_root") is None, reason="needs pivot_root of util-linux"),
    pytest.mark.skipif(
        not is_on_root(os.path.realpath(sys.executable)),
        reason="the container shows the root file system alone",
    ),
]

KILL_TIMEOUT_S = 60.0
LOST = (errno.EIO, errno.ENOTCONN, errno.ECONNABORTED)

START = """
set -e
mount --bind / {root}
mount --rbind {folder} {root}/mnt
cd {root}
pivot_root . media
exec {python} -S -I -c '{program}'
"""
"""As a container engine does it: nothing of the host is left but this bind mount, on /mnt."""

PROGRAM = """
import ctypes
assert ctypes.CDLL(None).umount2(b"/media", 2) == 0  # MNT_DETACH; umount(8) needs /proc
print("begun", flush=True)
while True:
    try:
        path = input()
    except EOFError:
        break
    try:
        with open(path, "rb") as file:
            content = file.read()
        answer = content.hex()
    except OSError as error:
        answer = f"errno {error.errno}"
    print(answer, flush=True)
"""
"""One answer for each path, also if only the close fails: that may ask the daemon, too."""


class Container:
    """A process with a table of mounts of its own, which reads files of `place` for us."""

    def __init__(self, process: "subprocess.Popen[str]", place: str) -> None:
        self._process = process
        self._place = place
        self._unread = iter(sorted(FILES))
        assert self._answer() == "begun"

    def read(self, path: str) -> bytes:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self._place}/{path}\n")
        self._process.stdin.flush()
        answer = self._answer()
        if answer.startswith("errno "):
            raise OSError(int(answer.removeprefix("errno ")), path)
        return bytes.fromhex(answer)

    def reads_a_new_file(self) -> bool:
        """Whether it reads a file right that was not read before."""
        path = next(self._unread)
        return self.read(path) == FILES[path]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def container(
    folder: Path, scratch: Path, *, place: str = "/mnt", propagation: str = "private"
) -> Iterator[Container]:
    """One with `folder` on /mnt. `propagation`: slave for one that sees later mounts of the host below."""
    root = scratch / "root"
    root.mkdir()
    script = START.format(root=root, folder=folder, python=sys.executable, program=PROGRAM)
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", propagation, "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Container(process, place)
        finally:
            process.kill()


def kill_daemon(mountpoint: Path) -> None:
    """As soon as there is another one that can take over."""
    wait_for(mountpoint, lambda status: status.is_served)
    [daemon] = processes_of(mountpoint)["daemon"]
    os.kill(daemon, signal.SIGKILL)


def named(mountpoint: Path) -> list[int]:
    """All processes that have the mount point as a word of their command, also those that are just starting."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.fsencode(mountpoint) in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0"):
                found.append(int(process))
    return found


def kill_all(mountpoint: Path) -> None:
    """Every process of the mount, as when a container is killed; also those that take over meanwhile."""
    wait_for(mountpoint, lambda status: status.is_served)
    deadline_s = time.monotonic() + KILL_TIMEOUT_S
    # A process that has just called exec has no command line yet, but it holds the connection.
    while (living := named(mountpoint)) or not is_stale(str(mountpoint)):
        assert time.monotonic() < deadline_s, living
        for process in living:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in living:
            wait_until_ended(process)


def base_of(mountpoint: Path) -> Path | None:
    """The private FUSE mount, if the view has one."""
    tree = mount_at(str(mountpoint / ".dieselfs"))
    if tree is None:
        return None
    records = parse_mountinfo(MOUNTINFO.read_bytes())
    [base] = [
        Path(one.mountpoint)
        for one in records
        if one.device == tree.device and one.mountpoint != tree.mountpoint
    ]
    return base


def test_a_bind_mount_outlives_daemons_and_the_mount(
    options: MountOptions, mountpoint: Path, tmp_path: Path, view: str
) -> None:
    control.mount("letters", mountpoint, replace(options, view=view))
    supervisor = wait_for(mountpoint, lambda status: status.is_served).supervisor
    record = mount_at(str(mountpoint))
    assert record is not None
    base = base_of(mountpoint)
    assert (base is None) == (view == FUSE)
    with container(mountpoint, tmp_path) as inside:
        assert inside.reads_a_new_file()
        kill_daemon(mountpoint)
        assert inside.reads_a_new_file()
        assert json.loads(inside.read(".dieselfs/info"))["dataset"] == "letters"

        subprocess.run(["umount", "-l", str(mountpoint)], check=True)
        assert mount_at(str(mountpoint)) is None
        assert inside.reads_a_new_file()

        control.mount("letters", mountpoint, replace(options, view=view))
        again = mount_at(str(mountpoint))
        assert again is not None and again.device != record.device
        assert inside.reads_a_new_file()
        control.unmount(mountpoint)
        assert inside.reads_a_new_file()
        assert inside.read(".dieselfs/info")
    wait_until_ended(supervisor)
    assert base is None or not base.exists()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder whose mounts others see, as the one in which a pod of Kubernetes mounts for its node."""
    folder = tmp_path / "mounts"
    folder.mkdir()
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "--make-shared", folder], check=True)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", "--recursive", folder], check=True)
        remove_bases()  # of a mount whose processes were killed


def errors_of(inside: Container, path: str, until: "Future[int]") -> list[int]:
    """The errors with which it failed to read a file, again and again."""
    found = []
    while not until.done():
        try:
            inside.read(path)
        except OSError as error:
            assert error.errno is not None
            found.append(error.errno)
    return found


def test_a_pod_sees_errors_until_a_killed_mount_is_mounted_again_never_an_empty_folder(
    options: MountOptions, shared: Path, tmp_path: Path, view: str
) -> None:
    """As when the container of a node is killed and started again."""
    mountpoint = shared / "letters"
    mountpoint.mkdir()
    path = max(FILES)
    with container(shared, tmp_path, place="/mnt/letters", propagation="slave") as inside:
        control.mount("letters", mountpoint, replace(options, view=view))
        assert inside.reads_a_new_file()

        kill_all(mountpoint)
        with pytest.raises(OSError) as failed:
            inside.read(".dieselfs/info")
        assert failed.value.errno in LOST
        try:
            assert inside.reads_a_new_file()  # from the page cache, in the views that have it in the kernel
        except OSError as error:
            assert error.errno in LOST

        with pytest.raises(NotFound):
            control.mount("numbers", mountpoint, replace(options, view=view))
        with pytest.raises(OSError) as failed:
            inside.read(".dieselfs/info")
        assert failed.value.errno in LOST

        with ThreadPoolExecutor(1) as threads:
            mounting = threads.submit(control.mount, "letters", mountpoint, replace(options, view=view))
            assert set(errors_of(inside, path, mounting)) <= set(LOST)
            mounting.result()
        assert inside.reads_a_new_file()
        assert json.loads(inside.read(".dieselfs/info"))["dataset"] == "letters"
        control.unmount(mountpoint)
        assert mount_at(str(mountpoint)) is None
        with pytest.raises(FileNotFoundError):
            inside.read(path)
