"""A temporary home for embedded data and its server. This module writes a temporary folder."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dieselfs.process.embedded_server import socket_path
from dieselfs.process.state_dirs import locked

STOP_TIMEOUT_S = 15.0


@contextmanager
def private_home() -> Iterator[Path]:
    """A new DIESELFS_HOME in the folder of temporary files; removed at the end of the context."""
    home = Path(tempfile.mkdtemp(prefix="dieselfs-"))
    try:
        yield home
    finally:
        stop_server(home)
        shutil.rmtree(home, ignore_errors=True)


def stop_server(home: Path) -> None:
    """End the embedded server of `home`, if there is one, by removing its socket; wait until it has ended."""
    with suppress(FileNotFoundError):
        socket_path(home).unlink()
    with suppress(FileNotFoundError, BlockingIOError), locked(home / "run" / "server.lock", STOP_TIMEOUT_S):
        pass
