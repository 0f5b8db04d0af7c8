"""The entries below a folder, stored or local, by their paths relative to it. This module reads files."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dieselfs.digests import extent_digest_of
from dieselfs.errors import InvalidInput
from dieselfs.names import SCHEME, printable
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.transfers.entries import Entry
from dieselfs_tools.transfers.sources import Source, relative_path, walk

if TYPE_CHECKING:
    from dieselfs.arrays import Numbers
    from dieselfs.snapshot.reader import ExtentRef, Snapshot
    from dieselfs.transfer.upload import UploadEntry


def selected(entries: Mapping[bytes, Entry], patterns: Patterns) -> Mapping[bytes, Entry]:
    """The entries that the patterns select."""
    if not patterns:
        return entries
    return {path: entry for path, entry in entries.items() if patterns.is_wanted(path, entry.is_folder)}


class StoredTree:
    """The entries below a folder of a snapshot, and their nodes, by the path relative to the folder."""

    def __init__(self, snapshot: "Snapshot", folder: bytes) -> None:
        """Raises NotFound, InvalidInput."""
        top = snapshot.require(folder)
        if not snapshot.stat(top).is_folder:
            raise InvalidInput(f"{SCHEME}{snapshot.dataset}/{printable(folder)} is not a folder")
        start = len(folder) + 1 if folder else 0
        self.nodes = {snapshot.path(node)[start:]: node for node in snapshot.walk(top)}
        self.entries = {
            path: replace(Entry.of_snapshot(snapshot, node), path=path) for path, node in self.nodes.items()
        }

    def selected(self, patterns: Patterns) -> Mapping[bytes, Entry]:
        """The entries that the patterns select."""
        return selected(self.entries, patterns)

    def reversed_paths(self) -> Iterator[tuple[bytes, bool]]:
        """(path, is_folder), each folder after its content."""
        return ((path, entry.is_folder) for path, entry in reversed(self.entries.items()))


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

    def has_content(self, path: bytes, extents: Sequence["ExtentRef"]) -> bool:
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


def selected_nodes(snapshot: "Snapshot", top: int, patterns: Patterns) -> "Numbers | None":
    """The nodes from `top` on that the patterns select, and the folders that have them; None for all of them.

    Ascending, of shape (n,).
    """
    import numpy as np

    if not patterns:
        return None
    above_bytes = len(snapshot.path(top)) + 1 if top else 0
    found = {top}
    for node in snapshot.walk(top):
        if patterns.is_wanted(snapshot.path(node)[above_bytes:], snapshot.stat(node).is_folder):
            while node not in found:
                found.add(node)
                node = snapshot.parent(node)
    return np.array(sorted(found), np.int64)
