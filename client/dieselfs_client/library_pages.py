"""Pages that only the start of a process needs. This module unmaps memory.

It imports little, for the supervisor.
"""

import ctypes
from collections.abc import Collection, Iterable, Iterator

_MADV_DONTNEED = 4


def clean_mappings(smaps: Iterable[str], before: Collection[str]) -> Iterator[tuple[int, int]]:
    """Start and end of each private mapping that is as in its file, from lines of `/proc/PID/smaps`. `before`: earlier
    lines of `/proc/PID/maps`. None that can be written, or that was not there before: another thread may be writing, or
    loading a library.
    """
    for line in smaps:
        words = line.split()
        if "-" in words[0]:  # start and end, permissions, three numbers, and a path if it is of a file
            start, end = (int(place, 16) for place in words[0].split("-"))
            is_clean = words[1][1::2] == "-p" and "".join(words[5:6]).startswith("/") and line in before
        elif words[0] in ("Anonymous:", "Swap:"):  # pages that were changed, in memory and not
            is_clean = is_clean and words[1] == "0"
            if is_clean and words[0] == "Swap:":
                yield start, end


def unmap_clean() -> None:
    """Unmap free memory, and all pages of `clean_mappings`, mostly code that runs at the start alone. What is used
    again costs a page fault, which takes it from the page cache.
    """
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    with open("/proc/self/maps") as before, open("/proc/self/smaps") as smaps:
        for start, end in clean_mappings(smaps, {*before}):
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
