"""The place of each file in the data area of an EROFS image. No I/O."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes, Numbers, among, stable_argsort
from dieselfs.columns import starts_of
from dieselfs.snapshot.erofs_tree import FILE, Tree

BLOCK_BITS = 12
BLOCK_BYTES = 1 << BLOCK_BITS
FILE_GUARD_BLOCKS = 1
"""Unused blocks on each side of a guarded file. One is enough for the kernel to see no sequence of reads."""
AT_ONCE = 1 << 15
"""Files that are put into the order of their chunks at a time; more only if one chunk has more."""
_RUN_MIN = 64
"""Files of a chunk, on average, from which on they are copied as a slice."""


class Files:
    """The files with bytes. `count` of them; `total_blocks`: what they take in the data area."""

    def __init__(self, tree: Tree, is_guarded: npt.NDArray[np.bool_] | None) -> None:
        self._tree, self._is_guarded = tree, is_guarded
        self._by_chunk = np.zeros(tree.snapshot.chunk_count, np.int64)
        self.total_blocks = 0
        for nodes in self._parts():
            chunks = self._column("extent_chunks", nodes)
            first = int(chunks.min())
            counts = np.bincount(chunks - np.uint32(first))
            self._by_chunk[first : first + len(counts)] += counts
            lengths, guards = self._blocks(nodes)
            self.total_blocks += int(lengths.sum()) + 2 * int(guards.sum())
        self.count = int(self._by_chunk.sum())

    def _parts(self) -> Iterator[Numbers | slice]:
        """Their nodes, ascending in each part; no part is empty."""
        sizes = self._tree.snapshot.column("sizes")
        for _, run in self._tree.runs(0, self._tree.count, AT_ONCE):
            has_bytes = (self._tree.types(run) == FILE) & (sizes[run] > 0)
            if has_bytes.all():
                yield run
            elif has_bytes.any():
                yield run.start + np.flatnonzero(has_bytes)

    def _column(self, name: str, nodes: Numbers | slice) -> Nodes:
        """A column of their first extents."""
        snapshot = self._tree.snapshot
        column: Nodes = snapshot.column(name)[snapshot.column("firsts")[nodes]]
        return column

    def _blocks(self, nodes: Numbers | Nodes | slice) -> tuple[Numbers, Numbers]:
        """How many blocks these files take, and the guard on each side."""
        sizes = self._tree.snapshot.column("sizes")[nodes].view(np.int64)
        lengths = (sizes + (BLOCK_BYTES - 1)) >> BLOCK_BITS
        if self._is_guarded is None:
            return lengths, np.zeros(len(lengths), np.int64)
        return lengths, FILE_GUARD_BLOCKS * self._is_guarded[nodes]

    def place(self, nodes: Nodes, blocks: Nodes, first_blocks: Nodes, data_block: int) -> None:
        """Place the files in the order of their first extents. Fills `nodes` and `blocks`, of the image, and the
        elements of the files in `first_blocks`, by node.
        """
        free = starts_of(self._by_chunk)
        for part in self._parts():  # by chunk first; the offsets in chunks take the place of the blocks
            chunks, offsets = self._column("extent_chunks", part), self._column("extent_offsets", part)
            found = np.arange(part.start, part.stop) if isinstance(part, slice) else part
            if (chunks[1:] < chunks[:-1]).any():
                order = stable_argsort(chunks)
                chunks, offsets, found = chunks[order], offsets[order], found[order]
            heads = np.flatnonzero(np.append(True, chunks[1:] != chunks[:-1]))
            present, counts = chunks[heads], np.diff(heads, append=len(chunks))
            if len(heads) * _RUN_MIN < len(chunks):
                for place, first, count in zip(
                    free[present].tolist(), heads.tolist(), counts.tolist(), strict=True
                ):
                    nodes[place : place + count] = found[first : first + count]
                    blocks[place : place + count] = offsets[first : first + count]
            else:
                places = np.repeat(free[present] - heads, counts) + np.arange(len(chunks))
                nodes[places], blocks[places] = found, offsets
            free[present] += counts
        for first, end, chunk, last in self._whole_chunks():
            found, offsets = nodes[first:end], blocks[first:end]
            falls = 1 + np.flatnonzero(offsets[1:] < offsets[:-1])
            if not among(falls, starts_of(self._by_chunk[chunk:last])).all():
                found[:] = found[
                    np.lexsort((offsets, np.repeat(np.arange(chunk, last), self._by_chunk[chunk:last])))
                ]
            lengths, guards = self._blocks(found)
            ends = data_block + np.cumsum(lengths + 2 * guards)
            first_blocks[found] = blocks[first:end] = ends - guards - lengths
            data_block = int(ends[-1])

    def _whole_chunks(self) -> Iterator[tuple[int, int, int, int]]:
        """The borders of parts of the files, of which none divides a chunk, and those of their chunks."""
        ends, first, chunk = np.cumsum(self._by_chunk), 0, 0
        while first < self.count:
            last = int(np.searchsorted(ends, first + AT_ONCE, side="right"))
            last = max(last, int(np.searchsorted(ends, first, side="right")) + 1)
            end = int(ends[last - 1])
            yield first, end, chunk, last
            first, chunk = end, last
