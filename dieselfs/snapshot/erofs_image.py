"""The EROFS image of a snapshot: its metadata area, and the place of each file in the data area. No I/O.

The image is a function of the snapshot, of `ImageOwner` and of `Serving`; docs/reference/erofs-image.md has the layout.
The metadata area (superblock, inodes, folders, links) is computed here, in columns: each part of it alone, when it is
needed. The data area is not: an export writes it, and a mount computes the blocks that the kernel reads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes, Numbers
from dieselfs.columns import U8, U32, starts_of
from dieselfs.errors import InvalidInput
from dieselfs.limits import MIB
from dieselfs.snapshot.erofs_files import BLOCK_BITS, BLOCK_BYTES, Files
from dieselfs.snapshot.erofs_layout import (
    ENTRY_BYTES,
    FIRST_INODE_OFFSET,
    INODE_BYTES,
    SUPERBLOCK_OFFSET,
    Layout,
)
from dieselfs.snapshot.erofs_tree import AT_ONCE, DOT, DOTS, FILE, FOLDER, LINK, TYPE_SHIFT, Tree
from dieselfs.snapshot.reader import ROOT, Snapshot

IMAGE_BLOCKS_MAX = 1 << 32
"""Block addresses have 32 bits: 16 TiB."""

MAGIC = 0xE0F5E1E2
NID_BYTES = 32
"""An inode is addressed by its offset in units of this many bytes."""
_EXTENDED_PLAIN, _EXTENDED_INLINE = 1, 1 | 2 << 1
_MODE_BITS_KEPT = 0o170777
_ENTRY_TYPES = np.zeros(16, np.uint32)
_ENTRY_TYPES[[FILE, FOLDER, LINK]] = 1, 2, 7
_NS = 1_000_000_000
METADATA_GUARD_BLOCKS = 256
"""Unused blocks between the metadata area and the files of an image that is served: 1 MiB, the kernel's read-ahead."""
_CONTROL_MODE = FOLDER << TYPE_SHIFT | 0o555

_ENTRY = Struct("<QHBx")
"""An entry of a folder: nid, offset of the name in the block, type."""
_SUPERBLOCK = np.dtype(
    [
        ("magic", "<u4"),
        ("checksum", "<u4"),
        ("feature_compat", "<u4"),
        ("block_bits", "u1"),
        ("extension_slots", "u1"),
        ("root_nid", "<u2"),
        ("inodes", "<u8"),
        ("build_time_s", "<u8"),
        ("build_time_ns", "<u4"),
        ("blocks", "<u4"),
        ("metadata_block", "<u4"),
        ("xattr_block", "<u4"),
        ("uuid", "V16"),
        ("volume_name", "S16"),
        ("rest", "V48"),
    ]
)
_INODE = np.dtype(
    [
        ("format", "<u2"),
        ("xattrs", "<u2"),
        ("mode", "<u2"),
        ("reserved", "<u2"),
        ("size", "<u8"),
        ("first_block", "<u4"),
        ("number", "<u4"),
        ("uid", "<u4"),
        ("gid", "<u4"),
        ("mtime_s", "<i8"),
        ("mtime_ns", "<u4"),
        ("links", "<u4"),
        ("rest", "V16"),
    ]
)
_WHOLE_INODE = np.dtype(f"V{INODE_BYTES}")
"""The same: NumPy copies it whole, which takes a tenth of the time of field by field."""
assert _SUPERBLOCK.itemsize == FIRST_INODE_OFFSET - SUPERBLOCK_OFFSET
assert _ENTRY.size == ENTRY_BYTES
assert _INODE.itemsize == INODE_BYTES

PART_BYTES = 1 * MIB
"""The metadata area is computed, and pushed, in parts of this size: 16,384 inodes."""


