"""The reader's end of the socket over which the daemon of a node shares chunks. This module opens sockets.

A daemon is found by a path that follows from the snapshot alone, so nothing has to be configured. If there is none, or
it does not answer, or says no, readers go to the server by themselves: no daemon is no error.
"""

import hashlib
import os
import socket
import stat
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

from dieselfs.cache.job import Job
from dieselfs.cache.member import Member
from dieselfs.cache.node_messages import (
    Absent,
    ChunkRequest,
    Hello,
    MembersReply,
    MembersRequest,
    Message,
    Refusal,
    SegmentReply,
    Unknown,
    Welcome,
    decode,
    encode,
)
from dieselfs.cache.roll import ROLL_BYTES_MAX, decode_members
from dieselfs.cache.segment import Memory, map_sealed
from dieselfs.errors import AccessDenied, DieselfsError, ProtocolError, Unavailable
from dieselfs.limits import (
    NODE_AVOIDED_S,
    NODE_CHUNK_TIMEOUT_S,
    NODE_HELLO_TIMEOUT_S,
    NODE_PACKET_BYTES_MAX,
)
from dieselfs.rpc.connection import reachable_path

_DATASET_CHARACTERS = 40
_CREDENTIALS = struct.Struct("3i")
_CONNECTIONS_KEPT_MAX = 16

_T = TypeVar("_T")


def runtime_folder(environment: Mapping[str, str] = os.environ, user: int | None = None) -> Path:
    """Where the sockets of a user's daemons are, on this node alone: in XDG_RUNTIME_DIR, else in /tmp."""
    own = environment.get("XDG_RUNTIME_DIR")
    return Path(own) / "dieselfs" if own else Path(f"/tmp/dieselfs-{os.getuid() if user is None else user}")


