"""The content of a local folder, by path, for comparisons with a stored one. This module reads files."""

import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dieselfs.digests import extent_digest_of
from dieselfs.errors import InvalidInput
from dieselfs.names import printable
from dieselfs.snapshot.reader import ExtentRef
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.transfers.entries import Entry
from dieselfs_tools.transfers.sources import Source, relative_path, walk

if TYPE_CHECKING:
    from dieselfs.transfer.upload import UploadEntry


class LocalTree:
    """The entries below a folder, by the path relative to it. `failures`: entries that cannot be read, with the reason;
    `unread` has their places.
    """

    def __init__(self, source: Source, patterns: Patterns) -> None:
        """The entries that the patterns select; each folder before its content."""
        self.entries: dict[bytes, Entry] = {}
        self.failures: list[tuple[str, str]] = []
        self.unread: set[bytes] = set()
        self._top = source.source
        for found in walk(source, patterns, True, self.fail):
            path = relative_path(source, found.path)
            try:
                if path:
                    self.entries[path] = _entry(path, found)
            except OSError as error:  # it was removed meanwhile
                self.fail(found.source, error.strerror or str(error))
            except InvalidInput as error:
                self.fail(found.source, str(error))

    def fail(self, place: bytes, reason: str, is_damaged: bool = False) -> None:
        self.failures.append((printable(place), reason))
        self.unread.add(place)

    def place(self, path: bytes) -> bytes:
        return os.path.join(self._top, path)

    def has_content(self, path: bytes, extents: Sequence[ExtentRef]) -> bool:
        """Whether a file of the right size has the bytes of these extents; True for one that cannot be read."""
        try:
            with open(self.place(path), "rb", buffering=0) as file:
                for extent in extents:
                    content = os.pread(file.fileno(), extent.length, extent.place)
                    if extent_digest_of(content) != extent.digest:
                        return False
        except OSError as error:
            self.fail(self.place(path), error.strerror or str(error))
        return True


def _entry(path: bytes, found: "UploadEntry") -> Entry:
    """Raises OSError, and InvalidInput for devices, pipes and sockets."""
    if not (found.is_folder or stat.S_ISREG(found.mode) or stat.S_ISLNK(found.mode)):
        raise InvalidInput("neither file nor folder nor link")
    is_link = stat.S_ISLNK(found.mode)
    target = os.readlink(found.source) if is_link else b""
    return Entry(path, found.mode, len(target) if is_link else found.file_bytes, found.mtime_ns, target)
