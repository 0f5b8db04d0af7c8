"""Finds extents of an upload whose bytes the dataset has already, so that they are stored as references. No I/O.

Equal digests are equal bytes: they are BLAKE3, and nobody can find a second input for a digest that exists. Two inputs
with one digest of 128 bits take 2^64 tries, and only harm who stores both: readers verify by the digest.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress

import numpy as np

from dieselfs.arrays import Keys, Numbers
from dieselfs.chunk.builder import ChunkBuilder, FileExtent, SealedChunk
from dieselfs.chunk.cost import depth_fault
from dieselfs.chunk.source import AttachedSource
from dieselfs.limits import CHUNK_EXTENTS_PER_PAYLOAD_MAX, KIB, MIB
from dieselfs.names import path_fault
from dieselfs.snapshot.reader import Snapshot

REFERENCE_BYTES_MIN = 64 * KIB
"""Fewer bytes of a chunk are stored again: a reference is an object of its own."""
GAP_BYTES_MAX = 256 * KIB
"""Bytes of other files between those of a reference: they count in its payload."""
REFERENCE_ENTRIES_MAX = 8192
"""So that the header of a reference is short."""
WAITING_MAX = 65_536
"""Extents that wait for references: each takes about 1 KB of memory."""
HELD_BYTES_MAX = 64 * MIB
"""Bytes of streamed files that wait: they are in memory."""


class _Index:
    """The extents of a snapshot by their digests. Takes 16 bytes of memory for each."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._halves = snapshot.column("extent_digests").view("<u8").reshape(-1, 2)
        self._order = np.argsort(self._halves[:, 0], kind="stable")
        self._sorted: Keys = self._halves[:, 0][self._order]

    def find_many(self, digests: Sequence[bytes]) -> Numbers:
        """The numbers of extents with these digests, -1 where there is none: shape (n,)."""
        asked = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
        if not len(self._sorted):
            return np.full(len(asked), -1)
        places = np.minimum(np.searchsorted(self._sorted, asked[:, 0]), len(self._sorted) - 1)
        found = self._order[places]
        return np.where((self._halves[found] == asked).all(axis=1), found, -1)


class EqualExtents:
    """The extents that a dataset has, and those of this upload; for the thread that reads. Takes 100 bytes of memory
    for each extent of the upload.
    """

    def __init__(self, stored: Callable[[], Snapshot]) -> None:
        """`stored`: the newest snapshot of the dataset."""
        self._stored = stored
        self._snapshot = stored()
        self._index = _Index(self._snapshot)
        self._sent = set[bytes]()
        self._waits_for_sent = False
        self.waiting = dict[bytes, list[FileExtent]]()
        """By path: the extents that wait for references."""
        self._waiting_count = self._held_bytes = 0

    @property
    def is_full(self) -> bool:
        return self._waiting_count >= WAITING_MAX or self._held_bytes >= HELD_BYTES_MAX

    def put_off(self, is_streamed: bool, extent: FileExtent) -> bool:
        """Whether an extent waits for a reference, instead of being packed: its bytes are known. A part of a large
        streamed file cannot be read again, so it waits only if it is enough for a reference.
        """
        path, digest, length = extent.path, extent.digest, extent.length
        if not length or (is_streamed and length < min(extent.size, REFERENCE_BYTES_MIN)):
            return False
        is_sent = digest in self._sent
        if not is_sent and self._index.find_many([digest])[0] < 0:
            self._sent.add(digest)
            return False
        if path_fault(path) or depth_fault(path):
            return False
        self.waiting.setdefault(path, []).append(extent)
        self._waits_for_sent |= is_sent
        self._waiting_count += 1
        self._held_bytes += length if is_streamed else 0
        return True

    def references(self) -> tuple[list[SealedChunk], set[bytes]]:
        """Chunks with references for what waits, once all that was packed is stored; and the paths that must be packed.

        The servers complete these chunks: a client does not know where a payload begins in its object.
        """
        if self._waits_for_sent:
            self._snapshot = self._stored()
            self._index = _Index(self._snapshot)
            self._sent.clear()
        snapshot, self._waits_for_sent = self._snapshot, False
        extents = [extent for found in self.waiting.values() for extent in found]
        self.waiting.clear()
        self._waiting_count = self._held_bytes = 0
        numbers = self._index.find_many([extent.digest for extent in extents])
        left = {extent.path for extent, number in zip(extents, numbers.tolist(), strict=True) if number < 0}
        is_found = numbers >= 0
        refs, copies = snapshot.extent_refs(numbers[is_found]), Counter[tuple[int, int]]()
        groups = dict[tuple[int, int], list[tuple[int, FileExtent]]]()
        for ref, extent in zip(refs, compress(extents, is_found), strict=True):
            bytes_of = ref.chunk, ref.offset
            layer = copies[bytes_of] // CHUNK_EXTENTS_PER_PAYLOAD_MAX
            copies[bytes_of] += 1
            groups.setdefault((ref.chunk, layer), []).append((ref.offset, extent))
        chunks = list[SealedChunk]()
        for (chunk, _), group in groups.items():
            for run in _runs(group):
                if sum(extent.length for _, extent in run) < REFERENCE_BYTES_MIN:
                    left |= {extent.path for _, extent in run}
                else:
                    chunks.append(_reference(snapshot, chunk, run))
        return chunks, left


def _runs(group: Iterable[tuple[int, FileExtent]]) -> Iterator[list[tuple[int, FileExtent]]]:
    """The extents of a chunk in the order of their places, without large gaps."""
    run, end = list[tuple[int, FileExtent]](), 0
    for offset, extent in sorted(group, key=lambda each: each[0]):
        if run and (offset > end + GAP_BYTES_MAX or len(run) == REFERENCE_ENTRIES_MAX):
            yield run
            run = []
        run.append((offset, extent))
        end = max(end, offset + extent.length)
    yield run


def _reference(snapshot: Snapshot, chunk: int, run: Sequence[tuple[int, FileExtent]]) -> SealedChunk:
    """The payload is what lies between the first and the last of these bytes."""
    start, builder = run[0][0], ChunkBuilder()
    for offset, extent in run:
        fixed = extent.mode, extent.mtime_ns, extent.size, extent.place
        builder.add_extent(extent.path, *fixed, offset - start, extent.length, extent.digest, extent.version)
    length = max(offset + extent.length for offset, extent in run) - start
    place = snapshot.header.dataset_id, snapshot.chunk_id(chunk), start
    return builder.seal(source=AttachedSource.of_chunk(*place, length, snapshot.chunk_digest(chunk)))
