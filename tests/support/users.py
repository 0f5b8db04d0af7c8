"""Changes the user of a process, for tests that run as root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534


def become_nobody() -> None:
    """Give up all rights of this process."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    """This process, as a user and as their group. Not for tests with threads that need root."""
    group = os.getegid()
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


def as_nobody(*command: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command as nobody."""
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return subprocess.run([*prefix, *command], capture_output=True, check=False)
