"""How many segments this process may hold, and so how much of its memory a shelf can use. This module sets a limit of
the process, and reads one of the system.

Each chunk on a shelf is one descriptor and one mapping. Where either runs out, nothing can be fetched and nobody let
in, and that for good: what is kept is never given up. So a shelf stays below both.
"""

import logging
import resource
from pathlib import Path

from dieselfs.limits import DESCRIPTORS_SPARE_MAX, MAPPINGS_SPARE_MAX, MIB, SPARE_SHARE
from dieselfs.meta.snapshot import Snapshot

_MAPPINGS_FILE = Path("/proc/sys/vm/max_map_count")
_MAPPINGS_DEFAULT = 65_530

_log = logging.getLogger(__name__)


def allow_descriptors() -> int:
    """Let this process have as many descriptors as the system allows, and tell how many segments it may hold then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        mappings = int(_MAPPINGS_FILE.read_text())
    except (OSError, ValueError):
        mappings = _MAPPINGS_DEFAULT
    return segments_most(hard, mappings)


def segments_most(descriptors: int, mappings: int) -> int:
    """How many segments a process may hold that may have so many descriptors and mappings: both have other uses."""
    limits = [(mappings, MAPPINGS_SPARE_MAX)]
    if descriptors != resource.RLIM_INFINITY:
        limits.append((descriptors, DESCRIPTORS_SPARE_MAX))
    return min(limit - min(int(limit * SPARE_SHARE), spare_max) for limit, spare_max in limits)


def usable_bytes(memory_bytes: int, snapshot: Snapshot) -> int:
    """So much of `memory_bytes` a shelf of this process can use for chunks of `snapshot`; if that is less, it says so
    in the log. To be called before the shelf is made.
    """
    segments = allow_descriptors()
    if not snapshot.chunk_count:
        return memory_bytes
    mean_bytes = float(snapshot.column("chunk_payload_lengths").mean())
    most_bytes = int(segments * mean_bytes)
    if memory_bytes <= most_bytes:
        return memory_bytes
    _log.warning(
        "%d of %d MiB are used for chunks: the system lets this process hold %d of them; raise `ulimit -n` or "
        "vm.max_map_count for more",
        most_bytes // MIB,
        memory_bytes // MIB,
        segments,
    )
    return most_bytes
