"""A temporary home for embedded data and its server. This module writes a temporary folder."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dieselfs.process.embedded_server import socket_path
from dieselfs.process.state_dirs import locked

STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05


@contextmanager
def private_home(folder: Path | None = None) -> Iterator[Path]:
    """A new DIESELFS_HOME in `folder`, or else where temporary files are; removed at the end of the context."""
    home = Path(tempfile.mkdtemp(prefix="dieselfs-", dir=folder)).absolute()
    try:
        yield home
    finally:
        stop_server(home)
        end_s = time.monotonic() + STOP_TIMEOUT_S
        # The daemon of a mount may still write its last lines.
        while home.exists() and time.monotonic() < end_s:
            shutil.rmtree(home, ignore_errors=True)
            time.sleep(_POLL_S)


def stop_server(home: Path) -> None:
    """End the embedded server of `home`, if there is one, by removing its socket; wait until it has ended."""
    with suppress(FileNotFoundError):
        socket_path(home).unlink()
    with suppress(FileNotFoundError, BlockingIOError), locked(home / "run" / "server.lock", STOP_TIMEOUT_S):
        pass
