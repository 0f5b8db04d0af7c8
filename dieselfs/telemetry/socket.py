"""The metrics of each daemon, for the tools of its user and of root on the same machine. This module opens sockets.

A daemon listens on a Unix socket of its own, in the private folder of the user's daemons. A tool connects, writes what
it asks for, and ends its side. The daemon answers with one JSON object: its metrics if nothing was written, or its
`history`. So no daemon needs a port, and tools find all of them: those of their user, and tools of root those of all.
"""

import errno
import json
import logging
import os
import re
import socket
import stat
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import trio

from dieselfs.errors import AccessDenied
from dieselfs.limits import MIB
from dieselfs.names import printable
from dieselfs.net.sockets import listening, peer_process, peer_user, reachable_path
from dieselfs.process.state_dirs import check_private, make_private, runtime_folder
from dieselfs.process.system_limits import run_delay_s
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry, Report
from dieselfs.telemetry.series import SAMPLE_INTERVAL_S, History, Recorded, Window

METRICS_TIMEOUT_S = 2.0
"""For one answer of a daemon. One that takes longer is left out."""
USER_TIMEOUT_S = 5.0
"""For the answers of all daemons of another user, in a tool of root. Those that come later are left out."""
METRICS_REQUEST_S = 0.2
"""How long a tool may take to send its request. A tool that sends none in this time gets the metrics."""
METRICS_BYTES_MAX = 4 * MIB
"""Limit of one answer of a daemon about itself."""
NODES_BYTES_MAX = 64 * MIB
"""The same about the other nodes of a job."""
HISTORY, NODES = b"history", b"nodes"
"""Requests; begin and end of a window, in seconds since 1970, may follow. `nodes`: of the other nodes of the job the
metrics or, with a window, the histories.
"""
_REQUEST_BYTES_MAX = 100

_BEGAN_S = time.time() - time.monotonic()
"""With it, monotonic time is that since 1970, and no change of the clock disturbs it."""
_READ_BYTES = 64 * 1024

RUNTIME_FOLDERS = (
    "/run/dieselfs",
    "/run/dieselfs-jobs/*/dieselfs",
    "/run/user/*/dieselfs",
    "/tmp/dieselfs-*",
)
"""Where `runtime_folder` is: of the unit of a server, of the jobs of Slurm, of logins, and of others."""
SOCKETS_MAX = 256
"""In one folder. Those above are left out."""
METRICS = "metrics"
"""The folder in a runtime folder for the sockets of daemons that tell their metrics."""

_SOCKET = re.compile(r"([1-9]\d{0,9})\.sock", re.ASCII)
_MOUNT_OF_FILE = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)

_Answer = TypeVar("_Answer")

_log = logging.getLogger(__name__)


class DaemonSocket(NamedTuple):
    """Where a daemon listens. `user`: the owner of the folder; `path`: as this process can reach it, until the next one
    is taken.
    """

    process: int
    user: int
    path: str


def sockets_folder() -> Path:
    return runtime_folder() / METRICS


