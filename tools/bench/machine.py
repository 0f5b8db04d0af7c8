"""What the figures were measured on. This module reads /proc, and asks git."""

import os
import platform
import subprocess
from pathlib import Path


def machine_facts(folder: Path, arguments: list[str]) -> dict[str, str]:
    """The machine, the software, the file system of `folder`, and the command, in words."""
    return {
        "processors": f"{len(os.sched_getaffinity(0))} x {_field('/proc/cpuinfo', 'model name') or platform.machine()}",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": filesystem_type(folder),
        "Python": platform.python_version(),
        "commit": _commit(),
        "command": " ".join(["python -m bench", *arguments]),
        "load before": f"{os.getloadavg()[0]:.1f} processes",
        "user": "root" if os.getuid() == 0 else "not root: nothing is measured with caches dropped",
    }


def _field(path: str, name: str) -> str:
    with open(path, encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def filesystem_type(folder: Path) -> str:
    """The type of the file system that holds `folder`: that of the mount with the longest path that fits."""
    place, best = str(folder.resolve()), ("", "unknown")
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, mountpoint, kind, *_ = line.split()
            is_above = place == mountpoint or place.startswith(mountpoint.rstrip("/") + "/")
            if is_above and len(mountpoint) >= len(best[0]):
                best = (mountpoint, kind)
    return best[1]


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown: not a git checkout"
