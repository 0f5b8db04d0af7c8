"""Mounts and unmounts: by `mount(2)` as root, through `fusermount3` as another user. This module calls the kernel.

All functions block; a daemon that serves the mount calls them in a worker thread.
"""

import ctypes
import os
import shlex
import shutil
import socket
import stat
import subprocess
from pathlib import Path

from dieselfs.errors import MountDenied, MountError, MountNotFound
from dieselfs.limits import KIB, READ_BYTES_MAX, UNMOUNT_TIMEOUT_S
from dieselfs_client.mount.mount_table import FILESYSTEM_TYPE, is_stale, mount_at

DEVICE = "/dev/fuse"

_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_NOEXEC = 8
_MS_NOATIME = 1024
_FLAGS = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOATIME
_MNT_FORCE = 1
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8

_libc = ctypes.CDLL(None, use_errno=True)


def resolved_mountpoint(mountpoint: str | os.PathLike[str]) -> str:
    """The path under which the kernel lists a mount: absolute, with links resolved.

    Sends no request to the mount point itself, whose daemon may hang.
    """
    path = os.path.abspath(mountpoint)
    folder, name = os.path.split(path)
    resolved = os.path.join(os.path.realpath(folder), name)
    if mount_at(resolved) is None and os.path.islink(resolved):
        return os.path.realpath(resolved)
    return resolved


def prepare_mountpoint(mountpoint: str) -> None:
    """Check that `mountpoint` (resolved) can be mounted on; a dead mount of dieselfs is unmounted first.

    Raises MountError, with the remedy.
    """
    while (record := mount_at(mountpoint)) is not None and record.filesystem == FILESYSTEM_TYPE:
        if not is_stale(mountpoint):
            raise MountError(
                f"{mountpoint}: {record.source} is mounted there already; "
                f"to replace it, unmount it first: dlcmd umount {shlex.quote(mountpoint)}"
            )
        unmount(mountpoint, lazily=True)
    try:
        if not stat.S_ISDIR(os.stat(mountpoint).st_mode):
            raise MountError(f"{mountpoint}: not a folder; give an empty folder to mount on")
        with os.scandir(mountpoint) as entries:
            if next(entries, None) is not None:
                raise MountError(f"{mountpoint}: the folder is not empty; give an empty folder to mount on")
    except FileNotFoundError:
        raise MountNotFound(
            f"{mountpoint}: there is no such folder; make it first: mkdir -p {shlex.quote(mountpoint)}"
        ) from None
    except PermissionError as error:
        raise MountDenied(f"{mountpoint}: {error.strerror}; give an empty folder that you may read") from None
    except OSError as error:
        raise MountError(
            f"{mountpoint}: {error.strerror}; give an empty folder that you may read and write"
        ) from None


def mount_device(mountpoint: str, source: str, allow_other: bool = False, noexec: bool = False) -> int:
    """Mount, and return the descriptor of `/dev/fuse` for the requests of the kernel. Raises MountError."""
    options = ["default_permissions", f"max_read={READ_BYTES_MAX}"]
    if allow_other:
        options.append("allow_other")
    if os.geteuid() == 0:
        return _mount_as_root(mountpoint, source, options, noexec)
    return _mount_through_helper(mountpoint, source, options, noexec)


def _mount_as_root(mountpoint: str, source: str, options: list[str], noexec: bool) -> int:
    try:
        device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError as error:
        raise MountDenied(
            f"{DEVICE}: {error.strerror}; this machine or container does not allow mounts"
        ) from None
    except OSError as error:
        raise MountError(f"{DEVICE}: {error.strerror}; load the kernel module first: modprobe fuse") from None
    owner = f"user_id={os.getuid()},group_id={os.getgid()}"
    data = ",".join([f"fd={device},rootmode={stat.S_IFDIR:o}", owner, *options])
    flags = _FLAGS | (_MS_NOEXEC if noexec else 0)
    arguments = (os.fsencode(source), os.fsencode(mountpoint), FILESYSTEM_TYPE.encode(), flags)
    if _libc.mount(*arguments, data.encode()) != 0:
        code = ctypes.get_errno()
        os.close(device)
        raise MountError(f"{mountpoint}: cannot be mounted: {os.strerror(code)}")
    return device


def _mount_through_helper(mountpoint: str, source: str, options: list[str], noexec: bool) -> int:
    helper = _helper()
    flags = ["ro", "nosuid", "nodev", "noatime", *(["noexec"] if noexec else [])]
    text = ",".join([*flags, f"fsname={source}", "subtype=dieselfs", *options])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(UNMOUNT_TIMEOUT_S)
        done = subprocess.run(
            [helper, "-o", text, "--", mountpoint],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            check=False,
        )
        if done.returncode != 0:
            raise MountError(f"{mountpoint}: {_first_line(done.stderr)}")
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        raise MountError(f"{mountpoint}: {helper} did not pass the descriptor of the mount")
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def _helper() -> str:
    helper = shutil.which("fusermount3")
    if helper is None:
        raise MountError(
            "fusermount3 is not installed, and only root can mount without it: apt install fuse3"
        )
    return helper


def _first_line(output: bytes) -> str:
    return (output.decode("utf-8", "replace").strip() or "fusermount3 failed").splitlines()[0]


def raise_read_ahead(mountpoint: str) -> bool:
    """Set the kernel's read-ahead to the largest request; False if only root may do that."""
    record = mount_at(mountpoint)
    if record is None:
        return False
    try:
        Path(f"/sys/class/bdi/{record.device}/read_ahead_kb").write_text(str(READ_BYTES_MAX // KIB))
    except OSError:
        return False
    return True


def unmount(mountpoint: str, lazily: bool = False, is_cut_off: bool = False) -> None:
    """Unmount. Raises MountError, also while files on the mount are open.

    `lazily`: detach the mount at once; its daemon serves open files. `is_cut_off`: also end the connection, so that
    waiting requests fail; this has an effect for root only.
    """
    if os.geteuid() == 0:
        flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazily else 0) | (_MNT_FORCE if is_cut_off else 0)
        fault = None
        if _libc.umount2(os.fsencode(mountpoint), flags) != 0:
            fault = os.strerror(ctypes.get_errno())
    else:
        command = [_helper(), "-u", *(["-z"] if lazily else []), "--", mountpoint]
        done = subprocess.run(command, stderr=subprocess.PIPE, check=False)
        fault = _first_line(done.stderr) if done.returncode != 0 else None
    if fault is not None:
        raise MountError(f"{mountpoint}: cannot be unmounted: {fault}")
