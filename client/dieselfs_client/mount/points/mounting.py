"""Mounts and unmounts: by mount(2) as root, through `fusermount3` as another user. This module calls the kernel.

All functions block; a daemon that serves the mount calls them in a worker thread.

A folder above a mount point may belong to another user, who can exchange it for another one or for a symbolic link
while root mounts or unmounts. So each path is opened once, folder by folder, without links, and the kernel gets the
open folder. A folder that is mounted on cannot be renamed.
"""

import ctypes
import errno
import logging
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dieselfs.errors import MountDenied, MountError, MountNotFound
from dieselfs.limits import KIB, READ_BYTES_MAX, UNMOUNT_TIMEOUT_S
from dieselfs.names import CONTROL_FOLDER
from dieselfs.settings.table import FUSE, IMAGE
from dieselfs_client.mount.points.mount_table import (
    MOUNTINFO,
    dieselfs_mounts,
    is_on_another,
    is_stale,
    mount_at,
    parse_mountinfo,
)
from dieselfs_client.mount.points.view_choice import VIEWS, Facts

DEVICE = "/dev/fuse"
_DENIED = "this machine or container does not allow mounts; 'dlcmd doctor' says what to change"
IMAGE_READ_AHEAD_BYTES = 64 * KIB
"""The kernel reads this much around a missing page of a mapped file: four blocks of 16 KiB, instead of eight."""
BDIS = Path("/sys/class/bdi")
"""The kernel's read-ahead of each file system."""
_IMAGE_BDI = "erofs-"

_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_NOEXEC = 8
_MS_NOATIME = 1024
_MS_BIND = 4096
_FLAGS = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOATIME
_MNT_FORCE = 1
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_CAP_SYS_ADMIN = 21
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_AT_FDCWD = -100
_OPEN_TREE_CLONE = 1
_OPEN_TREE_RECURSIVE = 0x8000
_MOVE_MOUNT_FROM_DESCRIPTOR = 4
_MOVE_MOUNT_BENEATH = 0x200
_ALL_USERS = ["0", "0", "4294967295"]
"""The user IDs in a process that is in no user namespace."""

_MOUNT_OF_FILE = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)
_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)


class ReadAhead(NamedTuple):
    """The read-ahead of a mount in `view`. `place`: its mount point, for an image `name`; `name`: in `BDIS`."""

    place: str
    view: str
    name: str
    length_bytes: int


