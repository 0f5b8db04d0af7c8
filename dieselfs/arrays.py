"""The types of arrays of numbers, each with its shape and the meaning of its elements. No I/O."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
"""Shape (n,): whole numbers for arithmetic and indexing: counts, rows, places, or nodes of a snapshot."""
Positions = npt.NDArray[np.int64]
"""Shape (n,): positions in the order of an epoch."""
Nodes = npt.NDArray[np.uint32]
"""Shape (n,): nodes of a snapshot, as orders store them: 4 bytes each."""
Keys = npt.NDArray[np.uint64]
"""Shape (n,), or (n, 2) for the halves of chunk IDs: values to hash and to sort by, modulo 2^64."""
Hashes = npt.NDArray[np.uint64]
"""Shape (n,), or (rows, n) for tiles: hashes of chunks and members, their weights and their scores."""
Ranges = npt.NDArray[np.int64]
"""Shape (n, 2): offset and length in bytes, one row per range."""

_Element = TypeVar("_Element", bound=np.generic)


def distinct(values: npt.NDArray[_Element]) -> npt.NDArray[_Element]:
    """Each value once, ascending: shape (n,). For this, `np.unique` imports `numpy.ma`, which takes 30 ms."""
    ordered = np.sort(values, axis=None)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
