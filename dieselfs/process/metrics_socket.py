"""The metrics of each daemon, for the tools of the same user on the same machine. This module opens sockets.

A daemon listens on a Unix socket of its own, in the private folder of the user's daemons. A tool connects, writes what
it asks for, and ends its side. The daemon answers with one JSON object: its metrics if nothing was written, or its
`history`. So no daemon needs a port, and tools find all of them.
"""

import errno
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import trio

from dieselfs.errors import AccessDenied
from dieselfs.history import SAMPLE_INTERVAL_S, History, Recorded
from dieselfs.limits import MIB
from dieselfs.metrics import Registry, Report
from dieselfs.process.state_dirs import check_private, make_private, runtime_folder
from dieselfs.sockets import peer_user, reachable_path

METRICS_TIMEOUT_S = 2.0
"""For one answer of a daemon. One that takes longer is left out."""
METRICS_REQUEST_S = 0.2
"""For the request of a tool. One that writes nothing for so long, and does not end its side, gets the metrics."""
METRICS_BYTES_MAX = 4 * MIB
"""Limit of one answer."""
HISTORY = b"history"

_BEGAN_S = time.time() - time.monotonic()
"""With it, monotonic time is that since 1970, and no change of the clock disturbs it."""
_BACKLOG = 16
_READ_BYTES = 64 * 1024

_Answer = TypeVar("_Answer")

_log = logging.getLogger(__name__)


def sockets_folder() -> Path:
    return runtime_folder() / "metrics"


async def publish(
    metrics: Registry, about: Mapping[str, str], folder: Path | None = None, history: History | None = None
) -> None:
    """Answer tools of this user until cancelled, and keep `history` meanwhile. A daemon that cannot make its socket is
    only not seen by them.
    """
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
        async with trio.open_nursery() as nursery:
            if history is not None:
                nursery.start_soon(_keep, history)
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
                        stream = trio.SocketStream(connection)
                        await stream.send_all(await _content(await _request(stream), metrics, about, history))
    finally:
        listener.close()
        path.unlink(missing_ok=True)


async def _keep(history: History) -> None:
    while True:
        _sample(history)
        await trio.sleep(SAMPLE_INTERVAL_S)


def _sample(history: History) -> None:
    try:
        history.sample(_BEGAN_S + time.monotonic())
    except Exception:  # must not end the daemon
        _log.exception("metrics cannot be sampled")


async def _request(stream: trio.SocketStream) -> bytes:
    request = b""
    with trio.move_on_after(METRICS_REQUEST_S):
        while len(request) <= len(HISTORY) and (part := await stream.receive_some(_READ_BYTES)):
            request += part
    return request


async def _content(
    request: bytes, metrics: Registry, about: Mapping[str, str], history: History | None
) -> bytes:
    """The answer; empty if a metric cannot be read, which must not end the daemon. Tools leave it out then."""
    try:
        if request == HISTORY and history is not None:
            _sample(history)  # up to now
            content = history.content()
            # A hundred thousand numbers take a moment, for which no reader should wait.
            return await trio.to_thread.run_sync(lambda: json.dumps({"about": about, **content}).encode())
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
    yield from _parsed(Report.parse, b"", folder)


def histories(folder: Path | None = None) -> Iterator[tuple[int, Recorded]]:
    """The same for the histories, of the daemons that keep one."""
    yield from _parsed(Recorded.parse, HISTORY, folder)


def _parsed(
    parse: Callable[[bytes], _Answer], request: bytes, folder: Path | None
) -> Iterator[tuple[int, _Answer]]:
    folder = folder or sockets_folder()
    if not folder.is_dir():
        return
    check_private(folder)
    for path in sorted(folder.glob("*.sock"), key=lambda path: path.name.zfill(16)):
        try:
            process, answer = int(path.stem), parse(_answer(path, request))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            _log.info("%s gives no metrics: %s", path, error)
        else:
            yield process, answer


def _answer(path: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(METRICS_TIMEOUT_S)
        with reachable_path(str(path)) as reachable:
            connection.connect(reachable)
        if peer_user(connection) != os.getuid():
            raise PermissionError(f"{path} is another user's")
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        content = bytearray()
        while part := connection.recv(_READ_BYTES):
            content += part
            if len(content) > METRICS_BYTES_MAX:
                raise ValueError(f"more than {METRICS_BYTES_MAX} bytes")
        return bytes(content)
