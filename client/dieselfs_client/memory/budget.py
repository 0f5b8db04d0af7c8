"""The memory budget of a mount: its parts, and whether they fit. No I/O.

`--memory` covers the data of a dataset in a mount: the pages of the snapshot, the tables made from it, chunks in flight
and in memory, and pages pushed into the page cache. It does not cover the program (`room.PROGRAM_BYTES`).

Each file is read once in an epoch. Then no policy, not even one that knows the future, has more hits in the same memory
than one that never evicts: at the start of an epoch, either holds no more than fits. So the memory has a *pinned* part,
which is never evicted, and a *window* for the rest.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import sqrt

import numpy as np

from dieselfs.errors import InvalidInput
from dieselfs.limits import CHUNK_TARGET_BYTES, FETCHES_AT_ONCE_MAX, MIB
from dieselfs.prefetch.extent_table import ExtentTable
from dieselfs.shuffle.groups import GROWN_CHUNKS_MAX, group_ends
from dieselfs.snapshot.reader import Snapshot
from dieselfs.units import format_size

TABLE_BYTES_PER_NODE = 32
"""Of a mount with a plan: 4 for the order, 8 for the extents by chunk, 5 for what is held, 4 for requests, 4 for places
in an image, and 7 while the extents are sorted.
"""
SNAPSHOT_SHARE_MAX = 0.5
"""The largest part for the pages of the snapshot and of an image. They are mapped files: the kernel takes back what
nobody uses, so they may be larger than their part.
"""
WINDOW_BYTES = 2 * GROWN_CHUNKS_MAX * CHUNK_TARGET_BYTES
"""Two of the largest default groups: one is read while the other is fetched."""
WINDOW_BYTES_MAX = 2 * 100 * CHUNK_TARGET_BYTES
"""Two groups of 100 chunks, for readers that choose larger groups."""
SPAN_BYTES = 64 * MIB
"""A node fetches its shares of several groups of a shared plan together, up to this size. Otherwise each request on n
nodes would have a share of a share of a group, which shrinks with the square of n.
"""
WINDOW_SHARE, WINDOW_SHARE_MAX = 0.4, 0.8
"""The part for the window, of the memory without the fixed parts; up to the larger share for WINDOW_BYTES."""
EVICTABLE_BYTES = FETCHES_AT_ONCE_MAX * CHUNK_TARGET_BYTES
EVICTABLE_SHARE = 0.25
NODE_CACHE_SHARE = 0.75
"""The largest part for the node cache: chunks that other nodes may request are worth more than files of this node."""
NODE_CACHE_EVICTABLE_SHARE = 0.4
"""The largest part of a node cache for evictable chunks: they stay until their readers have read them."""
OWNED_SPREADS = 4
"""A node may own this many standard deviations more chunks than its part, by chance."""
CHUNKS_MIN = 2
"""The minimum in flight, so that one chunk is fetched while another is read."""


@dataclass(frozen=True, slots=True)
class Allotment:
    """The limit of each part of the memory of a mount, in bytes."""

    snapshot: int
    tables: int
    evictable: int
    """Chunks in flight, or waiting to be pushed."""
    window: int
    """Files of plans, fetched ahead of their readers and dropped behind them."""
    pinned: int
    """Files that are never evicted."""
    node_cache: int = 0
    """Chunks that this node owns in the pooled memory of its job."""

    @property
    def total(self) -> int:
        return self.snapshot + self.tables + self.evictable + self.window + self.pinned + self.node_cache


def allot(
    memory_bytes: int,
    snapshot_bytes: int,
    nodes: int,
    dataset_bytes: int,
    chunk_bytes: int,
    owned_bytes: int = 0,
    fetches: int = FETCHES_AT_ONCE_MAX,
) -> Allotment:
    """Split `memory_bytes`. `dataset_bytes`: all files in the page cache; `chunk_bytes`: the largest chunk;
    `owned_bytes`: the chunks that a node of a job owns, which get up to NODE_CACHE_SHARE of the rest; `fetches`: at
    once, of usual chunks.

    If the dataset fits, it is pinned and there is no window. Raises InvalidInput if not even two chunks fit
    beside the part of the snapshot.
    """
    tables = nodes * TABLE_BYTES_PER_NODE
    least = CHUNKS_MIN * chunk_bytes
    needed_bytes = min(snapshot_bytes + tables + least, int((tables + least) / (1 - SNAPSHOT_SHARE_MAX)))
    snapshot_bytes = min(snapshot_bytes, int(memory_bytes * SNAPSHOT_SHARE_MAX))
    left = memory_bytes - snapshot_bytes - tables
    if left < least:
        needed = -(-needed_bytes // MIB)
        raise InvalidInput(
            f"{memory_bytes // MIB} MiB of memory cannot hold the snapshot and two chunks; "
            f"give at least --memory {needed}MiB"
        )
    evictable = max(least, min(fetches * CHUNK_TARGET_BYTES, int(left * EVICTABLE_SHARE)))
    left -= evictable
    node_cache = min(owned_bytes, int(left * NODE_CACHE_SHARE))
    left -= node_cache
    window = 0 if dataset_bytes <= left else window_bytes(left)
    return Allotment(snapshot_bytes, tables, evictable, window, min(left - window, dataset_bytes), node_cache)


def window_bytes(left: int) -> int:
    """The part for the window, of `left` bytes for files."""
    least = min(WINDOW_BYTES, int(left * WINDOW_SHARE_MAX))
    return min(WINDOW_BYTES_MAX, max(least, int(left * WINDOW_SHARE)))


def allot_for(
    snapshot: Snapshot,
    memory_bytes: int,
    job_nodes: int = 0,
    image_bytes: int = 0,
    fetches: int = FETCHES_AT_ONCE_MAX,
) -> Allotment:
    """How a mount of a snapshot splits its memory. Raises InvalidInput as `allot`.

    `job_nodes`: nodes that pool their memory, 1 if their number is not known, 0 without a job. `image_bytes`: of the
    metadata area of an image. `fetches`: at once.
    """
    dataset_bytes = ExtentTable(snapshot).total_page_bytes
    return allotting(snapshot, dataset_bytes, job_nodes, image_bytes, fetches)(memory_bytes)


def allotting(
    snapshot: Snapshot, dataset_bytes: int, job_nodes: int, image_bytes: int, fetches: int
) -> Callable[[int], Allotment]:
    """`allot` for any memory, with the other arguments as `allot_for` has them. `dataset_bytes`: as for `allot`."""
    lengths = snapshot.column("chunk_payload_lengths")
    owned_bytes = 0
    if job_nodes and len(lengths):
        share = owned_chunks_most(len(lengths), job_nodes) / len(lengths)
        owned_bytes = node_cache_bytes_for(int(share * int(lengths.sum(dtype=np.int64))), job_nodes)
    return partial(
        allot,
        snapshot_bytes=len(snapshot.content) + image_bytes,
        nodes=len(snapshot),
        dataset_bytes=dataset_bytes,
        chunk_bytes=int(lengths.max()) if len(lengths) else 0,
        owned_bytes=owned_bytes,
        fetches=fetches,
    )


def window_advice(
    allotment: Allotment, dataset_bytes: int, chunks: int, allotted: Callable[[int], Allotment]
) -> str:
    """One line on the memory if a plan fetches groups in parts, because two of the largest default groups of this
    dataset are more than the window; empty if they fit, or if everything is pinned.

    `allotment`: of a mount without a job; `chunks`: of the dataset; `allotted`: the allotment of another memory.
    """
    if not allotment.window or not chunks:
        return ""
    group_chunks = int(np.diff(group_ends(chunks, None), prepend=0).max())
    group_bytes = -(-dataset_bytes * group_chunks // chunks)
    if 2 * group_bytes <= allotment.window:
        return ""

    def is_enough(memory_mib: int) -> bool:
        window = allotted(memory_mib * MIB).window
        return not window or window >= 2 * group_bytes

    # A mount with all of these parts pins the dataset.
    most_bytes = 2 * (allotment.snapshot + allotment.tables + allotment.evictable + dataset_bytes)
    given_mib = allotment.total // MIB
    while not is_enough(most_bytes // MIB):  # parts that little memory has cut short
        most_bytes *= 2
    needed_mib = bisect_left(range(most_bytes // MIB), True, lo=given_mib, key=is_enough)
    fitting = allotment.window // 2 * chunks // dataset_bytes
    smaller = f", or read in smaller groups (group={fitting})" if fitting else ""
    return (
        f"{given_mib} MiB of memory are too little for plans with default groups ({group_chunks} chunks, about "
        f"{format_size(group_bytes)}): each is fetched in parts, and chunks may come again; give the mount "
        f"--memory {needed_mib}MiB{smaller}"
    )


def owned_chunks_most(chunks: int, nodes: int) -> float:
    """The largest number of these chunks that one of `nodes` may own, by chance."""
    part = chunks / nodes
    return min(part + OWNED_SPREADS * sqrt(part), chunks)


def node_cache_evictable_bytes(node_cache_bytes: int, nodes: int) -> int:
    """The part of a node cache for evictable chunks: those of two spans that one node owns, because all nodes read one
    span and fetch another. With less, servers send chunks more than once in an epoch. So this part comes before pinned
    chunks.
    """
    span_chunks = max(GROWN_CHUNKS_MAX, nodes * SPAN_BYTES // CHUNK_TARGET_BYTES)
    chunks = owned_chunks_most(2 * span_chunks, nodes)
    return min(int(node_cache_bytes * NODE_CACHE_EVICTABLE_SHARE), int(chunks * CHUNK_TARGET_BYTES))


def kept_in_node_cache(node_cache_bytes: int, nodes: int) -> int:
    """The part of a node cache for pinned chunks."""
    return node_cache_bytes - node_cache_evictable_bytes(node_cache_bytes, nodes)


def offered_bytes(memory_bytes: int, disk_bytes: int, dataset_bytes: int, nodes: int) -> int:
    """What a node offers to its job: its memory for chunks, and its disk if the memory of `nodes` like this one cannot
    hold the dataset. Otherwise a node with a larger disk would own chunks that the memory of others has room for.
    """
    if memory_bytes * max(nodes, 1) >= dataset_bytes:
        return memory_bytes
    return memory_bytes + min(disk_bytes, dataset_bytes)


def span_bytes(allotment: Allotment, plans: int) -> int:
    """The limit for shares of several groups that are fetched together, while `plans` share the window. 0 without a
    node cache.

    It is a quarter of a plan's part of the window: one span is read, one lags behind, and two are ahead. It is also at
    most a quarter of the evictable part of the node cache, as each node owns as many bytes as it reads.
    """
    evictable_bytes = int(allotment.node_cache * NODE_CACHE_EVICTABLE_SHARE)
    return min(SPAN_BYTES, allotment.window // max(plans, 1) // 4, evictable_bytes // 4)


def node_cache_bytes_for(owned_bytes: int, nodes: int) -> int:
    """The smallest node cache that pins this much."""
    largest_bytes = node_cache_evictable_bytes(1 << 62, nodes)
    return min(int(owned_bytes / (1 - NODE_CACHE_EVICTABLE_SHARE)) + 1, owned_bytes + largest_bytes)
