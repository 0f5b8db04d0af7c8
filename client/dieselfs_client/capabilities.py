"""The capabilities of this thread, as bit masks (capabilities(7)), and what the processes of a mount give up, because
they hold keys and data. This module changes its own process. It imports little, for the supervisor.

Processes of a mount by root stay root: they read keys, unmount at the end, and mount again where the kernel cannot
resend requests. Of the capabilities of root, they keep those for that.
"""

import ctypes
import os
import resource
import struct
from contextlib import suppress
from typing import NamedTuple

CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, SYS_ADMIN = 0, 1, 2, 3, 4, 21
"""Numbers of capabilities, as in the kernel."""

_VERSION = 0x20080522
_WORD_BITS = 32
_WORD = (1 << _WORD_BITS) - 1
_DATA = struct.Struct("=6I")
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_NUMBERS_MAX = 64
_libc = ctypes.CDLL(None, use_errno=True)


class Capabilities(NamedTuple):
    effective: int
    permitted: int
    inheritable: int


def mask_of(*numbers: int) -> int:
    return sum(1 << number for number in numbers)


def read() -> Capabilities:
    """Raises OSError."""
    data = ctypes.create_string_buffer(_DATA.size)
    _check(_libc.capget(_header(), data))
    words = _DATA.unpack(data.raw)
    return Capabilities(*(words[place] | words[place + 3] << _WORD_BITS for place in range(3)))


def write(wanted: Capabilities) -> None:
    """Raises OSError, also if there would be a capability more than is permitted."""
    words = [*(mask & _WORD for mask in wanted), *(mask >> _WORD_BITS for mask in wanted)]
    _check(_libc.capset(_header(), _DATA.pack(*words)))


def keep_only(*numbers: int) -> None:
    """Give up all others, also for programs that this process starts as root. Raises OSError.

    Other threads keep theirs: call it before there are any.
    """
    for number in {*range(_NUMBERS_MAX)} - {*numbers}:
        # Refused for numbers that do not exist, and without CAP_SETPCAP.
        _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    kept = mask_of(*numbers)
    write(Capabilities(*(mask & kept for mask in read())))


def _header() -> bytes:
    return struct.pack("=Ii", _VERSION, 0)


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def write_no_core_files() -> None:
    """For this process and all that it starts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def give_up_capabilities(is_written: bool = False) -> None:
    """As root: keep the right to mount, and to read what the modes of files forbid, as files of a mount with `uid`.
    `is_written`: also to give files of users their owners and modes, as overlayfs does with the rights of the process
    that mounts.

    Nothing happens where the kernel refuses: then a service manager or a container has fewer rights left than these.
    """
    if os.geteuid() == 0:
        with suppress(OSError):
            keep_only(
                SYS_ADMIN, DAC_OVERRIDE, DAC_READ_SEARCH, *((CHOWN, FOWNER, FSETID) if is_written else ())
            )


def give_up_privileges() -> None:
    """As root: no program that this process starts gains rights (set-user-ID, file capabilities), and processes
    without CAP_SYS_PTRACE cannot look into this one. Another user unmounts through `fusermount3`, which needs rights.
    """
    if os.geteuid() == 0:
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # core_pattern may be a program, which has no limit