class PublishedMetrics:
    """What a daemon tells of itself. `others`: asks the other nodes of its job for the same, by node; None without a
    job. Used from one trio thread.
    """

    def __init__(self, metrics: Registry, about: Mapping[str, str], history: History | None = None) -> None:
        self.metrics, self.about, self.history = metrics, about, history
        self.others: Callable[[Window | None], Awaitable[Mapping[str, bytes]]] | None = None

    def sample(self) -> None:
        if self.history is not None:
            try:
                self.history.sample(_BEGAN_S + time.monotonic())
            except Exception:  # must not end the daemon
                _log.exception("metrics cannot be sampled")

    def report(self) -> bytes:
        return json.dumps(asdict(self.metrics.report(self.about))).encode()

    async def recorded(self, window: Window | None = None) -> bytes:
        """The history up to now; without one, an empty one."""
        self.sample()
        empty: dict[str, Any] = {"times_s": [], "families": [], "plans": []}
        content = {"about": self.about, **(self.history.content(window) if self.history else empty)}
        # A hundred thousand numbers take a moment, for which no reader should wait.
        return await trio.to_thread.run_sync(lambda: json.dumps(content).encode())

    async def of_others(self, window: Window | None) -> bytes:
        found = await self.others(window) if self.others is not None else {}
        # Of many nodes, this takes a moment too.
        return await trio.to_thread.run_sync(_joined, found)

    async def answer(self, request: bytes) -> bytes:
        """Empty if a metric cannot be read, which must not end the daemon. Tools leave it out then."""
        try:
            kind, *numbers = request.split()[:3] or [b""]
            window = (float(numbers[0]), float(numbers[1])) if len(numbers) > 1 else None
            if kind == NODES:
                return await self.of_others(window)
            if kind == HISTORY and self.history is not None:
                return await self.recorded(window)
            return self.report()
        except Exception:  # must not end the daemon
            _log.exception("metrics cannot be read")
            return b""


def _joined(found: Mapping[str, bytes]) -> bytes:
    """JSON of all nodes; without those whose answer is none."""
    parts = []
    for node, content in found.items():
        with suppress(ValueError, RecursionError):
            parts.append(f"{json.dumps(node)}: {json.dumps(json.loads(content))}")
    return f"{{{', '.join(parts)}}}".encode()


async def publish(published_metrics: PublishedMetrics, folder: Path | None = None) -> None:
    """Answer tools of this user and of root until cancelled, and keep the history meanwhile. A daemon that cannot make
    its socket is only not seen by them.
    """
    published_metrics.metrics.declare(catalogue.PROCESS_CPU_S, time.process_time)
    published_metrics.metrics.declare(catalogue.PROCESS_RUN_DELAY_S, run_delay_s)
    path = (folder or sockets_folder()) / f"{os.getpid()}.sock"
    try:
        make_private(path.parent)
        _remove_dead(path.parent)
        path.unlink(missing_ok=True)  # of an earlier process with this number
        listener = trio.socket.from_stdlib_socket(listening(path, socket.SOCK_STREAM))
    except (OSError, AccessDenied) as error:
        _log.warning("metrics are not published at %s: %s", path, error)
        return
    try:
        async with trio.open_nursery() as nursery:
            if published_metrics.history is not None:
                nursery.start_soon(_keep, published_metrics)
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
                    if peer_user(connection) in (os.getuid(), 0):
                        stream = trio.SocketStream(connection)
                        await stream.send_all(await published_metrics.answer(await _request(stream)))
    finally:
        listener.close()
        path.unlink(missing_ok=True)


async def _keep(published_metrics: PublishedMetrics) -> None:
    while True:
        published_metrics.sample()
        await trio.sleep(SAMPLE_INTERVAL_S)


async def _request(stream: trio.SocketStream) -> bytes:
    request = b""
    with trio.move_on_after(METRICS_REQUEST_S):
        while len(request) < _REQUEST_BYTES_MAX and (part := await stream.receive_some(_REQUEST_BYTES_MAX)):
            request += part
    return request


def _remove_dead(folder: Path) -> None:
    """Remove the sockets that killed processes have left: nobody listens there."""
    for path in folder.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as probe, reachable_path(str(path)) as reachable:
            probe.setblocking(False)
            if probe.connect_ex(reachable) == errno.ECONNREFUSED:
                path.unlink(missing_ok=True)


def published(folder: Path | None = None) -> Iterator[tuple[int, Report]]:
    """The process ID and the metrics of each daemon that answers: those of this user in `folder` (`sockets_folder`).
    For root without `folder`, those of all users (`is_for_all_users`). Removes sockets of dead ones of this user.

    Raises AccessDenied if other users can enter the folder.
    """
    yield from _parsed(Report.parse, b"", folder)


