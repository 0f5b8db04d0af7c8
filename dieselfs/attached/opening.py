"""Opens a source by its location. This module opens files and sends requests."""

from collections.abc import Callable

from dieselfs.attached.interface import OpenSource
from dieselfs.attached.local_file import LocalFile
from dieselfs.chunk.source import OBJECT_SCHEMES, WEB_SCHEMES, AttachedSource
from dieselfs.errors import InvalidInput
from dieselfs.names import printable


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
