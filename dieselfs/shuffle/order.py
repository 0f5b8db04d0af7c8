"""The order of an epoch: chunk-wise shuffle (DIESEL 4.3), in pure 64-bit integer arithmetic. No I/O.

Shuffle the chunks, cut them into groups of G, shuffle the files of each group; a full shuffle is one group of
all chunks. The order is a function of (snapshot, seed, epoch, group size) alone, and the same on every
machine, with every version of Python and NumPy: no library's random numbers are used. Each chunk and each
file gets a 64-bit key from a mixer, and is sorted by it; equal keys fall back to the number of the chunk or
node.
"""

import stat

import numpy as np
import numpy.typing as npt

from dieselfs.errors import InvalidInput
from dieselfs.meta.snapshot import Snapshot

DEFAULT_GROUP_CHUNKS = 100
SEED_MAX = (1 << 64) - 1

_CHUNKS, _FILES = 1, 2  # so that chunk 7 and file 7 get keys that have nothing to do with each other

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 on `value + golden ratio`, modulo 2^64, element by element."""
    mixed = values + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


def keys(seed: int, epoch: int, kind: int, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The sort keys of chunks or files in one epoch."""
    stream = mix(np.array([seed], np.uint64))
    for part in (epoch, kind):
        stream = mix(stream ^ np.uint64(part))
    return mix(stream ^ mix(numbers))


def epoch_order(
    snapshot: Snapshot, seed: int = 0, epoch: int = 0, group_chunks: int = DEFAULT_GROUP_CHUNKS
) -> npt.NDArray[np.uint32]:
    """All files of the snapshot, as node numbers, in the order of one epoch.

    `group_chunks` is G; 0 shuffles fully. A file that spans chunks belongs to its first one; empty files,
    which have none, go with chunk 0. Raises InvalidInput for numbers out of range.
    """
    if not 0 <= seed <= SEED_MAX or not 0 <= epoch <= SEED_MAX or group_chunks < 0:
        raise InvalidInput("seed and epoch are numbers from 0 to 2^64 - 1, a group has at least one chunk")
    files = np.flatnonzero((snapshot.column("modes") & 0o170000) == stat.S_IFREG)
    extents = snapshot.column("extent_chunks")
    has_bytes = snapshot.column("counts")[files] > 0
    chunks = np.zeros(len(files), np.int64)
    chunks[has_bytes] = extents[snapshot.column("firsts")[files[has_bytes]]]

    chunk_count = max(snapshot.chunk_count, 1)
    chunk_numbers = np.arange(chunk_count, dtype=np.uint64)
    shuffled_chunks = np.lexsort((chunk_numbers, keys(seed, epoch, _CHUNKS, chunk_numbers)))
    group_of_chunk = np.empty(chunk_count, np.int64)
    group_of_chunk[shuffled_chunks] = np.arange(chunk_count) // (group_chunks or chunk_count)

    file_keys = keys(seed, epoch, _FILES, files.astype(np.uint64))
    order = np.lexsort((files, file_keys, group_of_chunk[chunks]))
    return files[order].astype(np.uint32)
