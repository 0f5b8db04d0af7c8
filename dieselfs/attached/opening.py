"""Opens a source by its location; the interface of opened sources. This module opens files and sends requests."""

from collections.abc import Callable
from typing import Protocol

from dieselfs.attached.local_file import LocalFile
from dieselfs.chunk.source import OBJECT_SCHEMES, WEB_SCHEMES, AttachedSource
from dieselfs.errors import InvalidInput
from dieselfs.names import printable


class OpenSource(Protocol):
    """One version of an object. `source` says which, with offset 0. All methods block, and are safe between threads."""

    @property
    def source(self) -> AttachedSource: ...

    @property
    def mtime_ns(self) -> int:
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


def open_source(
    location: bytes, check_allowed: Callable[[bytes], None], known: AttachedSource | None = None
) -> OpenSource:
    """The present version of the file at an absolute path, or at a URL; the caller closes it. With a `known` version,
    that at a URL is not looked up, but compared at each read.

    `check_allowed` raises AccessDenied for a location, without symbolic links, that must not be read; of a file on the
    web, it gets each URL that is asked. Raises NotFound, Unavailable, InvalidInput for no regular file.
    """
    if location.startswith(b"/"):
        return LocalFile(location, check_allowed)
    if location.startswith(OBJECT_SCHEMES):
        from dieselfs.attached.bucket_object import BucketObject  # which needs the extra s3

        return BucketObject(location, check_allowed, known)
    if location.startswith(WEB_SCHEMES):
        from dieselfs.attached.web_file import WebFile

        return WebFile(location, check_allowed, known)
    raise InvalidInput(
        f"{printable(location)}: only files, objects and files on the web can be attached; name an absolute path"
    )
