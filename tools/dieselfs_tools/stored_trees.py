"""The content of a stored folder, by path. No I/O."""

from dataclasses import replace
from typing import TYPE_CHECKING

from dieselfs.errors import InvalidInput
from dieselfs.names import SCHEME, printable
from dieselfs_tools.entries import Entry

if TYPE_CHECKING:
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
