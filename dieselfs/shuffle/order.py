"""The order of an epoch: chunk-wise shuffle (DIESEL 4.3), in pure 64-bit integer arithmetic. No I/O.

Shuffle the chunks, cut them into groups of G, shuffle the files of each group; a full shuffle is one group of
all chunks. The order is a function of (snapshot, folder, seed, epoch, group size) alone, and the same on every
machine, with every version of Python and NumPy: no library's random numbers are used. `docs/order.md`
specifies it to the bit.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.errors import InvalidInput
from dieselfs.meta.snapshot import Snapshot
from dieselfs.meta.subtree import files_below
from dieselfs.names import printable

Numbers = npt.NDArray[np.int64]
Nodes = npt.NDArray[np.uint32]
Keys = npt.NDArray[np.uint64]

SPEC_VERSION = 1
DEFAULT_GROUP_CHUNKS = 100
SEED_MAX = (1 << 64) - 1
GROUP_CHUNKS_MAX = (1 << 32) - 1

_FILES_AT_ONCE = 1 << 15

_CHUNKS, _FILES = (
    1,
    2,
)  # so that a chunk and a file of the same name get keys that have nothing to do with each other

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mix(values: Keys) -> Keys:
    """The finaliser of SplitMix64 on `value + golden ratio`, modulo 2^64, element by element. One-to-one."""
    mixed = values + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


def stream(seed: int, epoch: int, kind: int) -> Keys:
    """What sets the keys of one epoch's chunks, or files, apart from all others: an array of one number."""
    state = mix(np.array([seed], np.uint64))
    for part in (epoch, kind):
        state = mix(state ^ np.uint64(part))
    return state


class Layout:
    """Which files begin in which chunk: all that the orders of one snapshot, or of one folder, have in common.

    Made once for a snapshot (30 ms for a million files, 4 bytes a file) and shared by all its epochs. Never
    changes.
    """

    def __init__(self, chunk_ids: Keys, files: Nodes, chunks: Numbers, folder: bytes = b"") -> None:
        """`chunk_ids`: the two halves of each ID as numbers, one row per chunk, rows ascending. `files`: node
        numbers, ascending; `chunks`: the row of the chunk that each of them belongs to.
        """
        self.folder = folder
        self.chunk_names = mix(mix(chunk_ids[:, 0]) ^ chunk_ids[:, 1])
        self.counts = np.bincount(chunks, minlength=len(chunk_ids)).astype(np.int64)
        self._starts = np.cumsum(self.counts) - self.counts
        self._nodes = files[_stable_argsort(chunks)]

    @classmethod
    def of(cls, snapshot: Snapshot, folder: bytes = b"") -> "Layout":
        """The layout of a snapshot: a file belongs to the chunk that it begins in; one without bytes to the
        chunk whose number is its node modulo the number of chunks. That of a folder has the files below it, and the
        chunks that hold bytes of them, as if there were no others.

        Raises NotFound, InvalidInput if it is no folder.
        """
        root = snapshot.require(folder)
        if not snapshot.stat(root).is_folder:
            raise InvalidInput(f"dl://{snapshot.dataset}/{printable(folder)} is not a folder")
        nodes = files_below(snapshot, root)
        chunk_ids = snapshot.column("chunk_ids").view(">u8").astype(np.uint64).reshape(-1, 2)
        rows = np.arange(len(chunk_ids))
        if folder:
            taking_part = np.flatnonzero(np.bincount(chunks_of(snapshot, nodes)[1], minlength=len(rows)))
            chunk_ids = chunk_ids[taking_part]
            rows[taking_part] = np.arange(len(taking_part))
        # Without a chunk no file has bytes; the files lie in a made-up one.
        if not len(chunk_ids):
            chunk_ids = np.zeros((1, 2), np.uint64)
        chunks = nodes % len(chunk_ids)
        has_bytes = snapshot.column("counts")[nodes] > 0
        chunks[has_bytes] = rows[
            snapshot.column("extent_chunks")[snapshot.column("firsts")[nodes[has_bytes]]]
        ]
        return cls(chunk_ids, nodes.astype(np.uint32), chunks, folder)

    def __len__(self) -> int:
        """Number of files."""
        return len(self._nodes)

    def files_of(self, chunks: Numbers) -> Nodes:
        """The files of these chunks, chunk by chunk."""
        counts = self.counts[chunks]
        shifts = self._starts[chunks] - (np.cumsum(counts) - counts)
        return self._nodes[np.repeat(shifts, counts) + np.arange(int(counts.sum()))]