def histories(folder: Path | None = None) -> Iterator[tuple[int, Recorded]]:
    """The same for the histories, of the daemons that keep one."""
    yield from _parsed(Recorded.parse, HISTORY, folder)


def of_nodes(process: int, folder: Path | None = None) -> dict[str, Report]:
    """The metrics of the other nodes of the job of a daemon that `published` has named; those that answer."""
    return _of_nodes(Report.parse, NODES, process, folder)


def histories_of_nodes(process: int, window: Window, folder: Path | None = None) -> dict[str, Recorded]:
    """The same for the histories, in a window."""
    return _of_nodes(Recorded.parse, b"%s %.3f %.3f" % (NODES, *window), process, folder)


def _of_nodes(
    parse: Callable[[bytes], _Answer], request: bytes, process: int, folder: Path | None
) -> dict[str, _Answer]:
    contents: dict[str, Any] = {}
    for daemon in _sockets(folder):
        if daemon.process == process:
            try:
                contents |= dict(json.loads(_answer(daemon, request, NODES_BYTES_MAX)))
            except (OSError, ValueError, TypeError, RecursionError) as error:
                _log.info("process %d gives no metrics of other nodes: %s", process, error)
    found = {}
    for node, content in contents.items():
        try:
            found[node] = parse(json.dumps(content).encode())
        except (ValueError, RecursionError) as error:
            _log.info("process %d gives no metrics of node %s: %s", process, node, error)
    return found


def _sockets(folder: Path | None) -> Iterator[DaemonSocket]:
    if folder is None and is_for_all_users():
        yield from node_sockets()
        return
    folder = folder or sockets_folder()
    if not folder.is_dir():
        return
    check_private(folder)
    for path in sorted(folder.glob("*.sock"), key=lambda path: path.name.zfill(16)):
        if path.stem.isdecimal():
            yield DaemonSocket(int(path.stem), os.getuid(), str(path))


def _parsed(
    parse: Callable[[bytes], _Answer], request: bytes, folder: Path | None
) -> Iterator[tuple[int, _Answer]]:
    is_own = folder is not None or not is_for_all_users()
    spent_s: dict[int, float] = {}
    for daemon in _sockets(folder):
        if spent_s.get(daemon.user, 0.0) > USER_TIMEOUT_S and daemon.user != os.getuid():
            continue
        answer, began_s = None, time.monotonic()
        try:
            answer = parse(_answer(daemon, request))
        except (OSError, ValueError) as error:
            if is_own and isinstance(error, ConnectionRefusedError):
                Path(daemon.path).unlink(missing_ok=True)
            else:
                _log.info("process %d of user %d gives no metrics: %s", daemon.process, daemon.user, error)
        spent_s[daemon.user] = spent_s.get(daemon.user, 0.0) + time.monotonic() - began_s
        if answer is not None:
            yield daemon.process, answer


def _answer(daemon: DaemonSocket, request: bytes, bytes_max: int = 0) -> bytes:
    bytes_max = bytes_max or METRICS_BYTES_MAX
    end_s = time.monotonic() + 2 * METRICS_TIMEOUT_S  # it may answer another tool first
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(METRICS_TIMEOUT_S)
        with reachable_path(daemon.path) as reachable:
            connection.connect(reachable)
        if peer_user(connection) != daemon.user:
            raise PermissionError("it is another user's")
        # The socket of another user may have the number of any process, which would then seem to say this.
        if daemon.user != os.getuid() and peer_process(connection) != daemon.process:
            raise PermissionError("another process listens there")
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        content = bytearray()
        while part := connection.recv(_READ_BYTES):
            content += part
            if len(content) > bytes_max:
                raise ValueError(f"more than {bytes_max} bytes")
            if time.monotonic() > end_s:
                raise TimeoutError("no whole answer in time")
    return bytes(content) if daemon.user == os.getuid() else harmless(bytes(content))


