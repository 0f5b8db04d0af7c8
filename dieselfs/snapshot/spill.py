"""A column that grows, in memory while it is small, then in an unnamed file of a scratch folder; read in place.
This module opens files.
"""

import mmap
from io import BytesIO, FileIO
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.columns import U8
from dieselfs.errors import StorageFull
from dieselfs.limits import MIB

IN_MEMORY_BYTES = 4 * MIB
"""A longer column is in a file, if there is a folder for it."""


class Spill:
    """`folder`: of the file, which vanishes with the object; None: in memory."""

    def __init__(self, dtype: npt.DTypeLike, folder: str | None) -> None:
        self._dtype, self._folder = np.dtype(dtype), folder
        self._file: BytesIO | FileIO = BytesIO()
        self.count = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        """Raises StorageFull, also if the folder cannot be written."""
        values = np.ascontiguousarray(values, self._dtype)
        self.count += len(values)
        try:
            if isinstance(self._file, BytesIO) and self.count * self._dtype.itemsize > IN_MEMORY_BYTES:
                self._move()
            self._write(values.view(U8).data)
        except OSError as error:
            raise StorageFull(f"no room to build a snapshot in {self._folder}: {error.strerror}") from None

    def _move(self) -> None:
        """Continue in a file."""
        if self._folder is not None:
            content = self._file
            self._file = TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115  # closed with the object
            assert isinstance(content, BytesIO)
            self._write(memoryview(content.getvalue()))

    def _write(self, content: memoryview) -> None:
        while len(content):
            content = content[self._file.write(content) :]

    def values(self) -> npt.NDArray[Any]:
        """All values, read-only, in place; none may be appended afterwards."""
        if isinstance(self._file, BytesIO):
            return np.frombuffer(self._file.getvalue(), self._dtype)
        return np.frombuffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ), self._dtype)

    def __del__(self) -> None:
        self._file.close()
