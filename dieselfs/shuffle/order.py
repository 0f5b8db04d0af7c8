"""The order of an epoch: chunk-wise shuffle (DIESEL 4.3), in pure 64-bit integer arithmetic. No I/O.

Shuffle the chunks, cut them into groups, shuffle the files of each group; a full shuffle is one group of
all chunks. The order is a function of (snapshot, folder, selection, seed, epoch, group size) alone, and the same on
every machine, with every version of Python and NumPy: no library's random numbers are used. `docs/reference/order.md`
specifies it to the bit.
"""

from copy import copy
from hashlib import sha256
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import (
    AT_ONCE,
    Keys,
    Nodes,
    Numbers,
    Positions,
    blocks_of,
    counts_of,
    grouped,
    runs_at_once,
    stable_argsort,
)
from dieselfs.columns import starts_of
from dieselfs.errors import InvalidInput
from dieselfs.names import printable
from dieselfs.shuffle.groups import group_ends
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.splice import runs_of
from dieselfs.snapshot.subtree import file_blocks

_FILES_AT_ONCE = 1 << 15

# So that the keys of chunks and of files are independent.
_CHUNKS, _FILES = 1, 2

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
    """The number that distinguishes the keys of an epoch's chunks, or files, from all others: shape (1,)."""
    state = mix(np.array([seed], np.uint64))
    for part in (epoch, kind):
        state = mix(state ^ np.uint64(part))
    return state


def name_of(nodes: npt.NDArray[Any], occurrences: npt.NDArray[Any]) -> Keys:
    """The names of files in a selection: the node, and which occurrence of it this is, from 0. Element by element."""
    return nodes.astype(np.uint64) | (occurrences.astype(np.uint64) << np.uint64(32))


def nodes_of(names: npt.NDArray[Any]) -> Nodes:
    """The node of each name; of an array of nodes, the array."""
    return names.astype(np.uint32, copy=False)  # modulo 2^32


