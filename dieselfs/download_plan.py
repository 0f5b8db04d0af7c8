"""What a download takes: which nodes, and their extents in storage order. No I/O."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dieselfs.meta.snapshot import Snapshot, Stat


@dataclass(frozen=True, eq=False)
class DownloadPlan:
    """Nodes to make: folders and links in order of the walk; files without bytes; and who owns which extent.

    `extents` (numbers in the snapshot) are ordered by chunk and place in it, `owners` are the nodes of their
    files, and `starts` the positions at which a chunk begins, with the number of all at the end.
    """

    folders: npt.NDArray[np.int64]
    links: npt.NDArray[np.int64]
    empty_files: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64]
    extents: npt.NDArray[np.int64]
    starts: Sequence[int]
    files: int
    total_bytes: int


def plan_download(snapshot: Snapshot, node: int) -> DownloadPlan:
    """What downloading `node`, with all that is below it, takes."""
    nodes = np.fromiter(snapshot.walk(node), np.int64)
    nodes = np.concatenate([np.array([node], np.int64), nodes])
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


def is_there(status: os.stat_result | None, wanted: Stat) -> bool:
    """Whether what is at the destination is this file already, as far as type, size and time tell."""
    return (
        status is not None
        and stat.S_ISREG(status.st_mode)
        and (status.st_size, status.st_mtime_ns) == (wanted.size, wanted.mtime_ns)
    )
