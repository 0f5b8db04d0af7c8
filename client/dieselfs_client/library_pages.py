"""Pages of libraries that only the start of a process needs. This module unmaps memory.

It imports little, for the supervisor.
"""

import ctypes

_MADV_DONTNEED = 4


def unmap_clean() -> None:
    """Unmap all pages of private mappings that are as in their files, mostly code that runs at the start alone. What is
    used again costs a page fault, which takes it from the page cache.
    """
    madvise = ctypes.CDLL(None).madvise
    with open("/proc/self/smaps") as file:
        for words in map(str.split, file):
            if "-" in words[0]:  # start and end, permissions, three numbers, and a path if it is of a file
                ends = [int(end, 16) for end in words[0].split("-")]
                is_of_file = words[1].endswith("p") and words[5:6] and words[5].startswith("/")
            elif words[0] == "Anonymous:" and words[1] == "0" and is_of_file:  # no page was changed
                madvise(ctypes.c_void_p(ends[0]), ctypes.c_size_t(ends[1] - ends[0]), _MADV_DONTNEED)