class Order:
    """The order of one epoch. Nothing is sorted but the chunks until the files of a group are asked for."""

    def __init__(self, layout: Layout, seed: int, epoch: int, group_chunks: int) -> None:
        """`group_chunks` is G; 0 shuffles fully. Raises InvalidInput for numbers out of range."""
        if not (0 <= seed <= SEED_MAX and 0 <= epoch <= SEED_MAX and 0 <= group_chunks <= GROUP_CHUNKS_MAX):
            raise InvalidInput(
                f"seed {seed}, epoch {epoch}, group of {group_chunks} chunks: seed and epoch are numbers from 0 to "
                f"2^64 - 1, a group has 1 to {GROUP_CHUNKS_MAX} chunks, or 0 for all"
            )
        self._layout = layout
        self._stream = stream(seed, epoch, _FILES)
        chunk_keys = mix(stream(seed, epoch, _CHUNKS) ^ layout.chunk_names)
        self.chunks: Numbers = np.argsort(chunk_keys, kind="stable")  # equal keys: the smaller ID first
        self._group_chunks = min(group_chunks or len(self.chunks), len(self.chunks))
        ends = np.cumsum(layout.counts[self.chunks])
        self.bounds: Numbers = np.append(
            0, np.append(ends[self._group_chunks - 1 : -1 : self._group_chunks], ends[-1])
        )
        """Where each group begins, as a position, and behind the last one where it ends."""

    @property
    def group_count(self) -> int:
        return len(self.bounds) - 1

    def nodes(self, first_group: int, end_group: int) -> Nodes:
        """The files of some groups that follow one another, as node numbers, in order.

        About 0.4 ms for a group of 100 chunks with 37 files each; 0.1 s for a million files.
        """
        # By groups of some ten thousand files together: what is sorted then stays in the processor's cache.
        marks = range(int(self.bounds[first_group]), int(self.bounds[end_group]), _FILES_AT_ONCE)
        cuts = np.searchsorted(self.bounds, marks[1:]).tolist()
        return np.concatenate([self._sorted(*cut) for cut in pairwise([first_group, *cuts, end_group])])

    def nodes_at(self, group: int, places: Numbers) -> Nodes:
        """The files at some places of a group, counted from its first. Where they are few, in a fifth of the time that
        `nodes` takes: what cannot be at one of them is not sorted.
        """
        nodes, keys = self._with_keys(group, group + 1)
        # Files whose keys begin alike are neighbours, and how many have each beginning tells at which places. As many
        # bits as make one or two files of each.
        bits = max(len(keys).bit_length() - 1, 1)
        beginnings = (keys >> np.uint64(64 - bits)).astype(np.intp)
        counts = np.bincount(beginnings, minlength=1 << bits)
        at = np.searchsorted(np.cumsum(counts), places, side="right")
        is_wanted = np.zeros(len(counts), np.bool_)
        is_wanted[at] = True
        left_out = np.cumsum(np.where(is_wanted, 0, counts))
        chosen = np.flatnonzero(is_wanted[beginnings])
        by_key = chosen[np.argsort(keys[chosen])]
        found: Nodes = nodes[by_key[places - left_out[at]]]
        return found

    def _with_keys(self, first_group: int, end_group: int) -> tuple[Nodes, npt.NDArray[np.uint64]]:
        """The files of some groups, chunk by chunk, and what they are sorted by within their group.

        No two files have the same key, because `mix` is one-to-one: any sort gives the same order.
        """
        size = self._group_chunks
        nodes = self._layout.files_of(self.chunks[first_group * size : end_group * size])
        return nodes, mix(self._stream ^ mix(nodes.astype(np.uint64)))

    def _sorted(self, first_group: int, end_group: int) -> Nodes:
        nodes, keys = self._with_keys(first_group, end_group)
        by_key = np.argsort(keys)
        if end_group - first_group > 1:
            counts = np.diff(self.bounds[first_group : end_group + 1])
            groups = np.repeat(np.arange(len(counts)), counts)
            by_key = by_key[_stable_argsort(groups[by_key])]
        return nodes[by_key]


def chunks_of(snapshot: Snapshot, nodes: npt.NDArray[Any]) -> tuple[Numbers, Numbers]:
    """Every pair of a file, by its index in `nodes`, and a chunk that holds bytes of it."""
    counts = snapshot.column("counts")[nodes].astype(np.int64)
    shifts = snapshot.column("firsts")[nodes] - (np.cumsum(counts) - counts)
    extents = np.repeat(shifts, counts) + np.arange(int(counts.sum()))
    chunks = snapshot.column("extent_chunks")[extents].astype(np.int64)
    return np.repeat(np.arange(len(nodes)), counts), chunks


def _stable_argsort(numbers: Numbers) -> Numbers:
    """Indices that sort numbers from 0 to 2^32 - 1, equal ones in the order in which they stand.

    By halves of 16 bits, for which NumPy has a radix sort: ten times faster than for wider numbers.
    """
    order: Numbers = np.argsort(numbers.astype(np.uint16), kind="stable")
    high = numbers >> 16
    if high.any():
        order = order[np.argsort(high[order].astype(np.uint16), kind="stable")]
    return order
