"""The part of a node cache's memory that this process can use for segments. This module sets a limit of the process.

Each chunk in a node cache takes a descriptor and a mapping. Pinned chunks are never evicted, so if either runs out, all
later fetches and connections fail. A node cache stays below both limits.
"""

import logging

from dieselfs.limits import MIB
from dieselfs.process.system_limits import allow_descriptors
from dieselfs.snapshot.reader import Snapshot

_log = logging.getLogger(__name__)


def usable_bytes(memory_bytes: int, snapshot: Snapshot) -> int:
    """The part of `memory_bytes` that a node cache of this process can use for chunks of `snapshot`; logs a warning if
    it is less. Called before the node cache is made.
    """
    segments = allow_descriptors()
    if not snapshot.chunk_count:
        return memory_bytes
    mean_bytes = float(snapshot.column("chunk_payload_lengths").mean())
    most_bytes = int(segments * mean_bytes)
    if memory_bytes <= most_bytes:
        return memory_bytes
    _log.warning(
        "%d of %d MiB are used for chunks: the limits of this process allow %d chunks; raise `ulimit -n` or "
        "vm.max_map_count for more",
        most_bytes // MIB,
        memory_bytes // MIB,
        segments,
    )
    return most_bytes
