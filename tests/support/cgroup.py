"""Control groups with a memory limit, of either version, for tests; always removed at the end."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
REMOVE_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class ControlGroup:
    folder: Path

    def enter(self) -> None:
        """Put the calling process into the group; its child processes will also be in it."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak_bytes(self) -> int:
        names = ("memory.max_usage_in_bytes", "memory.peak")
        return next(int((self.folder / name).read_text()) for name in names if (self.folder / name).exists())


def why_not() -> str:
    """The reason why no control group can limit memory here; empty if one can."""
    parent, limit = _place()
    if not os.access(parent, os.W_OK):
        return "needs the right to make control groups"
    probe = parent / f"dieselfs-probe-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError as error:
        return f"no control group can be made: {error.strerror}"
    try:
        return "" if (probe / limit).exists() else "control groups here do not limit memory"
    finally:
        probe.rmdir()


def _place() -> tuple[Path, str]:
    if (ROOT / "memory").is_dir():
        return ROOT / "memory", "memory.limit_in_bytes"
    return ROOT, "memory.max"


@contextmanager
def limited_group(name: str, limit_bytes: int) -> Iterator[ControlGroup]:
    """A group whose processes and their page cache may together use `limit_bytes`."""
    parent, limit = _place()
    folder = parent / f"dieselfs-{name}-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / limit).write_text(str(limit_bytes))
        yield ControlGroup(folder)
    finally:
        deadline_s = time.monotonic() + REMOVE_TIMEOUT_S
        while folder.exists():
            with suppress(OSError):  # its last process is still ending
                folder.rmdir()
            assert time.monotonic() < deadline_s, f"{folder} cannot be removed"
            time.sleep(0.02)
