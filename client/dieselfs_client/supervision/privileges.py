"""What the processes of a mount give up, because they hold keys and data. This module changes its own process.

Those of a mount by root stay root: they read keys, unmount at the end, and mount again where the kernel cannot resend
requests. Of the capabilities of root, they keep those for that.
"""

import ctypes
import os
import resource
from contextlib import suppress

from dieselfs_client.capabilities import DAC_OVERRIDE, DAC_READ_SEARCH, SYS_ADMIN, keep_only

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38


def write_no_core_files() -> None:
    """For this process and all that it starts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def give_up_capabilities() -> None:
    """As root: keep the right to mount, and to read what the modes of files forbid, as files of a mount with `uid`.

    Nothing happens where the kernel refuses: then a service manager or a container has fewer rights left than these.
    """
    if os.geteuid() == 0:
        with suppress(OSError):
            keep_only(SYS_ADMIN, DAC_OVERRIDE, DAC_READ_SEARCH)


def give_up_privileges() -> None:
    """As root: no program that this process starts gains rights (set-user-ID, file capabilities), and processes
    without CAP_SYS_PTRACE cannot look into this one. Another user unmounts through `fusermount3`, which needs rights.
    """
    if os.geteuid() == 0:
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        prctl(
            _PR_SET_DUMPABLE, 0, 0, 0, 0
        )  # core_pattern may be a program, to which the limit does not apply