def facts() -> Facts:
    """What this process may do on this kernel."""
    status = Path("/proc/self/status").read_text()
    (capabilities,) = (line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    major, minor = re.findall("[0-9]+", os.uname().release)[:2]
    return Facts(
        bool(int(capabilities, 16) >> _CAP_SYS_ADMIN & 1),
        Path("/proc/self/uid_map").read_text().split() != _ALL_USERS,
        (int(major), int(minor)),
    )


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
    """Check that `mountpoint` (resolved) can be mounted on: an empty folder, or a dead mount of dieselfs, which stays
    until the next mount takes its place.

    Raises MountError, with the remedy.
    """
    _check_not_alive(mountpoint)
    if has_dead_mount(mountpoint):
        return
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


def _check_not_alive(mountpoint: str) -> None:
    record = mount_at(mountpoint)
    if record is not None and record.is_dieselfs and not is_stale(mountpoint):
        raise MountError(
            f"{mountpoint}: {record.source} is mounted there already; "
            f"to replace it, unmount it first: dlcmd umount {shlex.quote(mountpoint)}"
        )


def has_dead_mount(mountpoint: str) -> bool:
    """Whether the mount that users see there is one of dieselfs, and its daemon is dead."""
    record = mount_at(mountpoint)
    return record is not None and record.is_dieselfs and is_stale(mountpoint)


def unmount_dead(mountpoint: str) -> None:
    """Unmount all dead mounts of dieselfs there. Raises MountError, also if a live one is below them."""
    while (record := mount_at(mountpoint)) is not None and has_dead_mount(mountpoint):
        unmount(mountpoint, lazily=True, number=record.number)
    _check_not_alive(mountpoint)


def mount_device(
    mountpoint: str, source: str, allow_other: bool = False, noexec: bool = False, is_writable: bool = False
) -> int:
    """Mount, and return the descriptor of `/dev/fuse` for the requests of the kernel. Raises MountError.

    `is_writable`: the kernel lets writes through, for the control tree.
    """
    options = ["default_permissions", f"max_read={READ_BYTES_MAX}"]
    if allow_other:
        options.append("allow_other")
    if _mounts_itself():
        return _mount_as_root(mountpoint, source, options, noexec, is_writable)
    return _mount_through_helper(mountpoint, source, options, noexec, is_writable)


def _mount_as_root(mountpoint: str, source: str, options: list[str], noexec: bool, is_writable: bool) -> int:
    try:
        device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError as error:
        raise MountDenied(f"{DEVICE}: {error.strerror}; {_DENIED}") from None
    except OSError as error:
        raise MountError(f"{DEVICE}: {error.strerror}; load the kernel module first: modprobe fuse") from None
    owner = f"user_id={os.getuid()},group_id={os.getgid()}"
    data = ",".join([f"fd={device},rootmode={stat.S_IFDIR:o}", owner, *options])
    try:
        mount_kernel_file_system(source, mountpoint, VIEWS[FUSE].filesystem, noexec, data, is_writable)
    except MountError:
        os.close(device)
        raise
    return device


def mount_kernel_file_system(
    source: str,
    mountpoint: str,
    filesystem: str | None,
    noexec: bool = False,
    data: str = "",
    is_writable: bool = False,
) -> None:
    """mount(2), read-only unless `is_writable`; without `filesystem`, the folder `source` is mounted there too (bind).
    Raises MountError.
    """
    flags = _FLAGS | (_MS_NOEXEC if noexec else 0) if filesystem else _MS_BIND
    if is_writable:
        flags &= ~_MS_RDONLY
    kind = filesystem.encode() if filesystem else None
    with _opened(mountpoint) as folder:
        place = b"/proc/self/fd/%d" % folder
        if _libc.mount(os.fsencode(source), place, kind, flags, os.fsencode(data)) != 0:
            reason = os.strerror(ctypes.get_errno())
            what = f" as {filesystem}" if filesystem and filesystem != VIEWS[FUSE].filesystem else ""
            raise MountError(f"{mountpoint}: cannot be mounted{what}: {reason}")
    if mount_at(mountpoint) is None:
        raise MountError(f"{mountpoint}: the folder, or one above it, was moved meanwhile; mount again")


@contextmanager
def _opened(folder: str) -> Iterator[int]:
    """A descriptor of a folder (absolute, resolved), opened without a symbolic link. Raises MountError."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open("/", flags)
    try:
        for name in filter(None, folder.split("/")):
            try:
                below = os.open(name, flags, dir_fd=descriptor)
            except OSError as error:
                what = f"{error.strerror}; a folder above it may have just changed"
                raise MountError(f"{folder}: {what}") from None
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _pinned(mountpoint: str, number: int = 0) -> Iterator[str]:
    """A path of the uppermost mount on `mountpoint` that leads there whatever happens to the folders above it.

    `number`: of the mount that is meant, 0 for the one that is there now. Raises MountError, also if it is another.
    """
    record = mount_at(mountpoint)
    if record is None:
        raise MountError(f"{mountpoint}: cannot be unmounted: {os.strerror(errno.EINVAL)}")
    folder, name = os.path.split(mountpoint)
    with _opened(folder) as above:
        if {_mount_number(above, name), number or record.number} != {record.number}:
            raise MountError(f"{mountpoint}: another mount is there now; see dlcmd mounts")
        yield f"/proc/self/fd/{above}/{name}"


def _mount_number(above: int, name: str) -> int:
    """The number of the mount that shows as `name` in an open folder; 0 if there is nothing. Nothing stays open, which
    would keep the mount busy.
    """
    try:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except OSError:
        return 0
    try:
        found = _MOUNT_OF_FILE.search(Path(f"/proc/self/fdinfo/{descriptor}").read_bytes())
        return int(found[1]) if found else 0
    finally:
        os.close(descriptor)


def _mounts_itself() -> bool:
    """Whether this process calls the kernel, and not `fusermount3`."""
    return os.geteuid() == 0 or facts().may_mount


def _mount_through_helper(
    mountpoint: str, source: str, options: list[str], noexec: bool, is_writable: bool
) -> int:
    helper = _helper()
    flags = ["rw" if is_writable else "ro", "nosuid", "nodev", "noatime", *(["noexec"] if noexec else [])]
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
            reason = _first_line(done.stderr)
            if DEVICE in reason and any(os.strerror(code) in reason for code in (errno.EACCES, errno.EPERM)):
                raise MountDenied(f"{mountpoint}: {reason}; {_DENIED}")
            raise MountError(f"{mountpoint}: {reason}")
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        raise MountError(f"{mountpoint}: {helper} did not pass the descriptor of the mount")
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def _helper() -> str:
    helper = shutil.which("fusermount3")
    if helper is None:
        raise MountError(
            "fusermount3 is not installed, and only root can mount without it: apt install fuse3; or read the "
            "dataset without it: dlcmd run DATASET -- COMMAND"
        )
    return helper


def _first_line(output: bytes) -> str:
    return (output.decode("utf-8", "replace").strip() or "fusermount3 failed").splitlines()[0]


def raise_read_ahead(mountpoint: str) -> bool:
    """Set the kernel's read-ahead to the largest request; False if only root may do that."""
    record = mount_at(mountpoint)
    return record is not None and _set_read_ahead(record.device, READ_BYTES_MAX)


def read_aheads() -> list[ReadAhead]:
    """The read-ahead of the mounts of dieselfs in the view `fuse`; and of images, if all EROFS file systems are of
    those, also in other mount namespaces, because their names do not say whose they are. Those that the kernel does not
    tell are left out.
    """
    mounts = dieselfs_mounts()
    found = [(record.mountpoint, FUSE, record.device) for record in mounts if record.view == FUSE]
    images = {record.device for record in mounts if record.view == IMAGE}
    others = {
        record.device
        for record in parse_mountinfo(MOUNTINFO.read_bytes())
        if record.filesystem == VIEWS[IMAGE].filesystem
    }
    names = image_read_aheads()
    if images == others and len(names) == len(images):
        found += [(name, IMAGE, name) for name in sorted(names)]
    result = []
    for place, view, name in found:
        with suppress(OSError, ValueError):
            length_kib = int((BDIS / name / "read_ahead_kb").read_text())
            result.append(ReadAhead(place, view, name, length_kib * KIB))
    return result


def image_read_aheads() -> set[str]:
    """The names that the kernel gives to the read-ahead of EROFS mounts: numbered, and not by mount."""
    with suppress(OSError):
        return {name for name in os.listdir(BDIS) if name.startswith(_IMAGE_BDI)}
    return set()


def limit_image_read_ahead(before: Collection[str]) -> bool:
    """Set the read-ahead of the EROFS mount that was made since there were those of `before`. False if only root may do
    that, or if other mounts were made meanwhile: one of them might be meant.
    """
    new = image_read_aheads().difference(before)
    return len(new) == 1 and _set_read_ahead(new.pop(), IMAGE_READ_AHEAD_BYTES)


def _set_read_ahead(name: str, length_bytes: int) -> bool:
    try:
        (BDIS / name / "read_ahead_kb").write_text(str(length_bytes // KIB))
    except OSError:
        return False
    return True


def unmount(mountpoint: str, lazily: bool = False, is_cut_off: bool = False, number: int = 0) -> None:
    """Unmount, with the control tree that is mounted on a view. Raises MountError, also while files on it are open, and
    if the mount there is not that of `number`, unless that is 0.

    `lazily`: detach the mount at once; its daemon serves open files. `is_cut_off`: also end the connection, so that
    waiting requests fail; this has an effect for root only, and on a FUSE mount.
    """
    if not _mounts_itself():
        command = [_helper(), "-u", *(["-z"] if lazily else []), "--", mountpoint]
        done = subprocess.run(command, stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise MountError(f"{mountpoint}: cannot be unmounted: {_first_line(done.stderr)}")
        return
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazily else 0) | (_MNT_FORCE if is_cut_off else 0)
    has_control = not lazily and mount_at(os.path.join(mountpoint, CONTROL_FOLDER)) is not None
    with _pinned(mountpoint, number) as place:
        if has_control:
            _unmount_with_control(place, mountpoint, flags)
        else:
            _unmount(place, mountpoint, flags)


def _unmount_with_control(place: str, mountpoint: str, flags: int) -> None:
    """`place`: as from `_pinned`. The control tree is mounted again if files of the mount are open."""
    control = os.path.join(place, CONTROL_FOLDER)
    copy = _libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(control), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    try:
        _unmount(control, mountpoint, flags)
        try:
            _unmount(place, mountpoint, flags)
        except MountError:
            to = _AT_FDCWD, os.fsencode(control), _MOVE_MOUNT_FROM_DESCRIPTOR
            if copy >= 0 and _libc.syscall(_MOVE_MOUNT, copy, b"", *to) != 0:
                _log.warning(
                    "%s: its control tree cannot be mounted again: %s",
                    mountpoint,
                    os.strerror(ctypes.get_errno()),
                )
            raise
    finally:
        if copy >= 0:
            os.close(copy)


def _move_beneath(staged: str, place: str, mountpoint: str) -> None:
    """Mount what is mounted on the folder `staged` on `mountpoint` as well, beneath the mount there (Linux 6.5).

    Then an unmount shows it, in one step of the kernel: there is no moment without a mount. `place`: as from `_pinned`.
    Raises MountError.
    """
    what = _AT_FDCWD, os.fsencode(staged), _OPEN_TREE_CLONE | _OPEN_TREE_RECURSIVE | os.O_CLOEXEC
    copy = _libc.syscall(_OPEN_TREE, *what)
    if copy < 0:
        raise MountError(f"{staged}: cannot be copied: {os.strerror(ctypes.get_errno())}")
    try:
        if mount_at(staged) is None:  # it may have ended before the copy, which then is of the folder
            raise MountError(f"{staged}: nothing is mounted there")
        how = _MOVE_MOUNT_FROM_DESCRIPTOR | _MOVE_MOUNT_BENEATH
        if _libc.syscall(_MOVE_MOUNT, copy, b"", _AT_FDCWD, os.fsencode(place), how) != 0:
            raise MountError(f"{mountpoint}: cannot be replaced: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(copy)


def put_in_place(staged: str, mountpoint: str, number: int = 0) -> None:
    """Replace the mount on `mountpoint` by what is mounted on the folder `staged`, in one step of the kernel.

    `number`: as for `unmount`. Raises MountError; then the old mount is still there.
    """
    with _pinned(mountpoint, number) as place:
        _move_beneath(staged, place, mountpoint)
        _unmount(place, mountpoint, _UMOUNT_NOFOLLOW | _MNT_DETACH)
    with suppress(MountError):  # the mount that is replaced has noticed that, and cleared its base
        uncover(staged)


def replace_dead(staged: str, mountpoint: str) -> None:
    """As `put_in_place`, for a dead mount of dieselfs on `mountpoint`, and the dead ones on which it is.

    Raises MountError, also if a live one is below them, which then shows.
    """
    while is_on_another(mountpoint):
        uncover(mountpoint)
        _check_not_alive(mountpoint)
    put_in_place(staged, mountpoint)


def uncover(mountpoint: str, number: int = 0) -> None:
    """Detach the uppermost mount; what is open on it stays open. `number`: as for `unmount`. Raises MountError."""
    with _pinned(mountpoint, number) as place:
        _unmount(place, mountpoint, _UMOUNT_NOFOLLOW | _MNT_DETACH)


def _unmount(place: str, mountpoint: str, flags: int) -> None:
    if _libc.umount2(os.fsencode(place), flags) != 0:
        raise MountError(f"{mountpoint}: cannot be unmounted: {os.strerror(ctypes.get_errno())}")
