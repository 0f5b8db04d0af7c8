"""The EROFS image of a snapshot: its metadata area, and the place of each file in the data area. No I/O.

The image is a function of the snapshot, of `ImageOwner` and of `Serving`; docs/reference/erofs-image.md has the layout.
The metadata area (superblock, inodes, folders, links) is computed here, in columns. The data area is not: an export
writes it, and a mount computes the blocks that the kernel reads.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.columns import I64, U8, U32, starts_of
from dieselfs.errors import InvalidInput
from dieselfs.limits import KIB
from dieselfs.snapshot.erofs_tree import AT_ONCE, DOT, DOTS, FILE, FOLDER, LINK, TYPE_SHIFT, Tree, parts
from dieselfs.snapshot.reader import ROOT, Snapshot

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
_MODE_BITS_KEPT = 0o170777
_ENTRY_TYPES = np.zeros(16, np.uint32)
_ENTRY_TYPES[[FILE, FOLDER, LINK]] = 1, 2, 7
_NS = 1_000_000_000
METADATA_GUARD_BLOCKS = 256
"""Unused blocks between the metadata area and the files of an image that is served: 1 MiB, the kernel's read-ahead."""
FILE_GUARD_BLOCKS = 1
"""Unused blocks on each side of a guarded file. One is enough for the kernel to see no sequence of reads."""
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
_WHOLE_INODE = np.dtype(f"V{_INODE_BYTES}")
"""The same: NumPy copies it whole, which takes a tenth of the time of field by field."""
assert _SUPERBLOCK.itemsize == FIRST_INODE_OFFSET - SUPERBLOCK_OFFSET
assert _ENTRY.size == _ENTRY_BYTES
assert _INODE.itemsize == _INODE_BYTES and FIRST_INODE_OFFSET % _INODE_BYTES == 0


_NAMES_OF_BLOCK_MAX = BLOCK_BYTES // (_ENTRY_BYTES + 1)
_FILES_AT_ONCE = 1 << 16
"""Files that are put into the order of their chunks at a time; more only if one chunk has more."""


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


def _zeros(count: int) -> npt.NDArray[np.uint8]:
    return np.zeros(count, np.uint8)


class ImagePlan:
    """The image of `folder` and everything below it, before it is written. Memory is needed for folders, links, chunks
    and blocks of entries, not for each entry.
    """

    def __init__(
        self, snapshot: Snapshot, ownership: ImageOwner, folder: int = ROOT, serving: Serving | None = None
    ) -> None:
        """Raises InvalidInput if the image would have more than IMAGE_BLOCKS_MAX blocks."""
        self._ownership = ownership
        self._tree = Tree(snapshot, folder, b"" if serving is None else serving.control)
        self._layout = _place(self._tree, snapshot)
        self._files = _Files(self._tree, None if serving is None else serving.is_guarded)
        self._data_start = self._layout.end + METADATA_GUARD_BLOCKS * BLOCK_BYTES * (serving is not None)
        self.size_bytes = self._data_start + self._files.total_bytes
        if self.size_bytes > IMAGE_BLOCKS_MAX * BLOCK_BYTES:
            raise InvalidInput(
                f"an EROFS image of {snapshot.dataset} would have {self.size_bytes} bytes, and the limit is "
                f"{IMAGE_BLOCKS_MAX * BLOCK_BYTES}"
            )

    def write(self, zeros: Callable[[int], npt.NDArray[np.uint8]] = _zeros) -> ErofsImage:
        """Takes about 0.2 us of processor time per entry. `zeros` gives the memory of all columns, of this many bytes:
        a mapped file, if the image is large; it begins with the metadata. Raises the errors of `zeros`.
        """
        tree, layout, files = self._tree, self._layout, self._files
        memory = zeros(layout.end + 2 * I64.itemsize * files.count)
        metadata = memory[: layout.end]
        nodes, starts = memory[layout.end :].view(I64).reshape(2, files.count)
        _write_superblock(metadata, tree, self.size_bytes)
        _write_inodes(metadata, tree, layout, self._ownership)
        _write_names(metadata, tree, layout)
        _write_links(metadata, tree, layout)
        files.write(metadata, layout, nodes, starts, self._data_start)
        opening, opening_offset = np.empty(0, np.uint8), 0
        if tree.control:
            names = tree.names(0, int(tree.name_bounds[1]))
            place = int(np.flatnonzero(names.is_of(tree.control))[0])
            unit = int(np.searchsorted(layout.unit_bounds, place, side="right")) - 1
            opening_offset = int(layout.unit_starts[unit])
            block = metadata[opening_offset : opening_offset + BLOCK_BYTES]
            opening = block.copy()
            block[:] = _without(opening.tobytes(), place - int(layout.unit_bounds[unit]))
        return ErofsImage(metadata, nodes, starts, self.size_bytes, opening, opening_offset)


