"""Connects sockets with a timeout, and at Unix paths of any length; passes descriptors. This module opens sockets."""

import os
import socket
import stat
import struct
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Protocol

from dieselfs.errors import Unavailable
from dieselfs.forks import renew_after_fork
from dieselfs.limits import CONNECT_TIMEOUT_S, SERVER_GONE_S
from dieselfs.net.address import Address, TcpAddress

_UNIX_PATH_BYTES_MAX = 107
_BACKLOG = 128
_CREDENTIALS = struct.Struct("3i")


@contextmanager
def reachable_path(path: str) -> Iterator[str]:
    """A name for the Unix socket at `path` that fits into a socket address, for a `path` of any length."""
    if len(os.fsencode(path)) <= _UNIX_PATH_BYTES_MAX:
        yield path
        return
    folder = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{Path(path).name}"
    finally:
        os.close(folder)


def listening(path: Path, kind: int) -> socket.socket:
    """A Unix socket of this kind that listens at `path`, for this user and root alone. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    try:
        os.fchmod(
            listener.fileno(), 0o600
        )  # `bind` makes the file with this mode; later the path may be another's
        with reachable_path(str(path)) as reachable:
            listener.bind(reachable)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def open_socket(address: Address, timeout_s: float = CONNECT_TIMEOUT_S) -> socket.socket:
    """Connect within `timeout_s`. Raises Unavailable with the cause."""
    sock: socket.socket | None = None
    try:
        if isinstance(address, TcpAddress):
            sock = _connect_tcp(address, time.monotonic() + timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_keepalive(sock)
        else:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            sock.settimeout(timeout_s)
            with reachable_path(address.path) as path:
                sock.connect(path)
    except OSError as error:  # timeouts are OSErrors too
        if sock is not None:
            sock.close()
        reason = error.strerror or str(error)
        if isinstance(error, TimeoutError) and not reason.startswith("no name server"):
            reason = "no answer in time"
        raise Unavailable(f"cannot reach the server at {address}: {reason}") from error
    return sock


def _connect_tcp(address: TcpAddress, end_s: float) -> socket.socket:
    """A connection to the first address of the host that accepts, until `end_s`. Raises the OSError of the last one."""
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, where in addresses(address.host, address.port, end_s - time.monotonic()):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left_s)
            sock.connect(where)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            failure = error
        else:
            return sock
    raise failure


def is_believed(user: int, path: str) -> bool:
    """Whether a process of this user ID, which listens at `path`, may speak to this process without a proof: an own
    one, and one of root. Root believes a user also in a folder where only root and that user can put a socket.
    """
    own = os.geteuid()
    if user in (own, 0) or own != 0:
        return user in (own, 0)
    folder = Path(path).resolve().parent
    return all(_is_only_of(user, each.stat()) for each in (folder, *folder.parents))


def _is_only_of(user: int, folder: os.stat_result) -> bool:
    return folder.st_uid in (user, 0) and not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


class _TakesOptions(Protocol):
    """A TCP socket, plain or with TLS."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def set_keepalive(sock: _TakesOptions, gone_s: float | None = None) -> None:
    """The kernel fails the connection when the other machine is silent for `gone_s` (SERVER_GONE_S), whatever the
    timeout; 2 s at least, because probes are sent once a second at most.
    """
    gone_s = SERVER_GONE_S if gone_s is None else gone_s
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(round(gone_s / 4), 1))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(round(gone_s / 2), 1))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(gone_s * 1000))


class _HasOptions(Protocol):
    """A socket, of the library or of trio."""

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...


def peer_user(connection: _HasOptions) -> int:
    """The user ID of the process at the other end of a Unix socket."""
    return _credentials(connection)[1]


def peer_process(connection: _HasOptions) -> int:
    """The ID of the process at the other end of a Unix socket (the listener); 0 if it is in another container."""
    return _credentials(connection)[0]


def _credentials(connection: _HasOptions) -> tuple[int, int]:
    """`(process, user)`."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return int(process), int(user)


def rights(*descriptors: int) -> list[tuple[int, int, bytes]]:
    """The ancillary data of `sendmsg` that pass descriptors; the kernel passes at most 253 at once."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors).tobytes())] if descriptors else []


def receive_with_descriptors(
    connection: socket.socket, length: int, descriptors: list[int], descriptors_max: int = 1
) -> tuple[bytes, int]:
    """Receive up to `length` bytes; returns them and the flags of `recvmsg`. Descriptors that come with them are
    appended to `descriptors`, whose owner closes them; they are not inherited by programs. The kernel closes those
    above `descriptors_max`.
    """
    # Not socket.recv_fds, which ignores its flags (CPython 3.11).
    passed = array("i")
    room = socket.CMSG_LEN(descriptors_max * passed.itemsize)
    content, extras, flags, _ = connection.recvmsg(length, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in extras:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            passed.frombytes(data[: len(data) - len(data) % passed.itemsize])
    descriptors.extend(passed)
    return content, flags


Found = list[tuple[Any, ...]]
"""As `socket.getaddrinfo` returns it, for streams."""

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class _LookUps:
    """Thread-safe, also after a fork. Callers who wait for one name share a thread; it ends with the answer, also when
    nobody waits any more.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # guards the one below
        self._asked: dict[tuple[str, int], Future[Found]] = {}
        renew_after_fork(self)

    def after_fork(self) -> None:
        """The threads of the parent do not answer here."""
        self._lock, self._asked = Lock(), {}

    def ask(self, host: str, port: int) -> Future[Found]:
        name = host, port
        with self._lock:
            answer = self._asked.get(name)
            if answer is not None:
                return answer
            answer = self._asked[name] = Future()
        try:
            Thread(target=self._answer, args=(name, answer), name="host-name", daemon=True).start()
        except BaseException:
            self._end(name, answer)
            raise
        return answer

    def _answer(self, name: tuple[str, int], answer: Future[Found]) -> None:
        try:
            answer.set_result(socket.getaddrinfo(*name, type=socket.SOCK_STREAM))
        except BaseException as error:
            answer.set_exception(error)
        finally:
            self._end(name, answer)

    def _end(self, name: tuple[str, int], answer: Future[Found]) -> None:
        with self._lock:
            if self._asked.get(name) is answer:
                del self._asked[name]


_look_ups = _LookUps()


def addresses(host: str, port: int, timeout_s: float) -> Found:
    """The addresses of `host`, which may be one itself. Raises OSError, and TimeoutError after `timeout_s`."""
    try:
        with suppress(socket.gaierror):
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=_NUMERIC)
        return _look_ups.ask(host, port).result(timeout_s)
    except TimeoutError:
        raise TimeoutError(f"no name server has answered for {host} within {timeout_s:.0f} s") from None
    except RuntimeError as error:  # no thread can be started
        raise OSError(f"cannot look up {host}: {error}") from None
    except UnicodeError:
        raise OSError(f"{host[:80]!r} is no host name") from None
