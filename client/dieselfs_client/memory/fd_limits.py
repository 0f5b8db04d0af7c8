"""The limit of segments in this process, and so of the memory that a node cache can use. This module sets a limit
of the process, and reads one of the system.

Each chunk in a node cache takes a descriptor and a mapping. Pinned chunks are never evicted, so if either runs out, all
later fetches and connections fail. A node cache stays below both limits.
"""

import logging
import resource
from pathlib import Path

from dieselfs.limits import MIB, NODE_READERS_MAX, PEER_CLIENTS_MAX
from dieselfs.snapshot.reader import Snapshot

SPARE_SHARE = 0.25
DESCRIPTORS_SPARE_MAX = PEER_CLIENTS_MAX + 2 * NODE_READERS_MAX
MAPPINGS_SPARE_MAX = 4_096
"""This share of the process limits of descriptors and mappings, up to these numbers, is reserved for connections,
views, libraries, threads, and chunks in flight.
"""

_MAPPINGS_FILE = Path("/proc/sys/vm/max_map_count")
_MAPPINGS_DEFAULT = 65_530

_log = logging.getLogger(__name__)


def allow_descriptors() -> int:
    """Raise the limit of descriptors to the hard limit; returns how many segments the process may hold then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        mappings = int(_MAPPINGS_FILE.read_text())
    except (OSError, ValueError):
        mappings = _MAPPINGS_DEFAULT
    return segments_most(hard, mappings)


def segments_most(descriptors: int, mappings: int) -> int:
    """How many segments a process with these limits may hold, without the reserved numbers."""
    limits = [(mappings, MAPPINGS_SPARE_MAX)]
    if descriptors != resource.RLIM_INFINITY:
        limits.append((descriptors, DESCRIPTORS_SPARE_MAX))
    return min(limit - min(int(limit * SPARE_SHARE), spare_max) for limit, spare_max in limits)


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
