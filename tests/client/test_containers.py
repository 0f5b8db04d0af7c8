"""A mount that is bound into a container: it outlives a daemon and the mount on the host, and leaves nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.settings import FUSE
from dieselfs_client import control
from dieselfs_client.mount.mount_table import MOUNTINFO, mount_at, parse_mountinfo
from dieselfs_client.mount.options import MountOptions
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

START = """
set -e
mount --bind / {root}
mount --rbind {mountpoint} {root}/mnt
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
    with open(path, "rb") as file:
        print(file.read().hex(), flush=True)
"""


class Container:
    """A process with a table of mounts of its own, which reads files for us."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._unread = iter(sorted(FILES))
        assert self._answer() == "begun"

    def read(self, path: str) -> bytes:
        assert self._process.stdin is not None
        self._process.stdin.write(f"/mnt/{path}\n")
        self._process.stdin.flush()
        return bytes.fromhex(self._answer())

    def reads_a_new_file(self) -> bool:
        """Whether it reads a file right that was not read before."""
        path = next(self._unread)
        return self.read(path) == FILES[path]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def container(mountpoint: Path, folder: Path) -> Iterator[Container]:
    root = folder / "root"
    root.mkdir()
    script = START.format(root=root, mountpoint=mountpoint, python=sys.executable, program=PROGRAM)
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Container(process)
        finally:
            process.kill()


def kill_daemon(mountpoint: Path) -> None:
    """As soon as there is another one that can take over."""
    wait_for(mountpoint, lambda status: status.is_served)
    [daemon] = processes_of(mountpoint)["daemon"]
    os.kill(daemon, signal.SIGKILL)


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