class Layout:
    """The chunk of each file: the common part of all orders of one snapshot, or of one folder. Immutable.

    Made once for a snapshot (30 ms for a million files, 4 bytes a file, and 12 meanwhile), shared by all its epochs.
    """

    def __init__(
        self, chunk_ids: Keys, files: Nodes, chunks: npt.NDArray[np.integer], folder: bytes = b""
    ) -> None:
        """`chunk_ids`: shape (chunks, 2), the two halves of each ID as numbers, rows ascending. `files`: shape
        (files,), ascending; `chunks`: shape (files,), the row of each file's chunk in `chunk_ids`.
        """
        self.folder = folder
        self.selection = b""
        """The digest of a selection, see `select`; empty: all files."""
        self.chunk_names = mix(mix(chunk_ids[:, 0]) ^ chunk_ids[:, 1])
        self._place(files, chunks)

    def _place(self, names: npt.NDArray[Any], chunks: npt.NDArray[np.integer]) -> None:
        """Set the files, ascending, and the row of each one's chunk; both of shape (files,)."""
        self.counts = counts_of(chunks, len(self.chunk_names))
        self._starts = starts_of(self.counts)
        self._names = grouped(names, chunks, self._starts)

    @classmethod
    def of(cls, snapshot: Snapshot, folder: bytes = b"") -> "Layout":
        """The layout of a snapshot: a file belongs to the chunk of its first extent; an empty file to the chunk whose
        number is its node modulo the number of chunks. The layout of a folder has only the files below it, and the
        chunks with extents of them.

        Raises NotFound, InvalidInput if it is not a folder.
        """
        blocks = [each.astype(np.uint32) for each in file_blocks(snapshot, snapshot.require_folder(folder))]
        chunk_ids = snapshot.column("chunk_ids").view(">u8").astype(np.uint64).reshape(-1, 2)
        rows = np.arange(len(chunk_ids), dtype=np.uint32)
        if folder:
            is_used = np.zeros(len(rows), np.bool_)
            for nodes in blocks:
                is_used[chunks_of(snapshot, nodes)[1]] = True
            chunk_ids = chunk_ids[is_used]
            rows[is_used] = np.arange(len(chunk_ids), dtype=np.uint32)
        # Without chunks all files are empty; they belong to one virtual chunk.
        if not len(chunk_ids):
            chunk_ids = np.zeros((1, 2), np.uint64)
        counts, firsts = snapshot.column("counts"), snapshot.column("firsts")
        chunks = [nodes % np.uint32(len(chunk_ids)) for nodes in blocks]
        for nodes, found in zip(blocks, chunks, strict=True):
            has_bytes = counts[nodes] > 0
            found[has_bytes] = rows[snapshot.column("extent_chunks")[firsts[nodes[has_bytes]]]]
        none = np.empty(0, np.uint32)
        return cls(chunk_ids, np.concatenate([none, *blocks]), np.concatenate([none, *chunks]), folder)

    def select(self, names: Keys) -> "Layout":
        """The layout of some of the files, in the same chunks and groups. `names`: shape (n,), ascending; each is
        `name_of` a file and of which of its occurrences it is. All files, each once, are this layout itself.

        Raises InvalidInput if a file is not of this layout.
        """
        by_node = np.argsort(self._names)
        files, nodes = self._names[by_node], nodes_of(names)
        places = np.minimum(np.searchsorted(files, nodes), max(len(files) - 1, 0))
        if len(nodes) and (not len(files) or (files[places] != nodes).any()):
            raise InvalidInput(f"some of the selected files are not below {printable(self.folder) or '/'}")
        if len(names) == len(files) and np.array_equal(names, files):
            return self
        selected = copy(self)
        selected.selection = sha256(names.astype("<u8").tobytes()).digest()
        chunks = np.repeat(np.arange(len(self.counts)), self.counts)[by_node]
        selected._place(names, chunks[places])
        return selected

    def __len__(self) -> int:
        """Number of files; those of a selection as often as they occur in it."""
        return len(self._names)

    def nodes(self) -> Nodes:
        """All files, ascending: shape (files,)."""
        return np.sort(nodes_of(self._names))

    def files_of(self, chunks: Numbers) -> npt.NDArray[Any]:
        """The files of these chunks, chunk by chunk: their nodes, or their names in a selection."""
        return self._names[runs_of(self._starts[chunks], self.counts[chunks])]


class GroupOrder(Protocol):
    """Files in groups, each at a position, with the members of `Order`."""

    @property
    def bounds(self) -> Positions: ...

    def nodes(self, first_group: int, end_group: int) -> npt.NDArray[Any]: ...

    def nodes_at(self, group: int, places: Numbers) -> npt.NDArray[Any]: ...

    def is_single(self, nodes: Numbers) -> npt.NDArray[np.bool_]: ...


