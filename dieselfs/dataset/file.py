"""A large file of a dataset as a file object, which fetches only the extents that are read. No I/O of its own."""

import io
from collections.abc import Callable
from typing import Any

BUFFER_BYTES = 128 * 1024
"""Small reads are answered from a buffer of this size."""


class DatasetFile(io.RawIOBase):
    """A read-only, seekable file of `size` bytes. `read_range(start, end)` returns exactly these bytes of it.

    Wrap it in `io.BufferedReader` (`buffered`). Not thread-safe, as all file objects.
    """

    def __init__(self, size: int, read_range: Callable[[int, int], bytes], name: str) -> None:
        self.size = size
        self.name = name
        """The location of the file, `dl://dataset/path`."""
        self._read_range = read_range
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Raises ValueError for a negative position, as files of the system do."""
        self._check_open()
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if origin + offset < 0:
            raise ValueError(f"{self.name}: negative seek position {origin + offset}")
        self._position = origin + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, or its begin at the end of the file. Raises DieselfsError."""
        self._check_open()
        room = memoryview(buffer).cast("B")
        end = min(self._position + len(room), self.size)
        if end <= self._position:
            return 0
        content = self._read_range(self._position, end)
        room[: len(content)] = content
        self._position += len(content)
        return len(content)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name}: the file is closed")


def buffered(file: DatasetFile) -> io.BufferedReader:
    return io.BufferedReader(file, BUFFER_BYTES)
