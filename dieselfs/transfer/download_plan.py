"""The plan of a download: its nodes, and their extents in storage order. No I/O."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.snapshot.reader import Snapshot, Stat


@dataclass(frozen=True, eq=False)
class DownloadPlan:
    """The nodes of a download, as node numbers of shape (n,): folders and links in the order of the walk.

    `extents` are extent numbers of the snapshot, ordered by chunk and offset in it; `owners` are the nodes of their
    files, of the same shape. `starts` are the positions at which a chunk begins, and then the number of extents.
    """

    folders: Numbers
    links: Numbers
    empty_files: Numbers
    owners: Numbers
    extents: Numbers
    starts: Sequence[int]
    files: int
    total_bytes: int


def plan_download(snapshot: Snapshot, node: int) -> DownloadPlan:
    """The plan to download `node` and everything below it."""
    nodes = np.fromiter(chain([node], snapshot.walk(node)), np.int64)
    kinds = snapshot.column("modes")[nodes] & 0o170000
    files = nodes[kinds == stat.S_IFREG]
    counts = snapshot.column("counts")[files].astype(np.int64)
    firsts = snapshot.column("firsts")[files].astype(np.int64)
    owners = np.repeat(files, counts)
    extents = np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(len(owners))
    chunks = snapshot.column("extent_chunks")[extents].astype(np.int64)
    order = np.lexsort((snapshot.column("extent_offsets")[extents], chunks))
    return DownloadPlan(
        folders=nodes[kinds == stat.S_IFDIR],
        links=nodes[kinds == stat.S_IFLNK],
        empty_files=files[counts == 0],
        owners=owners[order],
        extents=extents[order],
        starts=[*np.flatnonzero(np.diff(chunks[order], prepend=-1)).tolist(), len(order)],
        files=len(nodes),
        total_bytes=int(snapshot.column("sizes")[files].sum()),
    )


def is_there(status: os.stat_result | None, stored: Stat) -> bool:
    """Whether the destination has this file already, by type, size and time."""
    return (
        status is not None
        and stat.S_ISREG(status.st_mode)
        and (status.st_size, status.st_mtime_ns) == (stored.size, stored.mtime_ns)
    )
