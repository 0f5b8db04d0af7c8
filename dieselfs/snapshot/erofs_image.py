"""The EROFS image of a snapshot: its metadata area, and the place of each file in the data area. No I/O.

The image is a function of the snapshot, of `ImageOwner` and of `Serving`; docs/reference/erofs-image.md has the layout.
The metadata area (superblock, inodes, folders, links) is computed here, in columns. The data area is not: an export
writes it, and a mount computes the blocks that the kernel reads.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.columns import U8, U32
from dieselfs.errors import InvalidInput
from dieselfs.limits import KIB
from dieselfs.snapshot.reader import ROOT, Snapshot
from dieselfs.snapshot.subtree import nodes_below

BLOCK_BITS = 12
BLOCK_BYTES = 1 << BLOCK_BITS
IMAGE_BLOCKS_MAX = 1 << 32
"""Block addresses have 32 bits: 16 TiB."""

MAGIC = 0xE0F5E1E2
SUPERBLOCK_OFFSET = 1 * KIB
FIRST_INODE_OFFSET = SUPERBLOCK_OFFSET + 128
NID_BYTES = 32
"""An inode is addressed by its offset in units of this many bytes."""
_INODE_BYTES, _ENTRY_BYTES = 64, 12
_SLOT_BYTES_MIN = 2 * _INODE_BYTES
_EXTENDED_PLAIN, _EXTENDED_INLINE = 1, 1 | 2 << 1
_TYPE_SHIFT = 12
_MODE_BITS_KEPT = 0o170777
_FOLDER, _FILE, _LINK = 0o04, 0o10, 0o12
_ENTRY_TYPES = np.zeros(16, np.uint32)
_ENTRY_TYPES[[_FILE, _FOLDER, _LINK]] = 1, 2, 7
_DOT, _DOTS = ord("."), b".."
_NS = 1_000_000_000
METADATA_GUARD_BLOCKS = 256
"""Unused blocks between the metadata area and the files of an image that is served: 1 MiB, the kernel's read-ahead."""
FILE_GUARD_BLOCKS = 1
"""Unused blocks on each side of a guarded file. One is enough for the kernel to see no sequence of reads."""
_CONTROL_MODE = _FOLDER << _TYPE_SHIFT | 0o555

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
assert _SUPERBLOCK.itemsize == FIRST_INODE_OFFSET - SUPERBLOCK_OFFSET
assert _ENTRY.size == _ENTRY_BYTES
assert _INODE.itemsize == _INODE_BYTES and FIRST_INODE_OFFSET % _INODE_BYTES == 0


