"""The memory that limits of the system leave to a mount: those of control groups, of the process, of the machine. This
module reads files of the kernel.
"""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from dieselfs.errors import InvalidInput
from dieselfs.limits import MIB, MOUNT_MEMORY_BYTES, MOUNT_MEMORY_BYTES_MIN

PROGRAM_BYTES = 160 * MIB
"""The daemon's program, its libraries and its supervisor."""


def shrunk(memory_bytes: int, room: int | None, why: str) -> str:
    """What the log says if a mount gets less memory than it has by default; empty if it does not."""
    least = granted(memory_bytes, room, why)
    if memory_bytes or least == MOUNT_MEMORY_BYTES:
        return ""
    default = MOUNT_MEMORY_BYTES // MIB
    return f"{why} allows {(room or 0) // MIB} MiB: {least // MIB} MiB are used for data, not {default} MiB"


def granted(memory_bytes: int, room: int | None, why: str = "") -> int:
    """The memory of a mount: `memory_bytes`, or for 0 the default, or less if the `room` is smaller.

    `room`: the bytes that the limits of the system allow, None without a limit; `why`: the name of the limit. Raises
    InvalidInput if `memory_bytes` is more, or the limit is too small for any mount.
    """
    left = None if room is None else room - PROGRAM_BYTES
    if left is not None and left < MOUNT_MEMORY_BYTES_MIN:
        least = (PROGRAM_BYTES + MOUNT_MEMORY_BYTES_MIN) // MIB
        raise InvalidInput(
            f"{why} allows {max(room or 0, 0) // MIB} MiB of memory, a mount needs {least} MiB at least: "
            "raise that limit"
        )
    if memory_bytes == 0:
        return MOUNT_MEMORY_BYTES if left is None else min(MOUNT_MEMORY_BYTES, left)
    if left is not None and memory_bytes > left:
        raise InvalidInput(
            f"--memory {memory_bytes // MIB}MiB and the program ({PROGRAM_BYTES // MIB} MiB) are more than "
            f"{why} allows ({(room or 0) // MIB} MiB); give at most --memory {left // MIB}MiB"
        )
    return memory_bytes


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
