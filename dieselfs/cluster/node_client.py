"""The reader's end of the socket over which the daemon of a node shares chunks. This module opens sockets.

The path of the socket follows from the snapshot, so nothing has to be configured. Without a daemon, or if it fails or
refuses, readers use the server: no daemon is no error.
"""

import hashlib
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

from dieselfs.chunk.segment import Memory, map_sealed
from dieselfs.cluster import node_messages as messages
from dieselfs.cluster.job import Job
from dieselfs.cluster.member import Member
from dieselfs.errors import AccessDenied, DieselfsError, ProtocolError, Unavailable
from dieselfs.forks import renew_after_fork
from dieselfs.limits import (
    NODE_AVOIDED_S,
    NODE_CHUNK_TIMEOUT_S,
    NODE_HELLO_TIMEOUT_S,
    NODE_PACKET_BYTES_MAX,
)
from dieselfs.net.sockets import peer_user, reachable_path, receive_with_descriptors
from dieselfs.process.state_dirs import check_private
from dieselfs.rpc.members import MEMBERSHIP_LIST_BYTES_MAX, decode_members

_DATASET_CHARACTERS = 40
_IDLE_CONNECTIONS_MAX = 16

_T = TypeVar("_T")


def socket_path(folder: Path, dataset: str, digest: bytes, job: str = "") -> Path:
    """The socket of the daemon with this snapshot, within `job` if one is given.

    The name starts with the dataset's, for people; the hash distinguishes snapshots and jobs.
    """
    name = hashlib.sha256(digest + job.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return folder / f"{dataset[:_DATASET_CHARACTERS]}-{name}.sock"


def job_socket_path(folder: Path, dataset: str, digest: bytes, job: Job, fingerprint: bytes) -> Path:
    """The socket of a node master. `fingerprint`: of the job's secret, as there may be several jobs of one name.

    The node is part of it: one machine with two node names is two nodes.
    """
    return socket_path(folder, dataset, digest, f"{job.name}/{fingerprint.hex()}/{job.node}")


def connect_private(path: Path) -> socket.socket:
    """A connection to the daemon at `path`; each wait ends after NODE_HELLO_TIMEOUT_S. Raises OSError, and AccessDenied
    if the daemon runs as another user, or other users can enter its folder.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(NODE_HELLO_TIMEOUT_S)
        check_private(path.parent)
        with reachable_path(str(path)) as reachable:
            connection.connect(reachable)
        if peer_user(connection) != os.getuid():
            raise AccessDenied(f"the daemon at {path} is another user's")
    except BaseException:
        connection.close()
        raise
    return connection


@dataclass(frozen=True, slots=True)
class NodeMembers:
    """The node masters of a job, that of this node first. `members` is None if the caller knows the version."""

    version: int
    members: tuple[Member, ...] | None


class NodeConnection:
    """A connection to a daemon after the handshake, for one thread at a time.

    Any error except a refusal closes it for good.
    """

    def __init__(self, path: Path, digest: bytes) -> None:
        """Raises Unavailable without a reply, AccessDenied if the daemon runs as another user, InvalidInput if it has
        another snapshot, and ProtocolError.
        """
        self._numbers = count(1)
        try:
            self._socket = connect_private(path)
        except OSError as error:
            raise Unavailable(f"no daemon at {path}: {error.strerror or 'no answer in time'}") from None
        try:
            answer, _ = self._exchange(messages.Hello(digest=digest))
            if not isinstance(answer, messages.Welcome):
                raise ProtocolError(f"the daemon at {path} answers a greeting with {answer}")
        except BaseException:
            self.close()
            raise

    def memory(self, chunk: int, length_bytes: int, wanted_bytes: int) -> Memory | None:
        """The payload of a chunk of `length_bytes`; None if the daemon does not hold the chunk, and does not fetch it
        for `wanted_bytes`.

        Raises the daemon's refusal, and Damaged or Unavailable if this process cannot map what it has sent (the
        connection stays open), or Unavailable or ProtocolError (it is closed).
        """
        # The first is the daemon's own timeout, after which it sends a refusal.
        self._socket.settimeout(NODE_CHUNK_TIMEOUT_S + NODE_HELLO_TIMEOUT_S)
        return self._mapped(messages.ChunkRequest(chunk, wanted_bytes), length_bytes)

    def held(self, chunk_count: int) -> Memory | None:
        """Which of the chunks are in memory: the bits of `holdings.encoded`. Raises as `memory`."""
        self._socket.settimeout(NODE_HELLO_TIMEOUT_S)
        return self._mapped(messages.HeldRequest(), -(-chunk_count // 8))

    def _mapped(self, request: messages.Message, length_bytes: int) -> Memory | None:
        answer, descriptor = self._exchange(request)
        try:
            if isinstance(answer, messages.SegmentReply) and descriptor is not None:
                return map_sealed(descriptor, length_bytes) if answer.length_bytes == length_bytes else None
            if isinstance(answer, messages.Absent):
                return None
            self.close()
            raise ProtocolError(f"the daemon answers {request} with {answer}")
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def members(self, known_version: int) -> NodeMembers:
        """The members of the daemon's job, unless their version is `known_version`; 0: none are known.

        Raises as `memory`; InvalidInput if the daemon is of no job.
        """
        self._socket.settimeout(NODE_HELLO_TIMEOUT_S)
        answer, descriptor = self._exchange(messages.MembersRequest(known_version))
        try:
            if isinstance(answer, messages.MembersReply):
                if descriptor is None and answer.version == known_version:
                    return NodeMembers(answer.version, None)
                if answer.length_bytes > MEMBERSHIP_LIST_BYTES_MAX:
                    limit = f"limit {MEMBERSHIP_LIST_BYTES_MAX}"
                    raise ProtocolError(f"members in {answer.length_bytes} bytes, {limit}")
                if descriptor is not None:
                    encoded = map_sealed(descriptor, answer.length_bytes)[0 : answer.length_bytes]
                    return NodeMembers(answer.version, tuple(map(Member.of, decode_members(encoded))))
            raise ProtocolError(f"the daemon answers the request for members with {answer}")
        except DieselfsError:
            self.close()
            raise
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _exchange(self, request: messages.Message) -> tuple[messages.Message | messages.Unknown, int | None]:
        """The answer, and the descriptor that came with it, which the caller closes. Any error but a refusal closes the
        connection.
        """
        number = next(self._numbers)
        descriptors: list[int] = []
        try:
            self._socket.send(messages.encode(number, request))
            packet, flags = receive_with_descriptors(self._socket, NODE_PACKET_BYTES_MAX, descriptors)
            if not packet:
                raise Unavailable("the daemon has closed the connection")
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ProtocolError("the daemon sent a packet that is too long, or too many descriptors")
            answered, answer = messages.decode(packet)
            if answered != number:
                raise ProtocolError(f"the daemon sent the reply to request {answered}, expected {number}")
            if not isinstance(answer, messages.Refusal):
                return answer, descriptors.pop() if descriptors else None
        except OSError as error:
            self.close()
            raise Unavailable(f"lost the daemon: {error.strerror or 'no answer in time'}") from None
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        raise answer.error

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


class NodeClient:
    """Chunks from the daemon of this node, if there is one. Connects at the first request of each process.

    Thread-safe (each request has its own connection), also after a fork. Requests return None without a daemon, or
    after a timeout. A daemon that fails is avoided for NODE_AVOIDED_S.
    """

    def __init__(self, path: Path, digest: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._digest = digest
        self._clock = clock
        self._avoided_until_s = float("-inf")
        self._is_closed = False
        self._idle: list[NodeConnection] = []  # used without a lock: `pop` and `append` are atomic
        renew_after_fork(self)

    def after_fork(self) -> None:
        """The connections are in use by the parent."""
        self._close_idle()

    def memory(self, chunk: int, length_bytes: int, wanted_bytes: int) -> Memory | None:
        """The unverified payload of a chunk of `length_bytes`; the reader needs `wanted_bytes` of it.

        None also without the chunk.
        """
        return self._call(lambda connection: connection.memory(chunk, length_bytes, wanted_bytes))

    def members(self, known_version: int = 0) -> NodeMembers | None:
        """The members of the daemon's job, as `NodeConnection.members`; it comes first. None also without a job."""
        return self._call(lambda connection: connection.members(known_version))

    def held(self, chunk_count: int) -> Memory | None:
        """Which of the chunks are in the memory of the daemon, as `NodeConnection.held`."""
        return self._call(lambda connection: connection.held(chunk_count))

    def _call(self, request: Callable[[NodeConnection], _T]) -> _T | None:
        """The result of a request on a connection; None if it fails."""
        is_new = False
        while not is_new and not self._is_closed and self._clock() >= self._avoided_until_s:
            try:
                connection = self._idle.pop()
            except IndexError:
                is_new = True
                try:
                    connection = NodeConnection(self._path, self._digest)
                except DieselfsError:
                    self._avoided_until_s = self._clock() + NODE_AVOIDED_S
                    return None
            try:
                return request(connection)
            except DieselfsError:
                if connection.is_open:
                    return None
                self._close_idle()
                if is_new:  # an old connection may have failed because the daemon has restarted
                    self._avoided_until_s = self._clock() + NODE_AVOIDED_S
            finally:
                self._give_back(connection)
        return None

    def _give_back(self, connection: NodeConnection) -> None:
        if self._is_closed or len(self._idle) >= _IDLE_CONNECTIONS_MAX:
            connection.close()
        elif connection.is_open:
            self._idle.append(connection)

    def close(self) -> None:
        """Close idle connections; requests in flight complete. Mappings stay valid."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return