@dataclass(frozen=True, slots=True)
class ImageOwner:
    """Owner and group of all entries; `root_mode`: permission bits of the root instead of the snapshot's; `root_uid`:
    another owner of the root.
    """

    uid: int
    gid: int
    root_mode: int | None = None
    root_uid: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Serving:
    """What an image has that a mount serves block by block.

    `control`: the name of an empty folder in the root, to mount on, which hides an entry of the snapshot with this
    name; `is_guarded`: shape (nodes of the snapshot,), the files with unused blocks around them, and so out of the
    reach of the kernel's read-ahead.
    """

    control: bytes
    is_guarded: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class ErofsImage:
    """An image. Files without bytes have no place in it; the gaps behind files are zeros.

    `metadata`: shape (n,), uint8, the bytes from offset 0 to the data area; `nodes`: shape (files,), in the order of
    the data area, which is that of chunks and offsets in them; `blocks`: shape (files,), the block of the image at
    which each begins, ascending; `first_blocks`: the same by node, shape (nodes of the snapshot,), or (0,) for an image
    that an earlier version has stored. `opening`: shape (BLOCK_BYTES,), for `Serving`: the block at `opening_offset`,
    with the control folder in the listing of the root; `metadata` has the block without it. Shape (0,) for another
    image.

    A range of `metadata` has its bytes once `has(first, end)` is true, which takes no time; `fill(first, end)` computes
    what is missing. Both are for any thread.
    """

    metadata: npt.NDArray[np.uint8]
    nodes: Nodes
    blocks: Nodes
    first_blocks: Nodes
    size_bytes: int
    opening: npt.NDArray[np.uint8]
    opening_offset: int
    has: Callable[[int, int], bool] = lambda first, end: True
    fill: Callable[[int, int], None] = lambda first, end: None

    @property
    def starts(self) -> Numbers:
        """The offsets in the image, of `blocks`; computed."""
        return self.blocks.astype(np.int64) * BLOCK_BYTES


def _zeros(count: int) -> npt.NDArray[np.uint8]:
    return np.zeros(count, np.uint8)


