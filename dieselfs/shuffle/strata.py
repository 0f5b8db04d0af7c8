"""Strata of files, and an order of storage in which each stretch has all of them in proportion. No I/O.

A stratum is a class, a range of lengths, or any other group of files. `dlcmd repack` stores files in the order of
`spread`, so a group of one chunk is a fair sample of the dataset (docs/reference/order.md specifies it to the bit).
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.columns import starts_of
from dieselfs.errors import InvalidInput
from dieselfs.names import printable
from dieselfs.shuffle.order import mix, stream
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.storage_order import StorageOrder
from dieselfs.snapshot.subtree import files_below

Strata = npt.NDArray[np.uint16]
"""Shape (n,): the number of a stratum for each file, or for each extent in the order of the storage."""

STRATA_MAX = 1 << 16
RANGES = 16
"""Strata of lengths and of other numbers, with equal numbers of files."""

_STRATA = 10  # a kind of keys, as `order.py` has 1 and 2


def spread(strata: Strata, seed: int) -> Numbers:
    """The order in which to store files: indices of `strata`, shape (n,). Of N files of a stratum, any stretch of the
    order has the share of N that it has of all files, up to one file. About 0.3 s for a million.
    """
    counts = np.bincount(strata)
    keys = mix(stream(seed, 0, _STRATA) ^ mix(np.arange(len(strata), dtype=np.uint64)))
    by_stratum = np.lexsort((keys, strata))
    of = strata[by_stratum].astype(np.int64)
    numbers = (np.arange(len(of)) - starts_of(counts)[of]).astype(np.uint64)
    phases = mix(stream(seed, 1, _STRATA) ^ mix(np.arange(len(counts), dtype=np.uint64))) >> np.uint64(32)
    places = ((numbers << np.uint64(32)) | phases[of]) // counts[of].astype(np.uint64)
    order: Numbers = by_stratum[np.argsort(places, kind="stable")]
    return order


def is_even(counts: Numbers, totals: Numbers) -> bool:
    """Whether a chunk with these counts has the strata in proportion to `totals`: each within 1.5 files of its part.
    Both have shape (strata,). A stretch of `spread` is within 1; the rest is for those of an interrupted repack.
    """
    there = totals > 0
    doubled, parts = 2 * counts[there], 2.0 * totals[there]
    return bool(((doubled - 3) / parts).max(initial=-1.0) < ((doubled + 3) / parts).min(initial=1.0))


def strata_of_classes(snapshot: Snapshot, pattern: str | None = None) -> Strata:
    """By the first folder of each path; with a regular expression, by what its first group, or all of it, matches in
    the path. Paths without a match are one stratum. As `column_of`. Raises InvalidInput, also if no path has a match.
    """
    try:
        expression = re.compile(pattern if pattern is not None else "^([^/]*)/")
    except re.error as error:
        raise InvalidInput(f"{pattern!r} is no regular expression: {error}") from None

    names: set[str | None] = set()

    def name(path: bytes) -> str | None:
        found = expression.search(path.decode("utf-8", "surrogateescape"))
        names.add(own := None if found is None else found[1 if expression.groups else 0])
        return own

    strata = column_of(snapshot, name)
    if pattern is not None and names == {None}:
        raise InvalidInput(f"{pattern!r} matches no path of {snapshot.dataset}")
    return strata


def strata_of_lengths(snapshot: Snapshot) -> Strata:
    """By size, in RANGES ranges with equal numbers of files. As `column_of`."""
    order = StorageOrder(snapshot, files_below(snapshot))
    return ranges_of(snapshot.column("sizes")[order.owners])


def ranges_of(values: npt.NDArray[np.generic]) -> Strata:
    """The number of a range for each value, of RANGES ranges with equal numbers of values: shape (n,) as `values`."""
    strata = np.empty(len(values), np.uint16)
    strata[np.argsort(values, kind="stable")] = np.arange(len(values)) * RANGES // max(len(values), 1)
    return strata


def strata_of_lines(snapshot: Snapshot, lines: Iterable[bytes], source: str) -> Strata:
    """By a list with the line PATH, a tab, STRATUM for each file; those that are not in it are one stratum. As
    `column_of`. Raises InvalidInput for a line of another form, or for a path that does not exist.
    """
    listed: dict[bytes, bytes] = {}
    for number, line in enumerate(lines, 1):
        path, tab, stratum = line.rstrip(b"\r\n").rpartition(b"\t")
        if not tab:
            raise InvalidInput(f"{source}: line {number}: no tab between path and stratum")
        if snapshot.find(path) < 0:
            raise InvalidInput(
                f"{source}: line {number}: there is no {printable(path)} in {snapshot.dataset}"
            )
        listed[path] = stratum
    return column_of(snapshot, listed.get)


def column_of(snapshot: Snapshot, stratum: Callable[[bytes], Hashable] | Mapping[bytes, Hashable]) -> Strata:
    """The strata of all files by a function of the path, as the servers take them: one number for each extent, in the
    order of the storage. About 2 us for a file. Raises InvalidInput for more than STRATA_MAX strata.
    """
    named = stratum if callable(stratum) else stratum.get
    order = StorageOrder(snapshot, files_below(snapshot))
    numbers: dict[Hashable, int] = {}
    found = [numbers.setdefault(named(path), len(numbers)) for path in snapshot.path_many(order.owners)]
    if len(numbers) > STRATA_MAX:
        raise InvalidInput(f"{len(numbers):,} strata, limit {STRATA_MAX:,}: choose larger ones")
    return np.array(found, np.uint16)
