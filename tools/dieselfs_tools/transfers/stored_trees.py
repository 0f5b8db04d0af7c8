"""The content of a stored folder, by path. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dieselfs.errors import InvalidInput
from dieselfs.names import SCHEME, printable
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.transfers.entries import Entry

if TYPE_CHECKING:
    from dieselfs.arrays import Numbers
    from dieselfs.snapshot.reader import Snapshot


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
        if not patterns:
            return self.entries
        return {
            path: entry for path, entry in self.entries.items() if patterns.is_wanted(path, entry.is_folder)
        }

    def reversed_paths(self) -> Iterator[tuple[bytes, bool]]:
        """(path, is_folder), each folder after its content."""
        return ((path, entry.is_folder) for path, entry in reversed(self.entries.items()))


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