class ImagePlan:
    """The image of `folder` and everything below it, before it is written. Memory is needed for folders, links, chunks
    and blocks of entries, not for each entry. Safe to share between threads.
    """

    def __init__(
        self, snapshot: Snapshot, ownership: ImageOwner, folder: int = ROOT, serving: Serving | None = None
    ) -> None:
        """Raises InvalidInput if the image would have more than IMAGE_BLOCKS_MAX blocks."""
        self.snapshot, self.ownership, self.serving = snapshot, ownership, serving
        self._tree = Tree(snapshot, folder, b"" if serving is None else serving.control)
        self._layout = Layout(self._tree)
        self._files = Files(self._tree, None if serving is None else serving.is_guarded)
        self.metadata_bytes, self.files = self._layout.end, self._files.count
        guard_blocks = METADATA_GUARD_BLOCKS if serving is not None else 0
        self._data_block = self._layout.end // BLOCK_BYTES + guard_blocks
        self.size_bytes = (self._data_block + self._files.total_blocks) * BLOCK_BYTES
        if self.size_bytes > IMAGE_BLOCKS_MAX * BLOCK_BYTES:
            raise InvalidInput(
                f"an EROFS image of {snapshot.dataset} would have {self.size_bytes} bytes, and the limit is "
                f"{IMAGE_BLOCKS_MAX * BLOCK_BYTES}"
            )
        self.opening_offset, self._control_place = 0, -1
        if self._tree.control:
            layout, place = self._layout, self._tree.control - 1
            for dot in self._tree.dots[0].tolist():
                place += place >= dot
            unit = int(np.searchsorted(layout.unit_bounds, place, side="right")) - 1
            self.opening_offset = int(layout.units.all_starts[unit])
            self._control_place = place - int(layout.unit_bounds[unit])

    def write(self, zeros: Callable[[int], npt.NDArray[np.uint8]] = _zeros) -> ErofsImage:
        """The whole image. `zeros` gives the memory of the metadata and then of two columns of files, of this many
        bytes: a mapped file, if the image is large. Raises the errors of `zeros`.
        """
        memory = zeros(self.metadata_bytes + 2 * U32.itemsize * self.files)
        metadata = memory[: self.metadata_bytes]
        nodes, blocks = memory[self.metadata_bytes :].view(U32).reshape(2, self.files)
        first_blocks = np.zeros(len(self.snapshot), U32)
        self.place_files(nodes, blocks, first_blocks)
        for first in range(0, self.metadata_bytes, PART_BYTES):
            end = min(first + PART_BYTES, self.metadata_bytes)
            self.write_part(metadata[first:end], first, first_blocks)
        opening, offset = self.opening(first_blocks), self.opening_offset
        return ErofsImage(metadata, nodes, blocks, first_blocks, self.size_bytes, opening, offset)

    def place_files(self, nodes: Nodes, blocks: Nodes, first_blocks: Nodes) -> None:
        """Fill these columns of the image; `first_blocks` has zeros."""
        self._files.place(nodes, blocks, first_blocks, self._data_block)

    def opening(self, first_blocks: Nodes) -> npt.NDArray[np.uint8]:
        """`ErofsImage.opening`."""
        block = _zeros(BLOCK_BYTES if self._control_place >= 0 else 0)
        if len(block):
            self._write_part(block, self.opening_offset, first_blocks)
        return block

    def write_part(self, part: npt.NDArray[np.uint8], first: int, first_blocks: Nodes) -> None:
        """Write a part of the metadata area, from `first` on, into zeros. Its borders are multiples of BLOCK_BYTES.
        Takes about 0.1 us of processor time per entry.
        """
        self._write_part(part, first, first_blocks)
        if self._control_place >= 0 and first <= self.opening_offset < first + len(part):
            block = part[self.opening_offset - first :][:BLOCK_BYTES]
            block[:] = _without(block.tobytes(), self._control_place)

    def _write_part(self, part: npt.NDArray[np.uint8], first: int, first_blocks: Nodes) -> None:
        tree, layout, end = self._tree, self._layout, first + len(part)
        if not first:
            _write_superblock(part, tree, self.size_bytes)
        place, entries, rows = layout.of_table(first, end)
        if len(entries):
            table = part[place - first :][: INODE_BYTES * len(entries)].view(_INODE)
            _write_inodes(table, tree, layout, self.ownership, entries, rows, first_blocks)
        places, entries, rows = layout.of_slots(first, end)
        if len(entries):
            inodes = np.zeros(len(entries), _INODE)
            _write_inodes(inodes, tree, layout, self.ownership, entries, rows, first_blocks)
            part.view(_WHOLE_INODE)[(places - first) // INODE_BYTES] = inodes.view(_WHOLE_INODE)
        _write_names(part, first, tree, layout)
        _write_links(part, first, tree, layout)


def _write_superblock(part: npt.NDArray[np.uint8], tree: Tree, size_bytes: int) -> None:
    header = tree.snapshot.header
    block = part[SUPERBLOCK_OFFSET:FIRST_INODE_OFFSET].view(_SUPERBLOCK)
    block["magic"], block["block_bits"] = MAGIC, BLOCK_BITS
    block["root_nid"] = FIRST_INODE_OFFSET // NID_BYTES
    block["inodes"] = tree.count
    block["build_time_s"], block["build_time_ns"] = divmod(header.updated_ns, _NS)
    block["blocks"] = size_bytes // BLOCK_BYTES
    block["uuid"] = np.void(header.digest[:16])
    block["volume_name"] = header.dataset.encode()[:15]


def _write_inodes(
    inodes: npt.NDArray[np.void],
    tree: Tree,
    layout: Layout,
    ownership: ImageOwner,
    entries: Numbers,
    rows: Numbers,
    first_blocks: Nodes,
) -> None:
    """The inodes of ascending entries, into zeros; `rows`: those of them that are contents."""
    snapshot, nodes = tree.snapshot, tree.nodes(entries)
    # Without set-user-ID and similar bits: a program of a dataset must not run as the owner of the image.
    inodes["mode"] = snapshot.column("modes")[nodes] & _MODE_BITS_KEPT
    inodes["format"], inodes["links"] = _EXTENDED_PLAIN, 1
    inodes["size"] = snapshot.column("sizes")[nodes]
    inodes["first_block"] = first_blocks[nodes]
    inodes["number"] = nodes + 1
    inodes["uid"], inodes["gid"] = ownership.uid, ownership.gid
    inodes["mtime_s"], inodes["mtime_ns"] = np.divmod(snapshot.column("mtimes_ns")[nodes], _NS)
    found = layout.contents[rows]
    places, is_inline = np.searchsorted(entries, found), layout.is_inline[rows]
    contents = inodes[places]
    contents["format"][is_inline] = _EXTENDED_INLINE
    contents["size"] = layout.content_bytes[rows]
    contents["first_block"] = np.where(is_inline, 0, layout.content_starts[rows] >> BLOCK_BITS)
    is_folder = contents["mode"] >> TYPE_SHIFT == FOLDER
    ranks = np.searchsorted(tree.folders, found[is_folder])
    contents["links"][is_folder] = 2 + tree.subfolders[ranks]
    if tree.control:
        contents["mode"][found == tree.control] = _CONTROL_MODE
    if ownership.root_mode is not None:
        contents["mode"][found == 0] = FOLDER << TYPE_SHIFT | ownership.root_mode
    if ownership.root_uid is not None:
        contents["uid"][found == 0] = ownership.root_uid
    inodes[places] = contents


def _write_names(metadata: npt.NDArray[np.uint8], begin: int, tree: Tree, layout: Layout) -> None:
    """The names of the folders in a part of the metadata that begins at `begin`: in each unit the directory entries,
    then the names themselves.
    """
    snapshot, words = tree.snapshot, metadata.view(U32)
    units = layout.units.between(begin, begin + len(metadata))
    all_counts = layout.unit_bounds[units + 1] - layout.unit_bounds[units]
    ends, last = np.cumsum(all_counts), 0
    while last < len(units):
        # A unit has no more than _NAMES_OF_BLOCK_MAX names.
        done, first = int(ends[last - 1]) if last else 0, last
        last = max(int(np.searchsorted(ends, done + AT_ONCE, side="right")), first + 1)
        some, counts = units[first:last], all_counts[first:last]
        names = tree.names(layout.unit_bounds[some], counts)
        unit_starts = np.repeat(layout.units.all_starts[some] - begin, counts)
        in_unit = np.arange(len(names.targets)) - np.repeat(starts_of(counts), counts)
        before = starts_of(names.lengths)
        offsets = (
            ENTRY_BYTES * np.repeat(counts, counts) + before - np.repeat(before[starts_of(counts)], counts)
        )
        places = (unit_starts + ENTRY_BYTES * in_unit) // 4
        nids = layout.inodes(names.targets) // NID_BYTES
        words[places], words[places + 1] = nids & 0xFFFF_FFFF, nids >> 32
        words[places + 2] = offsets | _ENTRY_TYPES[tree.types(names.nodes)] << 16
        starts = unit_starts + offsets
        metadata[starts[names.is_dot]] = DOT
        for place in range(len(DOTS)):
            metadata[starts[names.is_dots] + place] = DOT
        is_copied = ~names.is_dot & ~names.is_dots
        if tree.control:
            is_copied &= names.targets != tree.control
            for start in starts[names.is_of(tree.control)].tolist():
                metadata[start : start + len(tree.control_name)] = np.frombuffer(tree.control_name, U8)
        copied = np.flatnonzero(is_copied)
        ends = snapshot.column("path_ends")[names.nodes[copied]].astype(np.int64)
        _copy(
            snapshot.column("paths"),
            ends - names.lengths[copied],
            metadata,
            starts[copied],
            names.lengths[copied],
        )


def _copy(
    source: npt.NDArray[np.uint8],
    places: Numbers,
    target: npt.NDArray[np.uint8],
    starts: Numbers,
    lengths: Numbers,
) -> None:
    """Copy pieces of at most 255 bytes each, whole, not byte by byte."""
    order = np.argsort(lengths.astype(np.uint8), kind="stable")
    bounds = np.flatnonzero(np.diff(lengths[order], prepend=0)).tolist()
    for first, last in pairwise([*bounds, len(order)]):
        chosen = order[first:last]
        length = int(lengths[chosen[0]])
        _windows(target, length)[starts[chosen]] = _windows(source, length)[places[chosen]]


def _windows(data: npt.NDArray[np.uint8], length: int) -> npt.NDArray[np.void]:
    """The `length` bytes from each place on: shape (places,); no copy."""
    return np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))


