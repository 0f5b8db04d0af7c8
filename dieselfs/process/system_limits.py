"""What the system allows this process: memory, processors, descriptors and mappings. This module reads files of the
system, and sets a limit of the process.
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


_MEMBERSHIP, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cgroup_limits(membership: Path = _MEMBERSHIP, root: Path = _CGROUPS) -> Iterator[tuple[int, str]]:
    """The memory limits of the control groups around this process, of either version, innermost first."""
    for folder, is_second, where in _control_groups("memory", membership, root):
        text = content_of(folder / ("memory.max" if is_second else "memory.limit_in_bytes"))
        if text.isdigit() and int(text) < 1 << 60:
            yield int(text), where


def usable_processors(membership: Path = _MEMBERSHIP, root: Path = _CGROUPS) -> int:
    """How many processors this process may use: those of its affinity, or as many as the CPU quotas of the control
    groups around it allow, rounded up; one at least.
    """
    found = len(os.sched_getaffinity(0))
    for folder, is_second, _ in _control_groups("cpu", membership, root):
        names = ("cpu.max",) if is_second else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota, period, *_ = [*" ".join(content_of(folder / name) for name in names).split(), "", ""]
        if quota.isdigit() and period.isdigit() and int(period):  # else "max", or -1
            found = min(found, -(-int(quota) // int(period)))
    return max(found, 1)


def _control_groups(controller: str, membership: Path, root: Path) -> Iterator[tuple[Path, bool, str]]:
    """The control groups around this process that may limit it: folder, whether of version 2, and name; innermost
    first.
    """
    for line in content_of(membership).splitlines():
        number, controllers, path = line.split(":", 2)
        if is_second := number == "0" and not controllers:
            top = root / "unified" if (root / "unified").is_dir() else root
        elif controller in controllers.split(","):
            top = root / controller
        else:
            continue
        folder = top / path.lstrip("/")
        for place in (folder, *folder.parents):
            if not place.is_relative_to(top):
                break
            yield place, is_second, str(place.relative_to(top)) if place != top else "/"


def content_of(file: Path) -> str:
    """The text of a file of the system; empty if it cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def available_bytes(file: Path = _MEMORY_FILE) -> int | None:
    """The memory that programs can still take without swapping; None if the kernel does not say. Reads `file`."""
    lines = content_of(file).splitlines()
    numbers = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(number) * KIB for _, number, *_ in numbers), None)


def run_delay_s(file: Path = Path("/proc/self/schedstat")) -> float:
    """How long the main thread of this process was ready and waited for a processor; 0 if unknown. Reads `file`."""
    try:
        return int(file.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