def _round_up(values: Any, unit: int) -> Any:
    return -(-values // unit) * unit


@dataclass(frozen=True, eq=False, slots=True)
class _Layout:
    """The layout of the metadata area, in bytes.

    `contents`: the folders and links, ascending; shape (contents,): `is_inline`, whether the bytes follow the inode,
    `content_starts` and `content_bytes`. `inline`, `inline_inodes`: the inline ones, and the offsets of their inodes. A
    unit is a block of a folder, or an inline folder: `unit_starts`, shape (units,), is its offset; `unit_bounds`, shape
    (units + 1,), where its names begin.
    """

    contents: Numbers
    is_inline: npt.NDArray[np.bool_]
    content_starts: Numbers
    content_bytes: Numbers
    inline: Numbers
    inline_inodes: Numbers
    unit_starts: Numbers
    unit_bounds: Numbers
    end: int

    def inodes(self, entries: Numbers) -> Numbers:
        """The offsets of the inodes of these entries: shape (n,)."""
        bounds = int(entries.min(initial=1 << 62)), int(entries.max(initial=0)) + 1
        skipped, last = np.searchsorted(self.inline, bounds).tolist()
        if skipped == last:  # mostly: few entries are inline
            inodes: Numbers = FIRST_INODE_OFFSET + _INODE_BYTES * (entries - skipped)
            return inodes
        before = np.searchsorted(self.inline, entries)
        inodes = FIRST_INODE_OFFSET + _INODE_BYTES * (entries - before)
        if len(self.inline):
            before = np.minimum(before, len(self.inline) - 1)
            inodes = np.where(self.inline[before] == entries, self.inline_inodes[before], inodes)
        return inodes


def _place(tree: Tree, snapshot: Snapshot) -> _Layout:
    contents = np.sort(np.concatenate([tree.folders, tree.links]))
    content_bytes = np.empty(len(contents), np.int64)
    places, names = np.searchsorted(contents, tree.folders), np.diff(tree.name_bounds)
    content_bytes[places] = tree.name_bytes + _ENTRY_BYTES * names
    link_places = np.searchsorted(contents, tree.links)
    content_bytes[link_places] = snapshot.column("sizes")[tree.nodes(tree.links)]
    is_inline = content_bytes + _INODE_BYTES <= BLOCK_BYTES
    is_inline[0] = False  # the address of the root must fit into 16 bits, so it is the first of the table

    end = _round_up(FIRST_INODE_OFFSET + _INODE_BYTES * (tree.count - int(is_inline.sum())), BLOCK_BYTES)
    # Slots of 4096, 2048, ... bytes, the largest first: none crosses the border of a block.
    slots = np.maximum(_SLOT_BYTES_MIN, 1 << np.ceil(np.log2(content_bytes + _INODE_BYTES)).astype(np.int64))
    inline = np.flatnonzero(is_inline)
    inline = inline[np.argsort(-slots[inline], kind="stable")]
    slot_ends = end + np.cumsum(slots[inline])
    content_starts = np.zeros(len(contents), np.int64)
    content_starts[inline] = slot_ends - slots[inline] + _INODE_BYTES
    end = int(_round_up(slot_ends[-1], BLOCK_BYTES)) if len(inline) else end

    unit_starts, unit_names, blocks = array("q"), array("q"), _Blocks(tree)
    columns = (places, is_inline[places], tree.name_bounds[:-1], tree.name_bounds[1:])
    for place, is_small, first, last in zip(*(column.tolist() for column in columns), strict=True):
        if is_small:
            unit_starts.append(int(content_starts[place]))
            unit_names.append(first)
            continue
        content_starts[place] = end
        firsts, last_block_bytes = blocks.of(first, last)
        for start in firsts:
            unit_starts.append(end)
            unit_names.append(start)
            end += BLOCK_BYTES
        content_bytes[place] = end - BLOCK_BYTES + last_block_bytes - content_starts[place]
    for place in link_places[~is_inline[link_places]].tolist():
        content_starts[place] = end
        end += _round_up(int(content_bytes[place]), BLOCK_BYTES)
    return _Layout(
        contents,
        is_inline,
        content_starts,
        content_bytes,
        contents[is_inline],
        content_starts[is_inline] - _INODE_BYTES,
        np.array(unit_starts),
        np.array([*unit_names, tree.name_bounds[-1]]),
        end,
    )


class _Blocks:
    """The blocks of folders, which are asked for in their order."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._first = self._end = 0  # of the names whose ends are known
        self._ends = memoryview(b"")

    def of(self, first: int, last: int) -> tuple[list[int], int]:
        """The first name of each block of the folder that has the names from `first` up to `last`, and the bytes in the
        last block. Each has as many names as fit.
        """
        blocks = []
        while first < last:
            self._know(first)
            blocks.append(first)
            ends, place = self._ends, first - self._first
            stop = min(last, self._end) - self._first
            first = self._first + bisect_right(ends, ends[place] + BLOCK_BYTES, place, stop + 1) - 1
        if self._tree.control and blocks[-1] == last - 1:
            # A block of the control folder alone would be empty without it.
            blocks[-1] -= bool(self._tree.names(last - 1, last).is_of(self._tree.control)[0])
        return blocks, self._ends[last - self._first] - self._ends[blocks[-1] - self._first]

    def _know(self, first: int) -> None:
        """Have the ends of the names in a block from `first` on, and of the name before it."""
        total = int(self._tree.name_bounds[-1])
        if self._end < min(first + _NAMES_OF_BLOCK_MAX, total):
            self._first, self._end = max(first - 1, 0), min(first + AT_ONCE, total)
            lengths = self._tree.names(self._first, self._end).lengths + _ENTRY_BYTES
            self._ends = np.concatenate([[0], np.cumsum(lengths)]).data


class _Files:
    """The files with bytes. `count` of them; `total_bytes`: what they take in the data area."""

    def __init__(self, tree: Tree, is_guarded: npt.NDArray[np.bool_] | None) -> None:
        self._tree, self._is_guarded = tree, is_guarded
        self._by_chunk = np.zeros(tree.snapshot.chunk_count, np.int64)
        self.total_bytes = 0
        for _, nodes in self._parts():
            self._by_chunk += np.bincount(self._chunks(nodes), minlength=len(self._by_chunk))
            lengths, guards = self._lengths(nodes)
            self.total_bytes += int((lengths + 2 * guards).sum())
        self.count = int(self._by_chunk.sum())

    def _parts(self) -> Iterator[tuple[Numbers, Numbers]]:
        """Entries and nodes."""
        sizes = self._tree.snapshot.column("sizes")
        for first, end in parts(self._tree.count, _FILES_AT_ONCE):
            entries = np.arange(first, end)
            nodes = self._tree.nodes(entries)
            has_bytes = (self._tree.types(nodes) == FILE) & (sizes[nodes] > 0)
            yield entries[has_bytes], nodes[has_bytes]

    def _chunks(self, nodes: Numbers) -> npt.NDArray[np.uint32]:
        snapshot = self._tree.snapshot
        chunks: npt.NDArray[np.uint32] = snapshot.column("extent_chunks")[snapshot.column("firsts")[nodes]]
        return chunks

    def _lengths(self, nodes: Numbers) -> tuple[Numbers, Numbers]:
        """The bytes that these files take, and those of the guard on each side."""
        lengths = _round_up(self._tree.snapshot.column("sizes")[nodes].astype(np.int64), BLOCK_BYTES)
        if self._is_guarded is None:
            return lengths, np.zeros(len(nodes), np.int64)
        return lengths, FILE_GUARD_BLOCKS * BLOCK_BYTES * self._is_guarded[nodes]

    def write(
        self,
        metadata: npt.NDArray[np.uint8],
        layout: _Layout,
        nodes: Numbers,
        starts: Numbers,
        data_start: int,
    ) -> None:
        """Place the files in the order of their first extents; `nodes` and `starts` are those of the image."""
        snapshot, free = self._tree.snapshot, starts_of(self._by_chunk)
        for (
            entries,
            found,
        ) in self._parts():  # by chunk first; the offsets in chunks take the place of the starts
            chunks = self._chunks(found)
            order = np.argsort(chunks, kind="stable")
            counts = np.bincount(chunks, minlength=len(free))
            places = np.repeat(free - starts_of(counts), counts) + np.arange(len(order))
            nodes[places] = entries[order]
            starts[places] = snapshot.column("extent_offsets")[snapshot.column("firsts")[found[order]]]
            free += counts
        first_blocks = metadata.view(_INODE)["first_block"]
        for first, end in self._whole_chunks():
            entries = nodes[first:end]
            chunks = self._chunks(self._tree.nodes(entries))
            entries = entries[np.lexsort((starts[first:end], chunks))]
            nodes[first:end] = self._tree.nodes(entries)
            lengths, guards = self._lengths(nodes[first:end])
            ends = data_start + np.cumsum(lengths + 2 * guards)
            starts[first:end] = ends - guards - lengths
            first_blocks[layout.inodes(entries) // _INODE_BYTES] = starts[first:end] >> BLOCK_BITS
            data_start = int(ends[-1])

    def _whole_chunks(self) -> Iterator[tuple[int, int]]:
        """The borders of parts of the files, of which none divides a chunk."""
        ends, first = np.cumsum(self._by_chunk), 0
        while first < self.count:
            chunk = int(np.searchsorted(ends, first + _FILES_AT_ONCE, side="right")) - 1
            end = int(ends[max(chunk, int(np.searchsorted(ends, first, side="right")))])
            yield first, end
            first = end


def _write_superblock(metadata: npt.NDArray[np.uint8], tree: Tree, size_bytes: int) -> None:
    header = tree.snapshot.header
    block = metadata[SUPERBLOCK_OFFSET:FIRST_INODE_OFFSET].view(_SUPERBLOCK)
    block["magic"], block["block_bits"] = MAGIC, BLOCK_BITS
    block["root_nid"] = FIRST_INODE_OFFSET // NID_BYTES
    block["inodes"] = tree.count
    block["build_time_s"], block["build_time_ns"] = divmod(header.updated_ns, _NS)
    block["blocks"] = size_bytes // BLOCK_BYTES
    block["uuid"] = np.void(header.digest[:16])
    block["volume_name"] = header.dataset.encode()[:15]


def _write_inodes(
    metadata: npt.NDArray[np.uint8], tree: Tree, layout: _Layout, ownership: ImageOwner
) -> None:
    snapshot, target = tree.snapshot, metadata.view(_INODE)
    whole = target.view(_WHOLE_INODE)
    for first, end in parts(tree.count, AT_ONCE):  # each field is a pass over all of them
        entries = np.arange(first, end)
        nodes, inodes = tree.nodes(entries), np.zeros(end - first, _INODE)
        # Without set-user-ID and similar bits: a program of a dataset must not run as the owner of the image.
        inodes["mode"] = snapshot.column("modes")[nodes] & _MODE_BITS_KEPT
        inodes["format"], inodes["links"] = _EXTENDED_PLAIN, 1
        inodes["size"] = snapshot.column("sizes")[nodes]
        inodes["number"] = nodes + 1
        inodes["uid"], inodes["gid"] = ownership.uid, ownership.gid
        inodes["mtime_s"], inodes["mtime_ns"] = np.divmod(snapshot.column("mtimes_ns")[nodes], _NS)
        whole[layout.inodes(entries) // _INODE_BYTES] = inodes.view(_WHOLE_INODE)
    places = layout.inodes(layout.contents) // _INODE_BYTES
    contents, of_folders = target[places], np.searchsorted(layout.contents, tree.folders)
    contents["format"][layout.is_inline] = _EXTENDED_INLINE
    contents["size"] = layout.content_bytes
    contents["first_block"] = np.where(layout.is_inline, 0, layout.content_starts >> BLOCK_BITS)
    subfolders = np.bincount(np.searchsorted(tree.folders, tree.parents[1:]), minlength=len(tree.folders))
    subfolders[0] -= tree.control > 0  # listings do not show it
    contents["links"][of_folders] = 2 + subfolders
    if tree.control:
        contents["mode"][layout.contents == tree.control] = _CONTROL_MODE
    if ownership.root_mode is not None:
        contents["mode"][0] = FOLDER << TYPE_SHIFT | ownership.root_mode
    if ownership.root_uid is not None:
        contents["uid"][0] = ownership.root_uid
    target[places] = contents


def _write_names(metadata: npt.NDArray[np.uint8], tree: Tree, layout: _Layout) -> None:
    """The names of all folders: in each unit the directory entries, then the names themselves."""
    snapshot, words, bounds, unit = tree.snapshot, metadata.view(U32), layout.unit_bounds, 0
    while unit < len(bounds) - 1:
        # A unit has no more than _NAMES_OF_BLOCK_MAX names.
        last = int(np.searchsorted(bounds, bounds[unit] + AT_ONCE, side="right")) - 1
        names, counts = tree.names(int(bounds[unit]), int(bounds[last])), np.diff(bounds[unit : last + 1])
        unit_starts = np.repeat(layout.unit_starts[unit:last], counts)
        in_unit = np.arange(len(names.targets)) - np.repeat(starts_of(counts), counts)
        before = starts_of(names.lengths)
        offsets = (
            _ENTRY_BYTES * np.repeat(counts, counts) + before - np.repeat(before[starts_of(counts)], counts)
        )
        places = (unit_starts + _ENTRY_BYTES * in_unit) // 4
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
        unit = last


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
    records, end = b"", _ENTRY_BYTES * len(entries)
    for (nid, _, kind), name in zip(entries, names, strict=True):
        records += _ENTRY.pack(nid, end, kind)
        end += len(name)
    return np.frombuffer((records + b"".join(names)).ljust(len(block), b"\0"), np.uint8)


def _write_links(metadata: npt.NDArray[np.uint8], tree: Tree, layout: _Layout) -> None:
    snapshot = tree.snapshot
    rows = np.searchsorted(snapshot.column("link_nodes"), tree.nodes(tree.links)).tolist()
    starts = layout.content_starts[np.searchsorted(layout.contents, tree.links)].tolist()
    targets, ends = snapshot.column("links"), snapshot.column("link_ends")
    for row, start in zip(rows, starts, strict=True):
        first, last = int(ends[row - 1]) if row else 0, int(ends[row])
        metadata[start : start + last - first] = targets[first:last]