def harmless(content: bytes) -> bytes:
    """JSON whose texts have escapes in place of control characters, which another user could send to the terminal of
    root. Raises ValueError.
    """
    try:
        return json.dumps(_escaped(json.loads(content))).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, list):
        return [_escaped(each) for each in value]
    if isinstance(value, dict):
        return {_escaped(name): _escaped(each) for name, each in value.items()}
    return value


# -- the sockets of all users, for root ---------------------------------------------------------------------


def is_for_all_users() -> bool:
    """Whether the tools of this process see the daemons of all users: those of root, unless XDG_RUNTIME_DIR is a folder
    that no system sets. Its daemons are then apart.
    """
    return os.geteuid() == 0 and any(runtime_folder().match(pattern) for pattern in RUNTIME_FOLDERS)


def node_sockets(patterns: Sequence[str] = RUNTIME_FOLDERS, root: Path = Path("/")) -> Iterator[DaemonSocket]:
    """The sockets of all users, by folder and process ID. A folder that others than its owner may change or enter is
    left out.

    A user may change the own folders at any time. So each folder is opened below the one before, checked while it is
    open, and never looked up again: no symbolic link is followed, and nothing in a file system of FUSE is touched,
    which could block a caller for ever.
    """
    for pattern in patterns:
        top = os.open(root, os.O_PATH | os.O_DIRECTORY)
        try:
            yield from _below(top, [*pattern.strip("/").split("/"), METRICS])
        finally:
            os.close(top)


def _below(above: int, parts: Sequence[str]) -> Iterator[DaemonSocket]:
    if not parts:
        yield from _sockets_in(above)
        return
    for name in _names(above, parts[0]):
        with suppress(OSError), _opened(name, os.O_DIRECTORY, above) as folder:
            if not _is_fuse(folder) and _may_be_entered(above, name, folder):
                yield from _below(folder, parts[1:])


def _names(folder: int, pattern: str) -> list[str]:
    if "*" not in pattern:
        return [pattern]
    with _listed(folder) as entries:
        return sorted(entry.name for entry in entries if fnmatchcase(entry.name, pattern))


@contextmanager
def _listed(folder: int) -> Iterator[Iterator[os.DirEntry[str]]]:
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with closing(os.scandir(descriptor)) as entries:
            yield entries
    finally:
        os.close(descriptor)


@contextmanager
def _opened(name: str, flags: int, above: int) -> Iterator[int]:
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _may_be_entered(above: int, name: str, folder: int) -> bool:
    """Whether a folder is of the owner of the one above, or root made that; and in a folder that all may write, whether
    it has the name of its owner.
    """
    parent, status = os.fstat(above), os.fstat(folder)
    if parent.st_mode & stat.S_IWOTH and name != f"dieselfs-{status.st_uid}":
        return False
    return parent.st_uid in (0, status.st_uid)


def _is_fuse(descriptor: int) -> bool:
    """Whether an open file is in a file system of FUSE, or in one that is no longer mounted. Asks the kernel alone."""
    found = _MOUNT_OF_FILE.search(Path(f"/proc/self/fdinfo/{descriptor}").read_bytes())
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n"):
        mount, _, filesystem = line.partition(b" - ")
        if found is not None and mount.split(b" ", 1)[0] == found[1]:
            return filesystem.startswith(b"fuse")
    return True


def _sockets_in(folder: int) -> Iterator[DaemonSocket]:
    status = os.fstat(folder)
    if status.st_mode & 0o077:
        return
    with _listed(folder) as entries:
        names = [match for entry in islice(entries, SOCKETS_MAX) if (match := _SOCKET.fullmatch(entry.name))]
    for match in sorted(names, key=lambda match: int(match[1])):
        with suppress(OSError), _opened(match[0], 0, folder) as descriptor:
            found = os.fstat(descriptor)
            if stat.S_ISSOCK(found.st_mode) and found.st_uid == status.st_uid:
                yield DaemonSocket(int(match[1]), status.st_uid, f"/proc/self/fd/{descriptor}")
