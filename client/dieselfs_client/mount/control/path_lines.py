"""A long list of paths as the text of a file, made when it is read. No I/O."""

import numpy as np
import numpy.typing as npt

from dieselfs.snapshot.reader import Snapshot

LINES_PER_BLOCK = 1024
"""The offset of each block of this many lines is kept, instead of the offset of each line."""
NEWLINE, NUL = b"\n", b"\0"
SCAN_BYTES = 1 << 20


class PathLines:
    """The stored paths of files, in order, byte for byte, each with `terminator` behind it.

    Only the nodes are kept; the text is made when it is read (about 0.2 us per line).
    """

    def __init__(self, snapshot: Snapshot, nodes: npt.NDArray[np.uint32], terminator: bytes) -> None:
        """Takes about 10 ns per line. With NEWLINE as the terminator, the caller checks the paths with `unwritable`."""
        self._snapshot = snapshot
        self._nodes = nodes
        self._terminator = terminator
        starts = range(0, len(nodes), LINES_PER_BLOCK)
        sizes = [int(_line_bytes(snapshot, nodes[start : start + LINES_PER_BLOCK]).sum()) for start in starts]
        self._block_ends = np.cumsum(sizes, dtype=np.int64)
        self.size_bytes = sum(sizes)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """`size_bytes` of the text from `offset` on, fewer at its end."""
        end = min(offset + size_bytes, self.size_bytes)
        if offset >= end:
            return b""
        first, last = np.searchsorted(self._block_ends, (offset, end - 1), side="right").tolist()
        origin = int(self._block_ends[first - 1]) if first else 0
        nodes = self._nodes[first * LINES_PER_BLOCK : (last + 1) * LINES_PER_BLOCK]
        text = self._terminator.join([*self._snapshot.path_many(nodes), b""])
        return text[offset - origin : end - origin]


def _line_bytes(snapshot: Snapshot, nodes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """The length of each path and its terminator. No file is node 0, so each has a path before it."""
    ends = snapshot.column("path_ends").view(np.int64)
    return ends[nodes] - ends[nodes.astype(np.int64) - 1] + 1


def unwritable(snapshot: Snapshot, nodes: npt.NDArray[np.uint32]) -> bytes | None:
    """One of these paths that contains a newline; None if there is none."""
    paths = snapshot.column("paths")
    for start in range(0, len(paths), SCAN_BYTES):
        breaks = start + np.flatnonzero(paths[start : start + SCAN_BYTES] == ord(NEWLINE))
        if len(breaks):
            owners = np.searchsorted(snapshot.column("path_ends"), breaks, side="right")
            found = np.flatnonzero(np.isin(nodes, owners))
            if len(found):
                return snapshot.path(int(nodes[found[0]]))
    return None
