"""A home for embedded data that is gone afterwards, its server with it. This module writes a temporary folder."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dieselfs.embedded import socket_path

STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05


@contextmanager
def private_home(folder: str | None = None) -> Iterator[Path]:
    """A new folder to be a DIESELFS_HOME, in `folder` or where temporary files go."""
    home = Path(tempfile.mkdtemp(prefix="dieselfs-", dir=folder))
    try:
        yield home
    finally:
        stop_server(home)
        shutil.rmtree(home, ignore_errors=True)


def stop_server(home: Path) -> bool:
    """End the embedded server of `home`, if there is one, by taking its socket away; whether it ended in time."""
    with suppress(FileNotFoundError):
        socket_path(home).unlink()
    try:
        lock = os.open(home / "run" / "server.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline_s:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(_POLL_S)
        return False
    finally:
        os.close(lock)
