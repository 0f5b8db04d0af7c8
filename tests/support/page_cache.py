"""The pages of a file that are in the page cache of this machine."""

import ctypes
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec

Parameters = ParamSpec("Parameters")

_libc = ctypes.CDLL(None, use_errno=True)


def cached_pages(path: str | os.PathLike[str]) -> list[bool]:
    """Whether each page of a file is in memory. Does not read the file."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return []
        pages = -(-size // mmap.PAGESIZE)
        with mmap.mmap(
            file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        ) as view:
            start = ctypes.c_char.from_buffer(view)
            found = (ctypes.c_ubyte * pages)()
            code = _libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), found)
            del start
            assert code == 0, os.strerror(ctypes.get_errno())
            return [bool(byte & 1) for byte in found]


def undisturbed(test: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Repeat a test that looks at the page cache: another test may make the kernel drop its caches at any time."""

    @wraps(test)
    def repeated(*arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        for _ in range(4):
            with suppress(AssertionError):
                return test(*arguments, **named)
        return test(*arguments, **named)

    return repeated


def is_cached(path: Path) -> bool:
    """Whether all of a file is in the page cache."""
    return all(cached_pages(path))
