"""Where inodes, folders and links lie in the metadata area of an EROFS image. No I/O."""

from array import array
from bisect import bisect_right

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.columns import starts_of
from dieselfs.limits import KIB
from dieselfs.snapshot.erofs_files import BLOCK_BYTES
from dieselfs.snapshot.erofs_tree import AT_ONCE, Tree

SUPERBLOCK_OFFSET = 1 * KIB
FIRST_INODE_OFFSET = SUPERBLOCK_OFFSET + 128
INODE_BYTES, ENTRY_BYTES = 64, 12
_SLOT_BYTES_MIN = 2 * INODE_BYTES
_NAMES_OF_BLOCK_MAX = BLOCK_BYTES // (ENTRY_BYTES + 1)
assert FIRST_INODE_OFFSET % INODE_BYTES == 0


class _Places:
    """Things at places: `all_starts`, shape (n,), the offset of each."""

    def __init__(self, starts: Numbers) -> None:
        self.all_starts, self._order = starts, np.argsort(starts)
        self._starts = starts[self._order]

    def between(self, first: int, end: int) -> Numbers:
        """Those that begin from `first` on and before `end`, ascending."""
        return np.sort(self._order[slice(*np.searchsorted(self._starts, (first, end)).tolist())])


class Layout:
    """The layout of the metadata area, in bytes; `end`: its length.

    `contents`: the folders and links, ascending; shape (contents,): `is_inline`, whether the bytes follow the inode,
    `content_starts` and `content_bytes`. Some inodes are in slots, with the bytes that follow them; the others are in a
    table. A unit is a block of a folder, or an inline folder: `units` are their places; `unit_bounds`, shape
    (units + 1,), where the names of each begin. `links`: the places of the bytes of the links.
    """

    def __init__(self, tree: Tree) -> None:
        self.contents = np.sort(np.concatenate([tree.folders, tree.links]))
        places, names = np.searchsorted(self.contents, tree.folders), np.diff(tree.name_bounds)
        link_places = np.searchsorted(self.contents, tree.links)
        content_bytes = np.empty(len(self.contents), np.int64)
        content_bytes[places] = tree.name_bytes + ENTRY_BYTES * names
        content_bytes[link_places] = tree.snapshot.column("sizes")[tree.nodes(tree.links)]
        self.is_inline = is_inline = content_bytes + INODE_BYTES <= BLOCK_BYTES
        is_inline[0] = False  # the address of the root must fit into 16 bits, so it is the first of the table

        self._table_count = tree.count - int(is_inline.sum())
        end = -(-(FIRST_INODE_OFFSET + INODE_BYTES * self._table_count) // BLOCK_BYTES) * BLOCK_BYTES
        # Slots of 4096, 2048, ... bytes, the largest first: none crosses the border of a block.
        slots = np.maximum(
            _SLOT_BYTES_MIN, 1 << np.ceil(np.log2(content_bytes + INODE_BYTES)).astype(np.int64)
        )
        inline = np.flatnonzero(is_inline)
        by_size = inline[np.argsort(-slots[inline], kind="stable")]
        content_starts = np.zeros(len(self.contents), np.int64)
        content_starts[by_size] = end + starts_of(slots[by_size]) + INODE_BYTES
        end += -(-int(slots[inline].sum()) // BLOCK_BYTES) * BLOCK_BYTES

        large, blocks = np.flatnonzero(~is_inline[places]), _Blocks(tree)
        firsts, block_counts, last_bytes = array("q"), array("q"), array("q")
        for first, last in zip(
            tree.name_bounds[large].tolist(), tree.name_bounds[large + 1].tolist(), strict=True
        ):
            found, bytes_in_last = blocks.of(first, last)
            firsts.extend(found)
            block_counts.append(len(found))
            last_bytes.append(bytes_in_last)
        unit_counts = np.ones(len(places), np.int64)
        unit_counts[large] = block_counts
        content_starts[places[large]] = end + BLOCK_BYTES * starts_of(unit_counts[large])
        content_bytes[places[large]] = BLOCK_BYTES * (unit_counts[large] - 1) + np.array(last_bytes)
        is_block = np.repeat(~is_inline[places], unit_counts)
        unit_starts = np.repeat(content_starts[places], unit_counts)
        unit_starts[is_block] = end + BLOCK_BYTES * np.arange(len(firsts))
        unit_bounds = np.append(np.repeat(tree.name_bounds[:-1], unit_counts), tree.name_bounds[-1])
        unit_bounds[:-1][is_block] = firsts
        end += BLOCK_BYTES * len(firsts)
        far = link_places[~is_inline[link_places]]
        taken = -(-content_bytes[far] // BLOCK_BYTES) * BLOCK_BYTES
        content_starts[far] = end + starts_of(taken)
        self.end = end + int(taken.sum())

        self.content_bytes, self.content_starts = content_bytes, content_starts
        self._inline, self._inline_rows = self.contents[inline], inline
        # How many inodes of the table belong to entries before each of these.
        self._inline_numbers = self._inline - np.arange(len(inline))
        self._slots = _Places(content_starts[inline] - INODE_BYTES)
        self.units, self.unit_bounds = _Places(unit_starts), unit_bounds
        self.links = _Places(content_starts[link_places])

    def inodes(self, entries: Numbers) -> Numbers:
        """The offsets of the inodes of these entries: shape (n,)."""
        bounds = int(entries.min(initial=1 << 62)), int(entries.max(initial=0)) + 1
        skipped, last = np.searchsorted(self._inline, bounds).tolist()
        if skipped == last:  # mostly: few entries are inline
            inodes: Numbers = FIRST_INODE_OFFSET + INODE_BYTES * (entries - skipped)
            return inodes
        before = np.searchsorted(self._inline, entries)
        inodes = FIRST_INODE_OFFSET + INODE_BYTES * (entries - before)
        before = np.minimum(before, len(self._inline) - 1)
        return np.where(self._inline[before] == entries, self._slots.all_starts[before], inodes)

    def of_table(self, first: int, end: int) -> tuple[int, Numbers, Numbers]:
        """The inodes of the table in this range: where they begin, their entries, and the rows of those that are
        contents.
        """
        borders = (max(first, FIRST_INODE_OFFSET), max(end, FIRST_INODE_OFFSET))
        numbers = [(border - FIRST_INODE_OFFSET) // INODE_BYTES for border in borders]
        start, stop = (min(number, self._table_count) for number in numbers)
        if start == stop:
            return first, np.empty(0, np.int64), np.empty(0, np.int64)
        bounds = np.array([start, stop - 1])
        entry, last = (bounds + np.searchsorted(self._inline_numbers, bounds, side="right")).tolist()
        entries = np.arange(entry, last + 1)
        gone = slice(*np.searchsorted(self._inline, (entry, last)).tolist())
        if gone.start < gone.stop:
            entries = np.delete(entries, self._inline[gone] - entry)
        among = slice(*np.searchsorted(self.contents, (entry, last + 1)).tolist())
        rows = among.start + np.flatnonzero(~self.is_inline[among])
        return FIRST_INODE_OFFSET + INODE_BYTES * start, entries, rows

    def of_slots(self, first: int, end: int) -> tuple[Numbers, Numbers, Numbers]:
        """The inodes of the inline slots in this range: places, entries and rows."""
        found = self._slots.between(first, end)
        return self._slots.all_starts[found], self._inline[found], self._inline_rows[found]


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
            stop = min(last, self._end, first + _NAMES_OF_BLOCK_MAX) - self._first
            first = self._first + bisect_right(ends, ends[place] + BLOCK_BYTES, place, stop + 1) - 1
        if self._tree.control and blocks[-1] == last - 1:
            # A block of the control folder alone would be empty without it.
            name = self._tree.names(np.array([last - 1]), np.array([1]))
            blocks[-1] -= bool(name.is_of(self._tree.control)[0])
        return blocks, self._ends[last - self._first] - self._ends[blocks[-1] - self._first]

    def _know(self, first: int) -> None:
        """Have the ends of the names in a block from `first` on, and of the name before it."""
        total = int(self._tree.name_bounds[-1])
        if self._end < min(first + _NAMES_OF_BLOCK_MAX, total):
            self._first, self._end = max(first - 1, 0), min(first + AT_ONCE, total)
            lengths = self._tree.name_lengths(self._first, self._end) + ENTRY_BYTES
            self._ends = np.concatenate([[0], np.cumsum(lengths)]).data
