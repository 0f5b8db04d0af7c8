"""Attributes, names and extents of inodes, from a snapshot. No I/O, and independent of the kernel protocol.

The inode of a node is `node + 1`, so the root is inode 1. An inode is the same file in every daemon that serves the
generation.
"""

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.limits import KIB
from dieselfs.names import CONTROL_FOLDER as CONTROL_FOLDER_NAME
from dieselfs.names import printable
from dieselfs.snapshot.reader import ROOT, ExtentRef, Snapshot

STAT_BLOCK_BYTES = 512
"""Unit of `st_blocks`, whatever the block size."""
IO_BLOCK_BYTES = 4096
FOLDER_BLOCK_BYTES = 256 * KIB
"""The `st_blksize` of a folder. Most programs request this much of a listing per call, instead of 32 KiB."""
ROOT_INODE = ROOT + 1
CONTROL_INODE = 1 << 62
"""The folder with the control files. Its inodes are this number or larger, those of a dataset are smaller."""
CONTROL_FOLDER = CONTROL_FOLDER_NAME.encode()


_WRITE_BITS, _TYPE_BITS = 0o222, 0o170000


class Attributes(NamedTuple):
    """The attributes that `stat` shows. All times are the modification time; owner and group are the same for all."""

    inode: int
    mode: int
    size: int
    mtime_ns: int

    @property
    def blocks(self) -> int:
        return -(-self.size // STAT_BLOCK_BYTES)

    @property
    def io_block_bytes(self) -> int:
        return FOLDER_BLOCK_BYTES if stat.S_ISDIR(self.mode) else IO_BLOCK_BYTES


class ExtentPart(NamedTuple):
    """A part of one read: `length` bytes of `extent`, from `start` in it."""

    extent: ExtentRef
    start: int
    length: int


@dataclass(frozen=True, eq=False, slots=True)
class Siblings:
    """Consecutive entries of one folder, as columns: element `i` of each belongs to entry `i`.

    Without `is_cacheable`, the kernel receives their names only, and looks each one up when it is used.
    """

    inodes: npt.NDArray[np.uint64]
    modes: npt.NDArray[np.uint32]
    sizes: npt.NDArray[np.uint64]
    mtimes_ns: npt.NDArray[np.int64]
    name_lengths: npt.NDArray[np.uint8]
    names: list[bytes]
    is_cacheable: bool = True


class MountCore:
    """Safe to share between threads. Methods raise NotFound for an inode or a name that does not exist, and
    InvalidInput for an operation that the type of the inode does not have."""

    def __init__(
        self,
        snapshot: Snapshot,
        root_mode: int | None = None,
        hides_write_modes: bool = False,
        unlisted: Mapping[bytes, Attributes] | None = None,
    ) -> None:
        """`root_mode`: the access mode of the root, instead of that in the snapshot. `hides_write_modes`: no file is
        shown with write permission. `unlisted`: files of the root that no listing shows, and that are not in the
        snapshot; each hides an entry of its name.
        """
        self.snapshot = snapshot
        self._root_mode = root_mode
        self._node_count = len(snapshot)
        self._hides_write_modes = hides_write_modes
        self._modes = snapshot.column("modes")
        self._sizes = snapshot.column("sizes")
        self._mtimes_ns = snapshot.column("mtimes_ns")
        self._name_lengths = snapshot.column("name_lengths")
        self._path_ends = snapshot.column("path_ends")
        self._paths = snapshot.column("paths")
        self._unlisted = unlisted or {}
        self._hidden = snapshot.find(CONTROL_FOLDER)

    def node(self, inode: int) -> int:
        """The node of an inode. Raises NotFound."""
        node = inode - 1
        if not 0 <= node < self._node_count:
            raise NotFound(f"inode {inode} is not in generation {self.snapshot.generation}")
        return node

    def attributes(self, inode: int) -> Attributes:
        for file in self._unlisted.values():
            if file.inode == inode:
                return file
        status = self.snapshot.stat(self.node(inode))
        if inode == ROOT_INODE and self._root_mode is not None:
            return Attributes(inode, stat.S_IFDIR | self._root_mode, status.size, status.mtime_ns)
        is_changed = self._hides_write_modes and stat.S_ISREG(status.mode)
        mode = status.mode & ~_WRITE_BITS if is_changed else status.mode
        return Attributes(inode, mode, status.size, status.mtime_ns)

    def lookup(self, folder: int, name: bytes) -> int:
        """The inode of `name` in `folder`, also of `.` and `..`; 0 if there is none."""
        if folder == ROOT_INODE and name in self._unlisted:
            return self._unlisted[name].inode
        node = self.node(folder)
        if name == b".":
            return folder
        if name == b"..":
            return self.snapshot.parent(node) + 1
        return self.snapshot.child(node, name) + 1

    def target(self, inode: int) -> bytes:
        """Target of a symbolic link."""
        node = self.node(inode)
        if not stat.S_ISLNK(self.snapshot.mode(node)):
            raise InvalidInput(f"{printable(self.snapshot.path(node))}: not a symbolic link")
        return self.snapshot.target(node)

    # -- folders -----------------------------------------------------------------------------------------

    def child_nodes(self, folder: int) -> range:
        """The nodes in a folder, sorted by name."""
        node = self.node(folder)
        if not stat.S_ISDIR(self.snapshot.mode(node)):
            raise InvalidInput(f"{printable(self.snapshot.path(node))}: not a folder")
        return self.snapshot.children(node)

    def listed(self, nodes: range) -> range:
        """The first run of `nodes`, of one folder, that a listing shows: without the entry CONTROL_FOLDER."""
        if self._hidden in nodes:
            return range(nodes.start, self._hidden) or range(self._hidden + 1, nodes.stop)
        return nodes

    def name_lengths(self, nodes: range) -> npt.NDArray[np.uint8]:
        return self._name_lengths[nodes.start : nodes.stop]

    def dots(self, folder: int) -> Siblings:
        """The entries `.` and `..` of a folder."""
        nodes = np.array([self.node(folder), self.snapshot.parent(self.node(folder))])
        return Siblings(
            (nodes + 1).astype(np.uint64),
            self._modes[nodes],
            self._sizes[nodes],
            self._mtimes_ns[nodes],
            np.array([1, 2], np.uint8),
            [b".", b".."],
        )

    def siblings(self, nodes: range) -> Siblings:
        """The entries of a listing for a run of nodes in one folder; takes no step of Python per field."""
        chosen = slice(nodes.start, nodes.stop)
        lengths = self._name_lengths[chosen]
        # Their paths are contiguous: one copy, then one slice for each name.
        origin, limit = int(self._path_ends[nodes.start - 1]), int(self._path_ends[nodes.stop - 1])
        run: bytes = self._paths[origin:limit].tobytes()
        ends = self._path_ends[chosen].astype(np.int64) - origin
        modes = self._modes[chosen]
        if self._hides_write_modes:
            modes = np.where((modes & _TYPE_BITS) == stat.S_IFREG, modes & ~np.uint32(_WRITE_BITS), modes)
        return Siblings(
            np.arange(nodes.start + 1, nodes.stop + 1, dtype=np.uint64),
            modes,
            self._sizes[chosen],
            self._mtimes_ns[chosen],
            lengths,
            [run[start:end] for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)],
        )

    # -- files -------------------------------------------------------------------------------------------

    def parts(self, inode: int, offset: int, size: int) -> list[ExtentPart]:
        """The parts of a file that answer a read of `size` bytes at `offset`.

        They have exactly `min(size, file size - offset)` bytes, none behind the end. Raises Damaged if the snapshot has
        no extent for a byte, so no read is short.
        """
        node = self.node(inode)
        snapshot = self.snapshot
        if not stat.S_ISREG(snapshot.mode(node)):
            raise InvalidInput(f"{printable(snapshot.path(node))}: not a file")
        end = min(offset + size, snapshot.size(node))
        if offset >= end:
            return []
        parts = []
        position = offset
        for extent in snapshot.extents(node, offset, end):
            start = position - extent.place
            length = min(extent.length - start, end - position)
            if start < 0 or length <= 0:
                break
            parts.append(ExtentPart(extent, start, length))
            position += length
        if position != end:
            raise Damaged(
                f"{printable(snapshot.path(node))}: offset {position}: the snapshot has no extent for it"
            )
        return parts

    def chunks_ahead(self, inode: int, offset: int, distance_bytes: int) -> list[int]:
        """The chunks that hold the `distance_bytes` of a file from `offset` on, in order."""
        node = self.node(inode)
        end = min(offset + distance_bytes, self.snapshot.size(node))
        return [extent.chunk for extent in self.snapshot.extents(node, offset, end)] if offset < end else []
