"""A private table of mounts for a process and its children: namespaces. This module calls the kernel.

A user without the right to mount gets it in a user namespace, with the same user ID inside. The children inherit
the right to mount (an ambient capability) until `give_up_rights`.
"""

import ctypes
import os
import traceback
from contextlib import suppress
from pathlib import Path

from dieselfs.errors import MountError, os_errors_as
from dieselfs_client import capabilities
from dieselfs_client.capabilities import SYS_ADMIN, mask_of
from dieselfs_client.mount.points.mounting import facts

PROBE_BYTES_MAX = 4096

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_SLAVE = 1 << 14, 1 << 19
_PR_CAP_AMBIENT, _RAISE, _CLEAR_ALL = 47, 2, 4
_libc = ctypes.CDLL(None, use_errno=True)


def obstacle() -> str | None:
    """Why `enter` is not possible here; None if it is. Tried in a process of its own."""
    ours, theirs = os.pipe()
    probe = os.fork()
    if not probe:
        try:
            enter()
        except MountError as error:
            with suppress(OSError):
                os.write(theirs, str(error).encode())
        except BaseException:
            traceback.print_exc()
            os.write(theirs, b"a bug")
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        reason = pipe.read(PROBE_BYTES_MAX).decode()
    os.waitpid(probe, 0)
    return reason or None


def enter() -> None:
    """Give this process, which has one thread, a table of mounts of its own. Mounts that others make still appear in
    it. Raises MountError; then the process may have lost rights.
    """
    may_mount = facts().may_mount
    user, group = os.getuid(), os.getgid()
    _call("unshare", _libc.unshare(_CLONE_NEWNS | (0 if may_mount else _CLONE_NEWUSER)))
    with os_errors_as(MountError, "user namespaces are not allowed"):
        if not may_mount:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", _libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None))
    if not may_mount:
        _pass_rights_on()


def _pass_rights_on() -> None:
    with os_errors_as(MountError, "private namespaces are not allowed: capabilities"):
        now = capabilities.read()
        capabilities.write(now._replace(inheritable=now.inheritable | mask_of(SYS_ADMIN)))
    _call("prctl", _libc.prctl(_PR_CAP_AMBIENT, _RAISE, SYS_ADMIN, 0, 0))


def give_up_rights() -> None:
    """The program that this process executes next has no rights but those of its user."""
    _libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)


def _call(name: str, result: int) -> None:
    if result != 0:
        raise MountError(f"private namespaces are not allowed: {name}: {os.strerror(ctypes.get_errno())}")
