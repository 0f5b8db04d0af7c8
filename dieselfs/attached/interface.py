"""What an opened source does, be it a file, an object or a file on the web. No I/O of its own."""

from typing import Protocol

from dieselfs.chunk.source import AttachedSource


class OpenSource(Protocol):
    """One version of an object. `source` says which, with offset 0. All methods block, and are safe between threads."""

    source: AttachedSource
    mtime_ns: int
    """The time of this version; 0 if it is not known."""

    @property
    def descriptor(self) -> int | None:
        """The descriptor of a local file, which `close` closes; None for other objects."""
        return None

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on, of this version.

        Raises Damaged if the object is shorter or has been replaced, Unavailable if it cannot be read now.
        """

    def check(self) -> None:
        """Raise Damaged if the object has changed since it was opened. Nothing where each read compares the version."""
        return

    def close(self) -> None:
        """Release what the source has open. Nothing where connections stay open for others."""
        return
