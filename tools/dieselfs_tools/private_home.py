"""A temporary home for embedded data and its server. This module writes a temporary folder."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dieselfs.process.embedded_server import socket_path
from dieselfs.process.lock import locked

STOP_TIMEOUT_S = 15.0


@contextmanager
def private_home(folder: str | None = None) -> Iterator[Path]:
    """A new DIESELFS_HOME in `folder`, or in the folder of temporary files; removed at the end of the context."""
    home = Path(tempfile.mkdtemp(prefix="dieselfs-", dir=folder))
    try:
        yield home
    finally:
        stop_server(home)
        shutil.rmtree(home, ignore_errors=True)


def stop_server(home: Path) -> bool:
    """End the embedded server of `home`, if there is one, by removing its socket; returns whether it ended in time."""
    with suppress(FileNotFoundError):
        socket_path(home).unlink()
    try:
        with locked(home / "run" / "server.lock", STOP_TIMEOUT_S):
            return True
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