def _without(block: bytes, place: int) -> npt.NDArray[np.uint8]:
    """A block of a folder without the entry at `place`."""
    entries = list(_ENTRY.iter_unpack(block[: _ENTRY.unpack_from(block)[1]]))
    starts = [start for _, start, _ in entries]
    ends = [*starts[1:], len(block)]
    names = [block[start:end].rstrip(b"\0") for start, end in zip(starts, ends, strict=True)]
    del entries[place], names[place]
    records, end = b"", ENTRY_BYTES * len(entries)
    for (nid, _, kind), name in zip(entries, names, strict=True):
        records += _ENTRY.pack(nid, end, kind)
        end += len(name)
    return np.frombuffer((records + b"".join(names)).ljust(len(block), b"\0"), np.uint8)


def _write_links(metadata: npt.NDArray[np.uint8], begin: int, tree: Tree, layout: Layout) -> None:
    snapshot, found = tree.snapshot, layout.links.between(begin, begin + len(metadata))
    rows = np.searchsorted(snapshot.column("link_nodes"), tree.nodes(tree.links[found])).tolist()
    starts = (layout.links.all_starts[found] - begin).tolist()
    targets, ends = snapshot.column("links"), snapshot.column("link_ends")
    for row, start in zip(rows, starts, strict=True):
        first, last = int(ends[row - 1]) if row else 0, int(ends[row])
        metadata[start : start + last - first] = targets[first:last]
