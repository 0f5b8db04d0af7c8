"""What the system allows this process: memory, descriptors and mappings. This module reads files of the system,
and sets a limit of the process.
"""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from dieselfs.limits import KIB, NODE_READERS_MAX, PEER_CLIENTS_MAX

SPARE_SHARE = 0.25
DESCRIPTORS_SPARE_MAX = PEER_CLIENTS_MAX + 2 * NODE_READERS_MAX
MAPPINGS_SPARE_MAX = 4_096
"""This share of the process limits of descriptors and mappings, up to these numbers, is reserved for connections,
views, libraries, threads, and chunks in flight.
"""

_MAPPINGS_FILE = Path("/proc/sys/vm/max_map_count")
_MAPPINGS_DEFAULT = 65_530
_MEMORY_FILE = Path("/proc/meminfo")


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


def room_bytes() -> tuple[int | None, str]:
    """The bytes that the limits of this process allow, None without a limit, and the name of the limit. Reads files."""
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


def available_bytes(file: Path = _MEMORY_FILE) -> int | None:
    """The memory that programs can still take without swapping; None if the kernel does not say. Reads `file`."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    numbers = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(number) * KIB for _, number, *_ in numbers), None)


def run_delay_s(file: Path = Path("/proc/self/schedstat")) -> float:
    """How long the main thread of this process was ready and waited for a processor; 0 if unknown. Reads `file`."""
    try:
        return int(file.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