class Order:
    """The order of one epoch. The files of a group are sorted when they are requested."""

    def __init__(self, layout: Layout, spec: PlanSpec, _: object = None) -> None:
        """Uses `seed`, `epoch`, and `group_chunks` of `spec`."""
        self._layout = layout
        self._stream = stream(spec.seed, spec.epoch, _FILES)
        chunk_keys = mix(stream(spec.seed, spec.epoch, _CHUNKS) ^ layout.chunk_names)
        self.chunks: Numbers = np.argsort(chunk_keys, kind="stable")  # equal keys: the smaller ID first
        self._cuts = np.append(0, group_ends(len(self.chunks), spec.group_chunks))
        self.bounds: Positions = np.append(0, np.cumsum(layout.counts[self.chunks]))[self._cuts]
        """Shape (groups + 1,): the start of each group, and the end of the last one."""

    def nodes(self, first_group: int, end_group: int) -> npt.NDArray[Any]:
        """The files of consecutive groups, in order: shape (files,). Node numbers; the names of a selection.

        About 0.4 ms for a group of 100 chunks with 37 files each; 0.1 s for a million files.
        """
        # About ten thousand files at a time, so that the sorted arrays stay in the processor's cache.
        marks = range(int(self.bounds[first_group]), int(self.bounds[end_group]), _FILES_AT_ONCE)
        cuts = np.searchsorted(self.bounds, marks[1:]).tolist()
        return np.concatenate([self._sorted(*cut) for cut in pairwise([first_group, *cuts, end_group])])

    def nodes_at(self, group: int, places: Numbers) -> npt.NDArray[Any]:
        """The files at places of a group, counted from its first file; the same shape. For few places this takes a
        fifth of the time of `nodes`, because only files that can be at one of them are sorted.
        """
        names, keys = self._with_keys(group, group + 1)
        # Files with the same upper bits of their keys are neighbours, and the counts of these give their places. The
        # number of bits is such that one or two files share them.
        bits = max(len(keys).bit_length() - 1, 1)
        prefixes = (keys >> np.uint64(64 - bits)).astype(np.intp)
        counts = np.bincount(prefixes, minlength=1 << bits)
        at = np.searchsorted(np.cumsum(counts), places, side="right")
        is_chosen = np.zeros(len(counts), np.bool_)
        is_chosen[at] = True
        left_out = np.cumsum(np.where(is_chosen, 0, counts))
        chosen = np.flatnonzero(is_chosen[prefixes])
        by_key = chosen[np.argsort(keys[chosen])]
        found: npt.NDArray[Any] = names[by_key[places - left_out[at]]]
        return found

    def is_single(self, nodes: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these files the order has once: shape (n,), as `nodes`."""
        return np.ones(len(nodes), np.bool_)

    def _with_keys(self, first_group: int, end_group: int) -> tuple[npt.NDArray[Any], Keys]:
        """The files of consecutive groups, chunk by chunk, and their sort keys within their group.

        No two files have the same key, because `mix` is one-to-one: any sort gives the same order.
        """
        names = self._layout.files_of(self.chunks[self._cuts[first_group] : self._cuts[end_group]])
        return names, self._keys(names)

    def _keys(self, names: npt.NDArray[Any]) -> Keys:
        return mix(self._stream ^ mix(names.astype(np.uint64)))

    def _sorted(self, first_group: int, end_group: int) -> npt.NDArray[Any]:
        if end_group - first_group == 1 and np.ptp(self.bounds[first_group : end_group + 1]) > AT_ONCE:
            return self._sorted_in_parts(self.chunks[self._cuts[first_group] : self._cuts[end_group]])
        names, keys = self._with_keys(first_group, end_group)
        by_key = np.argsort(keys)
        if end_group - first_group > 1:
            counts = np.diff(self.bounds[first_group : end_group + 1])
            groups = np.repeat(np.arange(len(counts)), counts)
            by_key = by_key[stable_argsort(groups[by_key])]
        return names[by_key]

    def _sorted_in_parts(self, chunks: Numbers) -> npt.NDArray[Any]:
        """The files of a large group: by the upper bits of their keys, and then those with the same ones. The keys of
        all would take several times the memory.
        """
        parts = runs_at_once(np.cumsum(self._layout.counts[chunks]))
        names = np.concatenate([self._layout.files_of(chunks[part]) for part, _ in parts])
        prefixes = np.concatenate(
            [(self._keys(names[block]) >> np.uint64(48)).astype(np.uint16) for block in blocks_of(len(names))]
        )
        counts = counts_of(prefixes, 1 << 16)
        names = grouped(names, prefixes, starts_of(counts))
        for _, part in runs_at_once(np.cumsum(counts)):
            names[part] = names[part][np.argsort(self._keys(names[part]))]
        return names


def chunks_of(snapshot: Snapshot, nodes: npt.NDArray[Any]) -> tuple[Numbers, Numbers]:
    """One row per extent: the index of its file in `nodes`, and its chunk; both of shape (extents,)."""
    counts = snapshot.column("counts")[nodes].astype(np.int64)
    extents = runs_of(snapshot.column("firsts")[nodes].astype(np.int64), counts)
    chunks = snapshot.column("extent_chunks")[extents].astype(np.int64)
    return np.repeat(np.arange(len(nodes)), counts), chunks
