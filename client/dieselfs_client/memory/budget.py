"""Memory is a contract: what a mount may take, how it is split, and whether that fits. No I/O but `room_bytes`.

`--memory` covers what a mount holds of a dataset: the snapshot's pages, the tables made from it, chunks on their way
and in memory, and the pages that were pushed into the page cache. The program itself is not in it (PROGRAM_BYTES).

What is read once in an epoch is best kept by never letting it go: no policy, not even one that knows the future, gets
more hits out of the same memory (at the start of an epoch it holds no more than fits, and each file is read once).
So the memory has a *pinned* part, which is never evicted, and a *window* through which all else streams.
"""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from dieselfs.errors import InvalidInput
from dieselfs.limits import CHUNK_TARGET_BYTES, FETCHES_AT_ONCE_MAX, MIB, MOUNT_MEMORY_BYTES
from dieselfs.shuffle.spec import DEFAULT_GROUP_CHUNKS

PROGRAM_BYTES = 160 * MIB
"""The daemon's program, its libraries and its supervisor."""
TABLE_BYTES_PER_NODE = 40
WINDOW_BYTES = 2 * DEFAULT_GROUP_CHUNKS * CHUNK_TARGET_BYTES
"""Two groups: one that is read and one that is fetched."""
SPAN_BYTES = 64 * MIB
"""Of a plan that other nodes read as well, what a node has fetched together is this much, where its shares of several
groups come to it: else on n nodes a request has a share of a share of a group, which shrinks with the square of n.
"""
WINDOW_SHARE = 0.8
"""The window takes no more of what is left once the fixed parts have theirs."""
EVICTABLE_BYTES = FETCHES_AT_ONCE_MAX * CHUNK_TARGET_BYTES
EVICTABLE_SHARE = 0.25
NODE_CACHE_SHARE = 0.75
"""What others may ask for is worth more than what only this node reads again."""
NODE_CACHE_EVICTABLE_SHARE = 0.4
"""The largest part of a node cache for evictable chunks: they stay until their readers have read them."""
OWNED_SPREADS = 4
"""By chance, a node may own this many standard deviations more chunks than its part."""
CHUNKS_MIN = 2
"""With fewer in flight, nothing could be fetched while something is read."""


@dataclass(frozen=True, slots=True)
class Allotment:
    """How many bytes each part of a mount may take."""

    snapshot: int
    tables: int
    evictable: int
    """Chunks in flight, or waiting to be pushed."""
    window: int
    """Files of plans, fetched ahead of their readers and dropped behind them."""
    pinned: int
    """Files that are never evicted."""
    node_cache: int = 0
    """Chunks that this node owns in the memory that its job pools."""

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
) -> Allotment:
    """Split `memory_bytes`. `dataset_bytes`: all files in the page cache; `chunk_bytes`: the largest chunk;
    `owned_bytes`: the chunks that a node of a job owns, which get up to NODE_CACHE_SHARE of what is left.

    If the dataset fits, all of it is kept and there is no window. Raises InvalidInput if not even two chunks fit
    beside the snapshot.
    """
    tables = nodes * TABLE_BYTES_PER_NODE
    left = memory_bytes - snapshot_bytes - tables
    least = CHUNKS_MIN * chunk_bytes
    if left < least:
        needed = -(-(snapshot_bytes + tables + least) // MIB)
        raise InvalidInput(
            f"{memory_bytes // MIB} MiB of memory cannot hold the snapshot and two chunks; "
            f"give at least --memory {needed}MiB"
        )
    evictable = max(least, min(EVICTABLE_BYTES, int(left * EVICTABLE_SHARE)))
    left -= evictable
    node_cache = min(owned_bytes, int(left * NODE_CACHE_SHARE))
    left -= node_cache
    window = 0 if dataset_bytes <= left else min(WINDOW_BYTES, int(left * WINDOW_SHARE))
    return Allotment(snapshot_bytes, tables, evictable, window, min(left - window, dataset_bytes), node_cache)


def owned_chunks_most(chunks: int, nodes: int) -> float:
    """The most of these chunks that one of `nodes` may own, by chance."""
    part = chunks / nodes
    return min(part + OWNED_SPREADS * sqrt(part), chunks)


def node_cache_evictable_bytes(node_cache_bytes: int, nodes: int) -> int:
    """The part of a node cache for evictable chunks: what one node owns of two spans, as all nodes read one and fetch
    another. With less, chunks leave the servers more than once in an epoch, so this comes before pinned chunks.
    """
    span_chunks = max(DEFAULT_GROUP_CHUNKS, nodes * SPAN_BYTES // CHUNK_TARGET_BYTES)
    chunks = owned_chunks_most(2 * span_chunks, nodes)
    return min(int(node_cache_bytes * NODE_CACHE_EVICTABLE_SHARE), int(chunks * CHUNK_TARGET_BYTES))


def span_bytes(allotment: Allotment, plans: int) -> int:
    """How much the shares of several groups may have that are fetched together, where so many plans share the window:
    a quarter of it, as one span is read, one lags behind it, and two are ahead; and a quarter of what passes through
    the node cache, as each node owns as much as it reads. 0 without a node cache.
    """
    evictable_bytes = int(allotment.node_cache * NODE_CACHE_EVICTABLE_SHARE)
    return min(SPAN_BYTES, allotment.window // max(plans, 1) // 4, evictable_bytes // 4)


def node_cache_bytes_for(owned_bytes: int, nodes: int) -> int:
    """The smallest node cache that pins this much."""
    largest_bytes = node_cache_evictable_bytes(1 << 62, nodes)
    return min(int(owned_bytes / (1 - NODE_CACHE_EVICTABLE_SHARE)) + 1, owned_bytes + largest_bytes)


def granted(memory_bytes: int, room: int | None, why: str = "") -> int:
    """What a mount may take: `memory_bytes`, or for 0 the default, or less where that is all the `room` there is.

    `room` is what limits of the system leave (None: no limit), `why` names the limit. Raises InvalidInput if the
    user asks for more.
    """
    left = None if room is None else room - PROGRAM_BYTES
    if memory_bytes == 0:
        return MOUNT_MEMORY_BYTES if left is None else max(0, min(MOUNT_MEMORY_BYTES, left))
    if left is not None and memory_bytes > left:
        raise InvalidInput(
            f"--memory {memory_bytes // MIB}MiB and the program ({PROGRAM_BYTES // MIB} MiB) are more than "
            f"{why} allows ({max(room or 0, 0) // MIB} MiB); give at most --memory {max(left, 0) // MIB}MiB"
        )
    return memory_bytes


def room_bytes() -> tuple[int | None, str]:
    """What the limits of this process allow it to take, and which limit it is. Reads files; None: no limit."""
    limits = [(limit, f"the cgroup {where}") for limit, where in cgroup_limits()]
    for kind, name in ((resource.RLIMIT_AS, "ulimit -v"), (resource.RLIMIT_DATA, "ulimit -d")):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            limits.append((soft, name))
    limits.append((os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "the machine's memory"))
    return min(limits, default=(None, ""))


def cgroup_limits(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[tuple[int, str]]:
    """The memory limits of the control groups around this process, of either version, innermost first."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            top, name = (root / "unified" if (root / "unified").is_dir() else root), "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = top / path.lstrip("/")
        for place in (folder, *folder.parents):
            if not place.is_relative_to(top):
                break
            try:
                text = (place / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit() and int(text) < 1 << 60:
                yield int(text), str(place.relative_to(top)) if place != top else "/"
