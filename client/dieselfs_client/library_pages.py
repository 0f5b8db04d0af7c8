"""Pages that only the start of a process needs. This module unmaps memory.

It imports little, for the supervisor.
"""

import ctypes
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from resource import getpagesize
from struct import Struct

_MADV_NORMAL, _MADV_DONTNEED = 0, 4
_PAGE, _PAGE_BYTES = Struct("=Q"), getpagesize()
_KIND_BITS, _OF_FILE = 61, 0b101
"""A page in `/proc/PID/pagemap`: present, not swapped, of a file and not of this process alone."""


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


def unmap_clean(has_threads: bool = True) -> None:
    """Unmap free memory, and all pages of `clean_mappings`, mostly code that runs at the start alone. What is used
    again costs a page fault, which takes it from the page cache. In a process without other threads, also the pages of
    data that are as in their file. Nothing if this process may not read what it has mapped.
    """
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    with suppress(OSError):
        # This function changes data, too: the first time before it looks which pages are unchanged.
        for advice in (_MADV_NORMAL, _MADV_DONTNEED):
            for start, end in _clean(has_threads):
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


def _clean(has_threads: bool) -> list[tuple[int, int]]:
    with open("/proc/self/maps") as maps:
        before = [*maps]
    with open("/proc/self/smaps") as smaps:
        places = [*clean_mappings(smaps, {*before})]
    return places if has_threads else [*places, *clean_data(before)]


def clean_data(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Start and end of each page that is as in its file, of private mappings that can be written. `maps`: lines of
    `/proc/self/maps`.
    """
    with open("/proc/self/pagemap", "rb", buffering=0) as pages:
        for words in map(str.split, maps):
            if words[1][1::2] == "wp" and "".join(words[5:6]).startswith("/"):
                start, end = (int(place, 16) for place in words[0].split("-"))
                pages.seek(start // _PAGE_BYTES * _PAGE.size)
                flags = pages.read((end - start) // _PAGE_BYTES * _PAGE.size)
                for number, (flag,) in enumerate(_PAGE.iter_unpack(flags)):
                    if flag >> _KIND_BITS == _OF_FILE:
                        yield start + number * _PAGE_BYTES, start + (number + 1) * _PAGE_BYTES
