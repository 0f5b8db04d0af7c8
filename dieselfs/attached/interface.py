"""The interface of opened sources.

All methods block and may be called from any number of threads.
"""

from typing import Protocol

from dieselfs.chunk.source import Source


class OpenSource(Protocol):
    """One version of an object. `source` says which, with offset 0."""

    @property
    def source(self) -> Source: ...

    @property
    def mtime_ns(self) -> int:
        """The time of this version; 0 if it is not known."""

    @property
    def descriptor(self) -> int | None:
        """Of a local file; None of other objects. It is closed by `close`."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on, of this version.

        Raises Damaged if the object is shorter or has been replaced, Unavailable if it cannot be read now.
        """

    def check(self) -> None:
        """Raise Damaged if the object has changed since it was opened, and a read may have noticed nothing."""

    def close(self) -> None: ...