def socket_path(folder: Path, dataset: str, digest: bytes, job: str = "") -> Path:
    """The socket of the daemon that has the snapshot with this digest, of a job if it is one's own.

    The name begins with the dataset's, for people; what tells snapshots and jobs apart is the hash.
    """
    name = hashlib.sha256(digest + job.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return folder / f"{dataset[:_DATASET_CHARACTERS]}-{name}.sock"


def job_socket_path(folder: Path, dataset: str, digest: bytes, job: Job, fingerprint: bytes) -> Path:
    """The socket of the master of a job on a node. `fingerprint`: of the job's secret, as jobs of one name may differ.

    The node is part of it: who gives two names to one machine has two nodes.
    """
    return socket_path(folder, dataset, digest, f"{job.name}/{fingerprint.hex()}/{job.node}")


def check_private(folder: Path) -> None:
    """Raise AccessDenied unless a folder is this user's, and nobody else can reach into it."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise AccessDenied(f"{folder} is not a folder that only this user can enter (mode 0700)")


def is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one that others find at `path`. One that is locked may have been removed before."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


class _HasOptions(Protocol):
    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...


def peer_user(connection: _HasOptions) -> int:
    """The user ID of the process at the other end of a Unix socket."""
    return _credentials(connection)[1]


def peer_process(connection: _HasOptions) -> int:
    """The ID of the process at the other end of a Unix socket, or of the one that listens there; 0 if it cannot be seen
    from here, because it is in another container.
    """
    return _credentials(connection)[0]


def _credentials(connection: _HasOptions) -> tuple[int, int]:
    """`(process, user)`."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return int(process), int(user)


@dataclass(frozen=True, slots=True)
class NodeMembers:
    """The masters of a job, as the one of this node knows them; that one comes first.

    `members` is None if they are those of the version that the caller knows.
    """

    version: int
    members: tuple[Member, ...] | None


class NodeConnection:
    """A conversation with a daemon that has greeted us, for one thread at a time.

    After any error but a refusal it is closed and of no further use.
    """

    def __init__(self, path: Path, digest: bytes) -> None:
        """Raises Unavailable if nobody answers, AccessDenied if it is another user's, InvalidInput if the daemon has
        another snapshot, and ProtocolError.
        """
        self._numbers = count(1)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(NODE_HELLO_TIMEOUT_S)
            try:
                check_private(path.parent)
                with reachable_path(str(path)) as reachable:
                    self._socket.connect(reachable)
            except OSError as error:
                raise Unavailable(f"no daemon at {path}: {error.strerror or 'no answer in time'}") from None
            if peer_user(self._socket) != os.getuid():
                raise AccessDenied(f"the daemon at {path} is another user's")
            answer, _ = self._exchange(Hello(digest))
            if not isinstance(answer, Welcome):
                raise ProtocolError(f"the daemon at {path} answers a greeting with {answer}")
        except BaseException:
            self.close()
            raise

    def chunk(self, chunk: int, wanted_bytes: int) -> tuple[int, int] | None:
        """The descriptor of a chunk's payload, which is the caller's to close, and its length in bytes; None if the
        daemon does not hold the chunk, and will not for the sake of so many bytes.

        Raises what the daemon refuses with (the conversation goes on), or Unavailable or ProtocolError (it is over).
        """
        # The daemon has the first for itself; then it says that it was not enough.
        self._socket.settimeout(NODE_CHUNK_TIMEOUT_S + NODE_HELLO_TIMEOUT_S)
        answer, descriptor = self._exchange(ChunkRequest(chunk, wanted_bytes))
        if isinstance(answer, SegmentReply) and descriptor is not None:
            return descriptor, answer.length_bytes
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(answer, Absent):
            return None
        self.close()
        raise ProtocolError(f"the daemon answers the request for a chunk with {answer}")

    def members(self, known_version: int) -> NodeMembers:
        """The members of the daemon's job, unless they are those of `known_version`; 0: none are known.

        Raises as `chunk`; InvalidInput if the daemon is of no job.
        """
        self._socket.settimeout(NODE_HELLO_TIMEOUT_S)
        answer, descriptor = self._exchange(MembersRequest(known_version))
        try:
            if isinstance(answer, MembersReply) and descriptor is None and answer.version == known_version:
                return NodeMembers(answer.version, None)
            if isinstance(answer, MembersReply) and descriptor is not None:
                return NodeMembers(answer.version, _read_members(descriptor, answer.length_bytes))
            raise ProtocolError(f"the daemon answers the request for members with {answer}")
        except DieselfsError:
            self.close()
            raise
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _exchange(self, request: Message) -> tuple[Message | Unknown, int | None]:
        number = next(self._numbers)
        descriptors: list[int] = []
        try:
            self._socket.send(encode(number, request))
            packet, descriptors, flags, _ = socket.recv_fds(self._socket, NODE_PACKET_BYTES_MAX, 1)
            for descriptor in descriptors:  # which recv_fds cannot be told to do (CPython 3.11)
                os.set_inheritable(descriptor, False)
            if not packet:
                raise Unavailable("the daemon has closed the connection")
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ProtocolError("the daemon sends more than belongs into a packet")
            answered, answer = decode(packet)
            if answered != number:
                raise ProtocolError("the daemon answers another request")
        except BaseException as error:
            self.close()
            for descriptor in descriptors:
                os.close(descriptor)
            if isinstance(error, OSError):
                raise Unavailable(f"lost the daemon: {error.strerror or 'no answer in time'}") from None
            raise
        if isinstance(answer, Refusal):
            for descriptor in descriptors:
                os.close(descriptor)
            raise answer.error
        return answer, descriptors[0] if descriptors else None

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


def _read_members(descriptor: int, length_bytes: int) -> tuple[Member, ...]:
    if length_bytes > ROLL_BYTES_MAX:
        raise ProtocolError(f"members in {length_bytes} bytes, limit {ROLL_BYTES_MAX}")
    encoded = map_sealed(descriptor, length_bytes)[0:length_bytes]
    return tuple(map(Member.of, decode_members(encoded)))


class NodeClient:
    """Chunks from the daemon of this node, if there is one. Connects at the first request of each process.

    Safe to use from several threads (each request has a connection of its own) and after a fork.
    """

    def __init__(self, path: Path, digest: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._digest = digest
        self._clock = clock
        self._avoided_until_s = float("-inf")
        self._is_closed = False
        self._process_id = os.getpid()
        self._idle: list[
            NodeConnection
        ] = []  # taken and given back in one step each, which no thread interrupts

    def memory(self, chunk: int, length_bytes: int, wanted_bytes: int) -> Memory | None:
        """The payload of a chunk, which has this length and of which so much is wanted now, as the daemon has it: still
        to be verified.

        None if there is no daemon, or it does not hold the chunk, or cannot say in time. One that fails is not asked
        again for NODE_AVOIDED_S.
        """
        if self._is_closed or self._clock() < self._avoided_until_s:
            return None
        try:
            found = self._ask(lambda connection: connection.chunk(chunk, wanted_bytes))
            if found is None:
                return None
            descriptor, sent_bytes = found
            try:
                return map_sealed(descriptor, length_bytes) if sent_bytes == length_bytes else None
            finally:
                os.close(descriptor)
        except DieselfsError:
            return None

    def members(self, known_version: int = 0) -> NodeMembers | None:
        """The members of the job whose master this daemon is, as `NodeConnection.members`; the first is the master.

        None if there is no daemon, or it is of no job, or cannot say in time. One that fails is not asked again for
        NODE_AVOIDED_S.
        """
        if self._is_closed or self._clock() < self._avoided_until_s:
            return None
        try:
            return self._ask(lambda connection: connection.members(known_version))
        except DieselfsError:
            return None

    def _ask(self, request: Callable[[NodeConnection], _T]) -> _T:
        if (
            self._process_id != os.getpid()
        ):  # after a fork the connections are our parent's, who is using them
            self._process_id = os.getpid()
            self._close_idle()
        while True:
            connection, is_new = self._take()
            try:
                return request(connection)
            except DieselfsError:
                if connection.is_open:
                    raise
                self._close_idle()
                if is_new:
                    self._avoid()
                    raise  # otherwise the daemon may just have been restarted
            finally:
                self._give_back(connection)

    def _take(self) -> tuple[NodeConnection, bool]:
        """`(connection, whether it is a new one)`."""
        with suppress(IndexError):
            return self._idle.pop(), False
        try:
            return NodeConnection(self._path, self._digest), True
        except DieselfsError:
            self._avoid()
            raise

    def _avoid(self) -> None:
        self._avoided_until_s = self._clock() + NODE_AVOIDED_S

    def _give_back(self, connection: NodeConnection) -> None:
        if self._is_closed or len(self._idle) >= _CONNECTIONS_KEPT_MAX:
            connection.close()
        elif connection.is_open:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the connections that are idle; requests that are under way end as they would. What was mapped stays."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return
