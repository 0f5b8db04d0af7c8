"""The capabilities of this thread, as bit masks (capabilities(7)). This module calls the kernel. It imports little, for
the supervisor.
"""

import ctypes
import os
import struct
from typing import NamedTuple

DAC_OVERRIDE, DAC_READ_SEARCH, SYS_ADMIN = 1, 2, 21
"""Numbers of capabilities, as in the kernel."""

_VERSION = 0x20080522
_WORD_BITS = 32
_WORD = (1 << _WORD_BITS) - 1
_DATA = struct.Struct("=6I")
_PR_CAPBSET_DROP = 24
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
        _libc.prctl(
            _PR_CAPBSET_DROP, number, 0, 0, 0
        )  # refused for numbers that do not exist, and without CAP_SETPCAP
    kept = mask_of(*numbers)
    write(Capabilities(*(mask & kept for mask in read())))


def _header() -> bytes:
    return struct.pack("=Ii", _VERSION, 0)


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
