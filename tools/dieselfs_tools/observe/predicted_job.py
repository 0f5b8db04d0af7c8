"""The job of a prediction, from what its mounts are given: how much of a dataset stays in their memory. No I/O."""

from typing import Any

from dieselfs.prefetch.extent_table import ExtentTable
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.memory.budget import allot_for, kept_in_node_cache
from dieselfs_tools.observe.prediction import Job


def predicted_job(
    snapshot: Snapshot, size_bytes: int, memory_bytes: int, nodes: int, is_pooled: bool, **more: Any
) -> Job:
    """A job whose nodes mount `snapshot`, with `memory_bytes` each. `size_bytes`: of the files that an epoch reads;
    `more`: the other fields of the job.

    Raises InvalidInput if a mount cannot have so little memory.
    """
    allotment = allot_for(snapshot, memory_bytes, nodes if is_pooled else 0)
    kept = allotment.pinned / max(ExtentTable(snapshot).total_page_bytes, 1)
    return Job(
        nodes=nodes,
        kept_bytes=round(kept * size_bytes),
        is_pooled=is_pooled,
        pooled_bytes=kept_in_node_cache(allotment.node_cache, nodes),
        **more,
    )
