"""The entries of a folder of a dataset in a fixed order, with their contents. This module starts a thread.

The order depends on paths alone: the files and links of a folder by name, then its folders. So equal datasets give
equal exports, and files that share a base name stand together. While one batch is written, the next one is fetched.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dieselfs.arrays import Numbers
from dieselfs.dataset import Dataset
from dieselfs.limits import CHUNK_TARGET_BYTES, MIB
from dieselfs.snapshot.reader import Snapshot, Stat
from dieselfs_tools.transfers.contents import extents

BATCH_BYTES = 16 * MIB
"""Contents that are fetched at once; a larger file is fetched extent by extent."""

BATCH_FILES = 4096


@dataclass(frozen=True, slots=True)
class Entry:
    """`path`: relative to the exported folder; `content`: of a file, or None if it is read by `EntryReader.extents`."""

    node: int
    path: bytes
    status: Stat
    content: bytes | None = None
    target: bytes = b""


def ordered(snapshot: Snapshot, folder: int) -> Iterator[int]:
    """All nodes below a folder, in the order of an export."""
    pending = [folder]
    while pending:
        node = pending.pop()
        if node != folder:
            yield node
        below = []
        for child in snapshot.children(node):
            if snapshot.stat(child).is_folder:
                below.append(child)
            else:
                yield child
        pending += reversed(below)


class EntryReader:
    """The entries below `folder`, by `entries`; of them those that are `selected`, of shape (n,)."""

    def __init__(self, dataset: Dataset, folder: int, selected: Numbers | None = None) -> None:
        self.snapshot = dataset.snapshot
        self._dataset = dataset
        self._folder = folder
        self._selected = None if selected is None else frozenset(selected.tolist())
        path = self.snapshot.path(folder)
        self._above_bytes = len(path) + 1 if path else 0

    def entries(self) -> Iterator[Entry]:
        """Raises Damaged, Unavailable."""
        with ThreadPoolExecutor(1, "dieselfs-export") as fetching:
            ahead = None
            for batch in self._batches():
                future = fetching.submit(self._fetch, batch)
                if ahead is not None:
                    yield from ahead.result()
                ahead = future
            if ahead is not None:
                yield from ahead.result()

    def extents(self, entry: Entry) -> Iterator[bytes]:
        """The verified bytes of a large file. Raises Damaged, Unavailable."""
        yield from extents(self._dataset, entry.node)

    def _batches(self) -> Iterator[list[Entry]]:
        batch: list[Entry] = []
        batch_bytes = 0
        for node in ordered(self.snapshot, self._folder):
            if self._selected is not None and node not in self._selected:
                continue
            status = self.snapshot.stat(node)
            target = self.snapshot.target(node) if status.is_link else b""
            batch.append(Entry(node, self.snapshot.path(node)[self._above_bytes :], status, None, target))
            if status.is_file and status.size <= CHUNK_TARGET_BYTES:
                batch_bytes += status.size
            if len(batch) >= BATCH_FILES or batch_bytes >= BATCH_BYTES:
                yield batch
                batch, batch_bytes = [], 0
        yield batch

    def _fetch(self, batch: list[Entry]) -> list[Entry]:
        small = [
            entry.node for entry in batch if entry.status.is_file and entry.status.size <= CHUNK_TARGET_BYTES
        ]
        contents = dict(zip(small, self._dataset.get_nodes(small), strict=True)) if small else {}
        return [
            Entry(entry.node, entry.path, entry.status, contents[entry.node])
            if entry.node in contents
            else entry
            for entry in batch
        ]
