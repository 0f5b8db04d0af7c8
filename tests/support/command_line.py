"""The command line that `/proc` shows of a process, which a fork has from its parent until it sets its own."""

import ctypes
import os
import struct
from collections.abc import Sequence

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_NO_FILE = 0xFFFFFFFF

_shown: object = None  # the memory of the command line of this process


def show_command(words: Sequence[str]) -> None:
    """Show a command line in `/proc`, by which tests find programs. Nothing happens where the kernel cannot do that."""
    global _shown
    content = b"".join(os.fsencode(word) + b"\0" for word in words)
    _shown = ctypes.create_string_buffer(content, len(content))
    begin = ctypes.addressof(_shown)
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    with open("/proc/self/stat", encoding="latin-1") as status:
        fields = ["", "", *status.read().rpartition(") ")[2].split()]
    code, data, heap, stack, variables = (
        [int(fields[number - 1]) for number in numbers]  # as proc(5) counts
        for numbers in ((26, 27), (45, 46), (47,), (28,), (50, 51))
    )
    words_at = begin, begin + len(content)
    places = *code, *data, *heap, libc.sbrk(0), *stack, *words_at, *variables
    layout = struct.pack("=12Q2I", *places, 0, 0, _NO_FILE)  # struct prctl_mm_map, without vector and file
    libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, layout, ctypes.c_ulong(len(layout)), 0)
