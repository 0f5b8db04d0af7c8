"""The randomness and the memory cost of an order: measures to choose the group size. No I/O.

A chunk-wise shuffle cannot give every order of the files, only those in which groups stay together. Larger groups give
more of them, and need more memory. No measure is a pass mark: DIESEL lost no accuracy at an order entropy ratio of
56 %.
"""

from collections import Counter
from dataclasses import dataclass
from math import lgamma, log

import numpy as np
import numpy.typing as npt

from dieselfs.shuffle.groups import group_ends
from dieselfs.shuffle.opportunistic import Parts, ServedLog, log_of, served
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import ReaderSpec

FULL_SHUFFLE_DISTANCE = 1 / 3
"""The mean distance by which a full shuffle moves a file, as a share of all positions."""


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """The measures of one plan."""

    entropy_ratio: float
    """`order_entropy_ratio` of as many files and chunks, 0 to 1."""
    mean_distance: float
    """`mean_distance_moved` against the order of the snapshot; see `FULL_SHUFFLE_DISTANCE`."""
    folder_repeats: float
    """`repeats` of folders, which often are classes: how many files follow one of the same folder, 0 to 1."""
    folder_repeats_expected: float
    """The same for a full shuffle."""
    group_bytes_max: int
    """Payload of the chunks of the largest group; a mount caches two groups at a time."""
    group_bytes_mean: float


def measure(plan: Plan) -> ShuffleQuality:
    """All measures of a plan; about half a second for a million files."""
    nodes = plan.nodes()
    folders = plan.snapshot.column("parents")[nodes]
    group_bytes = plan.payload_bytes_of_groups()
    chunks = int(np.count_nonzero(plan.layout.counts))
    return ShuffleQuality(
        order_entropy_ratio(len(nodes), chunks, plan.spec.group_chunks),
        mean_distance_moved(nodes),
        repeats(folders),
        repeats_expected(folders),
        int(group_bytes.max()),
        float(group_bytes.mean()),
    )


@dataclass(frozen=True, slots=True)
class ServedQuality:
    """The measures of an opportunistic order that one rank has served; those of `ShuffleQuality` with its files."""

    files: int
    entropy_ratio: float
    """log2 of the number of orders that could have been drawn while chunks arrived as they did, relative to that of a
    full shuffle of these files."""
    mean_distance: float
    folder_repeats: float
    folder_repeats_expected: float
    buffered_bytes_max: int
    """Largest size of the files that had arrived and were still to be drawn."""


def served_nodes(plan: Plan, log_: ServedLog) -> npt.NDArray[np.int64]:
    """The files in the order of a log, of the seed, epoch, folder and snapshot of `plan`: shape (n,). Raises
    InvalidInput for a log of another order.
    """
    return served(_parts(plan, log_), log_).nodes


def measure_served(plan: Plan, log_: ServedLog) -> ServedQuality:
    """All measures of a served order, as far as its log has files. Raises InvalidInput as `served_nodes`."""
    sizes = plan.snapshot.column("sizes")
    found = served(_parts(plan, log_), log_, lambda nodes: int(sizes[nodes].sum()))
    folders = plan.snapshot.column("parents")[found.nodes]
    return ServedQuality(
        len(found.nodes),
        found.entropy_ratio,
        mean_distance_moved(found.nodes),
        repeats(folders),
        repeats_expected(folders),
        found.buffered_bytes_max,
    )


def _parts(plan: Plan, log_: ServedLog) -> Parts:
    reader = ReaderSpec(log_.rank, log_.world, nodes=log_.nodes)
    log_.check(log_of(plan.cursor(0).snapshot, plan.spec, reader, ()))
    return Parts.of(plan, reader)


def order_entropy_ratio(files: int, chunks: int, group_chunks: int | None) -> float:
    """log2 of the number of orders that a chunk-wise shuffle can give, over log2 of that of all orders.

    For chunks with the same number of files each; `group_chunks` as in `PlanSpec`. The number of orders is
    the number of ways to distribute chunks to the sequence of groups, times that of the orders of files in each group.
    1.0 if only one order exists.
    """
    if files < 2 or not chunks:
        return 1.0
    per_chunk = files / chunks
    orders = _log_factorial(chunks)
    for size, groups in Counter(np.diff(group_ends(chunks, group_chunks), prepend=0).tolist()).items():
        orders += groups * (_log_factorial(size * per_chunk) - _log_factorial(size))
    return orders / _log_factorial(files)


def mean_distance_moved(order: npt.NDArray[np.integer]) -> float:
    """The mean distance of a number from its place in the sorted order, as a share of all positions; 0 if sorted.
    `order`: shape (n,).
    """
    if not len(order):
        return 0.0
    sorted_places = np.argsort(order)  # the place of the smallest number, the second smallest, ...
    return float(np.abs(sorted_places - np.arange(len(order))).mean()) / len(order)


def repeats(labels: npt.NDArray[np.integer]) -> float:
    """The share of neighbours in a sequence that have the same label. `labels`: shape (n,)."""
    return float((labels[1:] == labels[:-1]).mean()) if len(labels) > 1 else 0.0


def repeats_expected(labels: npt.NDArray[np.integer]) -> float:
    """The mean of `repeats` over all orders of the labels."""
    total = len(labels)
    counts = np.unique(labels, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1)).sum() / (total * (total - 1))) if total > 1 else 0.0


def _log_factorial(number: float) -> float:
    """log2 of the factorial, by the gamma function also between whole numbers."""
    return lgamma(number + 1) / log(2)
