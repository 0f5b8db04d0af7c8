"""Changes the user of a process, for tests that run as root."""

import os
import subprocess

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
