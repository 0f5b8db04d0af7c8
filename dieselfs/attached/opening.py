"""Opens a source by its location. This module opens files."""

from collections.abc import Callable

from dieselfs.attached.interface import OpenSource
from dieselfs.attached.local_file import LocalFile
from dieselfs.errors import InvalidInput
from dieselfs.names import printable


def open_source(location: bytes, check_allowed: Callable[[bytes], None]) -> OpenSource:
    """The present version of the object at an absolute path; the caller closes it.

    `check_allowed` raises AccessDenied for a location, without symbolic links, that must not be read. Raises NotFound,
    Unavailable, InvalidInput for no regular file.
    """
    if location.startswith(b"/"):
        return LocalFile(location, check_allowed)
    raise InvalidInput(f"{printable(location)}: only files can be attached; name an absolute path")