_INODES_TOGETHER = 8192
"""Inodes that are made at once: half a MiB, which fits into the cache of a processor."""


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
    the data area, which is that of chunks and offsets in them; `starts`: shape (files,), the offset in the image of
    each, ascending. `opening`: shape (BLOCK_BYTES,), for `Serving`: the block at `opening_offset`, with the control
    folder in the listing of the root; `metadata` has the block without it. Shape (0,) for another image.
    """

    metadata: npt.NDArray[np.uint8]
    nodes: Numbers
    starts: Numbers
    size_bytes: int
    opening: npt.NDArray[np.uint8]
    opening_offset: int


def build_image(
    snapshot: Snapshot, ownership: ImageOwner, folder: int = ROOT, serving: Serving | None = None
) -> ErofsImage:
    """The image of `folder` and everything below it. Takes about 1 us per entry.

    Raises InvalidInput if the image would have more than IMAGE_BLOCKS_MAX blocks.
    """
    tree = _Tree(snapshot, folder, b"" if serving is None else serving.control)
    names = _names_of(tree)
    layout = _place(tree, names)
    files, lengths = _files(tree)
    data_start, guards = layout.end, np.zeros(len(files), np.int64)
    if serving is not None:
        data_start += METADATA_GUARD_BLOCKS * BLOCK_BYTES
        guards = FILE_GUARD_BLOCKS * BLOCK_BYTES * serving.is_guarded[tree.nodes[files]]
    ends = data_start + np.cumsum(lengths + 2 * guards)
    starts = ends - guards - lengths
    size_bytes = int(ends[-1]) if len(ends) else data_start
    if size_bytes > IMAGE_BLOCKS_MAX * BLOCK_BYTES:
        raise InvalidInput(
            f"an EROFS image of {snapshot.dataset} would have {size_bytes} bytes, and the limit is "
            f"{IMAGE_BLOCKS_MAX * BLOCK_BYTES}"
        )
    metadata = np.zeros(layout.end, np.uint8)
    _write_superblock(metadata, tree, size_bytes)
    _write_inodes(metadata, tree, layout, ownership)
    metadata.view(_INODE)["first_block"][layout.inodes[files] // _INODE_BYTES] = starts >> BLOCK_BITS
    _write_names(metadata, tree, names, layout)
    _write_links(metadata, tree, layout)
    opening, opening_offset = np.empty(0, np.uint8), 0
    if tree.control:
        place = int(np.flatnonzero(names.targets[: names.bounds[1]] == tree.control)[0])
        unit = int(np.searchsorted(layout.unit_bounds, place, side="right")) - 1
        opening_offset = int(layout.unit_starts[unit])
        block = metadata[opening_offset : opening_offset + BLOCK_BYTES]
        opening = block.copy()
        block[:] = _without(opening.tobytes(), place - int(layout.unit_bounds[unit]))
    return ErofsImage(metadata, tree.nodes[files], starts, size_bytes, opening, opening_offset)


def _round_up(values: Any, unit: int) -> Any:
    return -(-values // unit) * unit


class _Tree:
    """The columns of the entries of the image, each of shape (n,). An entry is an index into them; entry 0 is the root.

    `nodes`: in the snapshot, ascending, so breadth first: behind the root come the entries in the first folder, those
    in the second, and so on. `folders`: entries, ascending; `ranks`: of each entry among them. `control`: the entry of
    the control folder, 0 without one; its node is the root. `names`: the paths of the snapshot, `..`, and the name of
    the control folder; the name of an entry is a part of them.
    """

    def __init__(self, snapshot: Snapshot, folder: int, control: bytes) -> None:
        self.snapshot = snapshot
        self.nodes: Numbers = np.concatenate([[folder], *nodes_below(snapshot, folder)])
        hidden = snapshot.child(folder, control) if control else -1
        if hidden >= 0:
            self.nodes = np.setdiff1d(self.nodes, np.concatenate([[hidden], *nodes_below(snapshot, hidden)]))
        self.parents = np.searchsorted(self.nodes, snapshot.column("parents")[self.nodes])
        self.parents[0] = 0
        paths = snapshot.column("paths")
        self.names = np.concatenate([paths, np.frombuffer(_DOTS + control, U8)])
        self.control = 0
        if control:
            children = snapshot.children(folder)
            before = bisect_left(children, control, key=snapshot.name)
            self.control = entry = before + 1
            self.nodes = np.insert(self.nodes, entry, folder)
            self.parents = np.insert(self.parents + (self.parents >= entry), entry, 0)
        self.modes = snapshot.column("modes")[self.nodes]
        self.sizes = snapshot.column("sizes")[self.nodes].astype(np.int64)
        self.name_lengths = snapshot.column("name_lengths")[self.nodes].astype(np.int64)
        self.name_starts = snapshot.column("path_ends")[self.nodes].astype(np.int64) - self.name_lengths
        if control:
            self.modes[entry], self.sizes[entry] = _CONTROL_MODE, 0
            self.name_lengths[entry], self.name_starts[entry] = len(control), len(paths) + len(_DOTS)
        self.types = self.modes >> _TYPE_SHIFT
        self.folders = np.flatnonzero(self.types == _FOLDER)
        self.ranks = np.zeros(len(self.nodes), np.int64)
        self.ranks[self.folders] = np.arange(len(self.folders))
        self.has_content = (self.types == _FOLDER) | (self.types == _LINK)
        """Whether the bytes of an entry are in the metadata area."""


@dataclass(frozen=True, eq=False, slots=True)
class _Names:
    """The names in all folders, one folder after the other, each sorted, with `.` and `..`.

    Shape (n,): the entry that a name leads to; where the name begins in `names`, and its bytes. `bounds`: shape
    (folders + 1,), where the names of each folder begin. `names`: as in `_Tree`.
    """

    targets: Numbers
    name_starts: Numbers
    name_lengths: Numbers
    bounds: Numbers
    names: npt.NDArray[np.uint8]


def _names_of(tree: _Tree) -> _Names:
    names, dots_start = tree.names, len(tree.snapshot.column("paths"))
    counts = np.bincount(tree.ranks[tree.parents[1:]], minlength=len(tree.folders))
    bounds = np.concatenate([[0], np.cumsum(counts + 2)])
    children = np.arange(1, len(tree.nodes))
    ranks = tree.ranks[tree.parents[1:]]
    in_folder = children - 1 - (np.cumsum(counts) - counts)[ranks]
    # `.` and `..` come after the names that sort before them, such as `-x` and `.-x`.
    first = names[tree.name_starts[1:]]
    second = names[np.minimum(tree.name_starts[1:] + 1, len(names) - 1)]
    is_before_dot = first < _DOT
    is_before_dots = is_before_dot | ((first == _DOT) & (second < _DOT))
    dot = np.bincount(ranks[is_before_dot], minlength=len(tree.folders))
    dots = np.bincount(ranks[is_before_dots], minlength=len(tree.folders))
    places = bounds[ranks] + in_folder + (in_folder >= dot[ranks]) + (in_folder >= dots[ranks])

    targets = np.empty(bounds[-1], np.int64)
    starts = np.full(bounds[-1], dots_start)
    lengths = np.empty(bounds[-1], np.int64)
    targets[places], starts[places], lengths[places] = children, tree.name_starts[1:], tree.name_lengths[1:]
    targets[bounds[:-1] + dot], lengths[bounds[:-1] + dot] = tree.folders, 1
    targets[bounds[:-1] + dots + 1], lengths[bounds[:-1] + dots + 1] = tree.parents[tree.folders], 2
    return _Names(targets, starts, lengths, bounds, names)


@dataclass(frozen=True, eq=False, slots=True)
class _Layout:
    """The layout of the metadata area, in bytes.

    Shape (n,), of each entry: `inodes`, the offset of its inode; `is_inline`, whether its bytes follow the inode;
    `content_starts` and `content_bytes`, of folders and links. A unit is a block of a folder, or an inline folder:
    `unit_starts`, shape (units,), is its offset; `unit_bounds`, shape (units + 1,), where its names begin.
    """

    inodes: Numbers
    is_inline: npt.NDArray[np.bool_]
    content_starts: Numbers
    content_bytes: Numbers
    unit_starts: Numbers
    unit_bounds: Numbers
    end: int


def _place(tree: _Tree, names: _Names) -> _Layout:
    ends = np.concatenate([[0], np.cumsum(names.name_lengths + _ENTRY_BYTES)])
    content_bytes = np.where(tree.types == _LINK, tree.sizes, 0)
    content_bytes[tree.folders] = np.diff(ends[names.bounds])
    is_inline = tree.has_content & (content_bytes + _INODE_BYTES <= BLOCK_BYTES)
    is_inline[0] = False  # the address of the root must fit into 16 bits, so it is the first of the table

    inodes = np.empty(len(content_bytes), np.int64)
    in_table = np.flatnonzero(~is_inline)
    inodes[in_table] = FIRST_INODE_OFFSET + _INODE_BYTES * np.arange(len(in_table))
    end = _round_up(FIRST_INODE_OFFSET + _INODE_BYTES * len(in_table), BLOCK_BYTES)
    # Slots of 4096, 2048, ... bytes, the largest first: none crosses the border of a block.
    slots = np.maximum(_SLOT_BYTES_MIN, 1 << np.ceil(np.log2(content_bytes + _INODE_BYTES)).astype(np.int64))
    inline = np.flatnonzero(is_inline)
    inline = inline[np.argsort(-slots[inline], kind="stable")]
    slot_ends = end + np.cumsum(slots[inline])
    inodes[inline] = slot_ends - slots[inline]
    end = int(_round_up(slot_ends[-1], BLOCK_BYTES)) if len(inline) else end

    content_starts = np.where(is_inline, inodes + _INODE_BYTES, 0)
    unit_starts: list[int] = []
    unit_names: list[int] = []
    sizes_before = ends.data
    columns = (tree.folders, is_inline[tree.folders], names.bounds[:-1], names.bounds[1:])
    for entry, is_small, first, last in zip(*(column.tolist() for column in columns), strict=True):
        if is_small:
            unit_starts.append(int(content_starts[entry]))
            unit_names.append(first)
            continue
        content_starts[entry] = end
        blocks = list(_blocks(sizes_before, first, last))
        if tree.control and blocks[-1] == last - 1 and names.targets[last - 1] == tree.control:
            blocks[-1] -= 1  # a block of the control folder alone would be empty without it
        for start in blocks:
            unit_starts.append(end)
            unit_names.append(start)
            end += BLOCK_BYTES
        last_block_bytes = int(ends[last] - ends[unit_names[-1]])
        content_bytes[entry] = end - BLOCK_BYTES + last_block_bytes - content_starts[entry]
    for entry in np.flatnonzero((tree.types == _LINK) & ~is_inline).tolist():
        content_starts[entry] = end
        end += _round_up(int(content_bytes[entry]), BLOCK_BYTES)
    bounds = np.array([*unit_names, len(names.targets)])
    return _Layout(inodes, is_inline, content_starts, content_bytes, np.array(unit_starts), bounds, end)


def _blocks(ends: "memoryview[int]", first: int, last: int) -> Iterator[int]:
    """The first entry of each block of a folder: as many entries as fit. `ends`: bytes up to each entry of all."""
    while first < last:
        yield first
        first = bisect_right(ends, ends[first] + BLOCK_BYTES, first, last + 1) - 1


def _files(tree: _Tree) -> tuple[Numbers, Numbers]:
    """The entries of files with bytes, in the order of their first extents, and what each takes in the data area."""
    entries = np.flatnonzero((tree.types == _FILE) & (tree.sizes > 0))
    snapshot = tree.snapshot
    firsts = snapshot.column("firsts")[tree.nodes[entries]]
    order = np.lexsort((snapshot.column("extent_offsets")[firsts], snapshot.column("extent_chunks")[firsts]))
    entries = entries[order]
    return entries, _round_up(tree.sizes[entries], BLOCK_BYTES)


def _write_superblock(metadata: npt.NDArray[np.uint8], tree: _Tree, size_bytes: int) -> None:
    header = tree.snapshot.header
    block = metadata[SUPERBLOCK_OFFSET:FIRST_INODE_OFFSET].view(_SUPERBLOCK)
    block["magic"], block["block_bits"] = MAGIC, BLOCK_BITS
    block["root_nid"] = FIRST_INODE_OFFSET // NID_BYTES
    block["inodes"] = len(tree.nodes)
    block["build_time_s"], block["build_time_ns"] = divmod(header.updated_ns, _NS)
    block["blocks"] = size_bytes // BLOCK_BYTES
    block["uuid"] = np.void(header.digest[:16])
    block["volume_name"] = header.dataset.encode()[:15]


def _write_inodes(
    metadata: npt.NDArray[np.uint8], tree: _Tree, layout: _Layout, ownership: ImageOwner
) -> None:
    subfolders = np.bincount(tree.parents[tree.folders[1:]], minlength=len(tree.nodes))
    subfolders[0] -= tree.control > 0  # listings do not show it
    target, mtimes_ns = metadata.view(_INODE), tree.snapshot.column("mtimes_ns")
    for first in range(0, len(tree.nodes), _INODES_TOGETHER):  # each field is a pass over all of them
        part = slice(first, first + _INODES_TOGETHER)
        nodes, is_inline, starts = tree.nodes[part], layout.is_inline[part], layout.content_starts[part]
        inodes = np.zeros(len(nodes), _INODE)
        inodes["format"] = np.where(is_inline, _EXTENDED_INLINE, _EXTENDED_PLAIN)
        # Without set-user-ID and similar bits: a program of a dataset must not run as the owner of the image.
        inodes["mode"] = tree.modes[part] & _MODE_BITS_KEPT
        inodes["size"] = np.where(tree.has_content[part], layout.content_bytes[part], tree.sizes[part])
        inodes["first_block"] = np.where(is_inline, 0, starts >> BLOCK_BITS)
        inodes["number"] = nodes + 1
        inodes["uid"], inodes["gid"] = ownership.uid, ownership.gid
        inodes["mtime_s"], inodes["mtime_ns"] = np.divmod(mtimes_ns[nodes], _NS)
        inodes["links"] = np.where(tree.types[part] == _FOLDER, 2 + subfolders[part], 1)
        target[layout.inodes[part] // _INODE_BYTES] = inodes
    root = target[layout.inodes[:1] // _INODE_BYTES]
    if ownership.root_mode is not None:
        root["mode"] = _FOLDER << _TYPE_SHIFT | ownership.root_mode
    if ownership.root_uid is not None:
        root["uid"] = ownership.root_uid
    target[layout.inodes[:1] // _INODE_BYTES] = root


def _write_names(metadata: npt.NDArray[np.uint8], tree: _Tree, names: _Names, layout: _Layout) -> None:
    """The names of all folders: in each unit the directory entries, then the names themselves."""
    firsts, counts = layout.unit_bounds[:-1], np.diff(layout.unit_bounds)
    ends = np.cumsum(names.name_lengths)
    before = ends - names.name_lengths
    unit_starts = np.repeat(layout.unit_starts, counts)
    in_unit = np.arange(len(names.targets)) - np.repeat(firsts, counts)
    offsets = _ENTRY_BYTES * np.repeat(counts, counts) + before - np.repeat(before[firsts], counts)
    words, places = metadata.view(U32), (unit_starts + _ENTRY_BYTES * in_unit) // 4
    nids = layout.inodes[names.targets] // NID_BYTES
    words[places], words[places + 1] = nids & 0xFFFF_FFFF, nids >> 32
    words[places + 2] = offsets | _ENTRY_TYPES[tree.types[names.targets]] << 16
    starts = unit_starts + offsets
    order = np.argsort(names.name_lengths.astype(np.uint8), kind="stable")
    bounds = np.flatnonzero(np.diff(names.name_lengths[order], prepend=0)).tolist()
    for first, last in pairwise([*bounds, len(order)]):  # a copy of each name, not of each byte
        chosen = order[first:last]
        length = int(names.name_lengths[chosen[0]])
        _windows(metadata, length)[starts[chosen]] = _windows(names.names, length)[names.name_starts[chosen]]


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
    records, end = b"", _ENTRY_BYTES * len(entries)
    for (nid, _, kind), name in zip(entries, names, strict=True):
        records += _ENTRY.pack(nid, end, kind)
        end += len(name)
    return np.frombuffer((records + b"".join(names)).ljust(len(block), b"\0"), np.uint8)


def _write_links(metadata: npt.NDArray[np.uint8], tree: _Tree, layout: _Layout) -> None:
    snapshot = tree.snapshot
    rows = np.searchsorted(snapshot.column("link_nodes"), tree.nodes[tree.types == _LINK]).tolist()
    starts = layout.content_starts[tree.types == _LINK].tolist()
    targets, ends = snapshot.column("links"), [0, *snapshot.column("link_ends").tolist()]
    for row, start in zip(rows, starts, strict=True):
        first, last = ends[row : row + 2]
        metadata[start : start + last - first] = targets[first:last]
