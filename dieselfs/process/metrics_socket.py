"""The metrics of each daemon, for the tools of the same user on the same machine. This module opens sockets.

A daemon listens on a Unix socket of its own, in the private folder of the user's daemons. It answers each connection
with one JSON object that has its metrics, and closes it. So no daemon needs a port, and tools find all of them.
"""

import errno
import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import trio

from dieselfs.errors import AccessDenied
from dieselfs.limits import MIB
from dieselfs.metrics import Registry, Report
from dieselfs.process.state_dirs import check_private, make_private, runtime_folder
from dieselfs.sockets import peer_user, reachable_path

METRICS_TIMEOUT_S = 2.0
"""For one answer of a daemon. One that takes longer is left out."""
METRICS_BYTES_MAX = 4 * MIB
"""Limit of one answer."""

_BACKLOG = 16
_READ_BYTES = 64 * 1024

_log = logging.getLogger(__name__)


def sockets_folder() -> Path:
    return runtime_folder() / "metrics"


async def publish(metrics: Registry, about: Mapping[str, str], folder: Path | None = None) -> None:
    """Answer tools of this user until cancelled. A daemon that cannot make its socket is only not seen by them."""
    metrics.counter("process.cpu_s", "Processor time of the process.", time.process_time)
    path = (folder or sockets_folder()) / f"{os.getpid()}.sock"
    try:
        make_private(path.parent)
        _remove_dead(path.parent)
        path.unlink(missing_ok=True)  # of an earlier process with this number
        listener = trio.socket.from_stdlib_socket(_listening(path))
    except (OSError, AccessDenied) as error:
        _log.warning("metrics are not published at %s: %s", path, error)
        return
    try:
        while True:
            try:
                connection, _ = await listener.accept()
            except OSError as error:
                _log.warning("cannot answer a tool that reads metrics: %s", error)
                await trio.sleep(METRICS_TIMEOUT_S)
                continue
            with (
                connection,
                trio.move_on_after(METRICS_TIMEOUT_S),
                suppress(OSError, trio.BrokenResourceError),
            ):
                if peer_user(connection) == os.getuid():
                    await trio.SocketStream(connection).send_all(_content(metrics, about))
    finally:
        listener.close()
        path.unlink(missing_ok=True)


def _content(metrics: Registry, about: Mapping[str, str]) -> bytes:
    """The answer; empty if a metric cannot be read, which must not end the daemon. Tools leave it out then."""
    try:
        return json.dumps(asdict(metrics.report(about))).encode()
    except Exception:
        _log.exception("metrics cannot be read")
        return b""


def _remove_dead(folder: Path) -> None:
    """Remove the sockets that killed processes have left: nobody listens there."""
    for path in folder.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as probe, reachable_path(str(path)) as reachable:
            probe.setblocking(False)
            if probe.connect_ex(reachable) == errno.ECONNREFUSED:
                path.unlink(missing_ok=True)


def _listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with reachable_path(str(path)) as reachable:
            listener.bind(reachable)
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def published(folder: Path | None = None) -> Iterator[tuple[int, Report]]:
    """The process ID and the metrics of each daemon of this user that answers. Removes sockets of dead ones.

    Raises AccessDenied if other users can enter the folder.
    """
    folder = folder or sockets_folder()
    if not folder.is_dir():
        return
    check_private(folder)
    for path in sorted(folder.glob("*.sock"), key=lambda path: path.name.zfill(16)):
        try:
            yield int(path.stem), Report.parse(_answer(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            _log.info("%s gives no metrics: %s", path, error)


def _answer(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(METRICS_TIMEOUT_S)
        with reachable_path(str(path)) as reachable:
            connection.connect(reachable)
        if peer_user(connection) != os.getuid():
            raise PermissionError(f"{path} is another user's")
        content = bytearray()
        while part := connection.recv(_READ_BYTES):
            content += part
            if len(content) > METRICS_BYTES_MAX:
                raise ValueError(f"more than {METRICS_BYTES_MAX} bytes")
        return bytes(content)
