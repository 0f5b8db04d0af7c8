"""Being somebody else, for tests that run as root."""

import os
import subprocess
from pathlib import Path

NOBODY = 65534


def become_nobody() -> None:
    """Give up all rights of this process."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def as_nobody(*command: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command as nobody."""
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return subprocess.run([*prefix, *command], capture_output=True, check=False)


def let_others_in(folder: Path) -> None:
    """Make the way to a folder of pytest's passable for others."""
    while folder.stat().st_uid == os.getuid() and folder.parent != folder and folder != Path("/tmp"):
        folder.chmod(folder.stat().st_mode | 0o055)
        folder = folder.parent
