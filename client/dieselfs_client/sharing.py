"""Shares a node's chunks with the processes that read them: the daemon's end of the socket in `cache/node_socket.py`.

Descriptors of sealed memory are handed out to processes of the same user that have the same snapshot, and to nobody
else. What a reader has mapped stays in memory until it lets go, whatever becomes of the daemon.
"""

import fcntl
import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import trio

from dieselfs.cache.node_messages import (
    PROTOCOL_VERSION,
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
from dieselfs.cache.node_socket import check_private, is_at, peer_user
from dieselfs.cache.segment import Segment
from dieselfs.errors import AlreadyExists, DieselfsError, InvalidInput, MountError, ProtocolError, Unavailable
from dieselfs.limits import (
    BULK_IDLE_TIMEOUT_S,
    HANDSHAKE_TIMEOUT_S,
    NODE_CHUNK_TIMEOUT_S,
    NODE_PACKET_BYTES_MAX,
    NODE_READERS_MAX,
)
from dieselfs.meta.snapshot import Snapshot
from dieselfs.rpc.connection import reachable_path
from dieselfs_client.job.member_list import MemberList

_DESCRIPTOR = struct.Struct("i")
_BACKLOG = 128
_PACKET_ROOM_BYTES = NODE_PACKET_BYTES_MAX + 1
"""One that is too long is seen to be."""
_ACCEPT_PAUSE_S = 1.0
"""When no descriptor is left for another reader."""

_log = logging.getLogger(__name__)


class ChunkShelf(Protocol):
    """Whoever holds the chunks of a node."""

    def is_worth_fetching(self, chunk: int, wanted_bytes: int) -> bool:
        """Whether a chunk is here, or is to be fetched for the sake of so many of its bytes."""
        ...

    async def segment(self, chunk: int) -> Segment:
        """The payload of a chunk of the snapshot, verified and sealed.

        May wait for it to be fetched. Raises DieselfsError if it cannot be had. If cancelled, nothing is lost but the
        answer. The descriptor is used before the next checkpoint, so that the segment may be closed afterwards.
        """
        ...


@contextmanager
def listening(path: Path) -> Iterator[trio.socket.SocketType]:
    """The socket at `path`, for readers to connect to, until the end of the block. Its folder is made, for us alone.

    Raises AlreadyExists if another daemon has it, AccessDenied if the folder is not ours, MountError if it cannot be.
    A socket that a daemon left behind when it was killed is replaced.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(path.parent)
        lock = _locked(path.with_suffix(".lock"))
    except BlockingIOError:
        raise AlreadyExists(f"another daemon shares these chunks already, at {path}") from None
    except OSError as error:
        raise MountError(f"cannot share chunks at {path}: {error.strerror}") from None
    try:
        with bound(path) as listener:
            yield listener
    finally:
        path.with_suffix(".lock").unlink(missing_ok=True)
        os.close(lock)


def _locked(path: Path) -> int:
    """A descriptor of the file, which is locked; for as long as it is open, nobody else has it. Raises BlockingIOError
    if somebody has; OSError.
    """
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
        if is_at(path, lock):
            return lock
        os.close(lock)  # a daemon that ended has just removed it


@contextmanager
def bound(path: Path) -> Iterator[trio.socket.SocketType]:
    """As `listening`, for whoever knows already that no other daemon has it, and that its folder is ours alone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as listener:
        path.unlink(missing_ok=True)
        try:
            with reachable_path(str(path)) as reachable:
                listener.bind(reachable)
            path.chmod(0o600)
            listener.listen(_BACKLOG)
        except OSError as error:
            raise MountError(f"cannot share chunks at {path}: {error.strerror}") from None
        try:
            yield trio.socket.from_stdlib_socket(listener)
        finally:
            path.unlink(missing_ok=True)


class ChunkSharing:
    """Answers readers, each connection in a task of its own. Used from one trio thread."""

    def __init__(self, shelf: ChunkShelf, snapshot: Snapshot, members: MemberList | None = None) -> None:
        """`members`: of the job, if the daemon is the master of one on this node."""
        self._shelf = shelf
        self._members = members
        self._digest = snapshot.digest
        self._chunk_count = snapshot.chunk_count
        self.readers = 0
        self.shared_segments = 0

    async def serve(self, listener: trio.socket.SocketType) -> None:
        """Take connections until cancelled; then all of them are closed, and what readers have mapped stays theirs."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connection, _ = await listener.accept()
                except OSError as error:
                    _log.warning("a reader could not be let in: %s", error)
                    await trio.sleep(_ACCEPT_PAUSE_S)
                    continue
                nursery.start_soon(self._attend, connection)

    async def _attend(self, connection: trio.socket.SocketType) -> None:
        with connection:
            try:
                if peer_user(connection) != os.getuid():
                    _log.warning("a process of another user tried to read shared chunks")
                    return
                self.readers += 1
                try:
                    await self._converse(connection)
                finally:
                    self.readers -= 1
            except (OSError, ProtocolError) as error:
                _log.info("a reader is gone: %s", error)
            except trio.TooSlowError:
                _log.info("a reader is gone: it takes or says nothing")

    async def _converse(self, connection: trio.socket.SocketType) -> None:
        with trio.fail_after(HANDSHAKE_TIMEOUT_S):
            packet = await connection.recv(_PACKET_ROOM_BYTES)
        if not packet:
            return
        number, hello = decode(packet)
        fault = self._fault(hello)
        if fault is not None:
            await _send(connection, number, Refusal.because(fault))
            return
        await _send(connection, number, Welcome())
        while packet := await connection.recv(_PACKET_ROOM_BYTES):
            number, request = decode(packet)
            await self._answer(connection, number, request)

    def _fault(self, hello: Message | Unknown) -> DieselfsError | None:
        if self.readers > NODE_READERS_MAX:
            return Unavailable(f"the daemon has {NODE_READERS_MAX} readers, which is the limit")
        if not isinstance(hello, Hello):
            return ProtocolError("a conversation begins with a greeting")
        if hello.version != PROTOCOL_VERSION:
            return ProtocolError(
                f"the daemon speaks version {PROTOCOL_VERSION}, the reader version {hello.version}"
            )
        if hello.digest != self._digest:
            return InvalidInput(
                f"the daemon shares snapshot {self._digest.hex()[:16]}, the reader has {hello.digest.hex()[:16]}"
            )
        return None

    async def _answer(
        self, connection: trio.socket.SocketType, number: int, request: Message | Unknown
    ) -> None:
        """Serve one request. The descriptor is duplicated before anything else can happen to its segment."""
        descriptor = -1
        try:
            if isinstance(request, MembersRequest):
                answer, segment = self._told(request)
            else:
                answer, segment = await self._chunk(request)
            if segment is not None:
                descriptor = os.dup(segment.descriptor)
        except DieselfsError as error:
            answer = Refusal.because(error)
        except trio.TooSlowError:
            answer = Refusal.because(Unavailable(f"not there within {NODE_CHUNK_TIMEOUT_S:g} s"))
        except OSError as error:  # no descriptor is left
            answer = Refusal.because(Unavailable(f"cannot be handed out: {error.strerror}"))
        try:
            await _send(connection, number, answer, descriptor)
            self.shared_segments += isinstance(answer, SegmentReply)
        finally:
            if descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)

    def _told(self, request: MembersRequest) -> tuple[Message, Segment | None]:
        if self._members is None:
            raise InvalidInput("the daemon is of no job")
        if request.known_version == self._members.version:
            return MembersReply(request.known_version, 0), None
        encoded = self._members.encoded
        return MembersReply(self._members.version, len(encoded)), encoded

    async def _chunk(self, request: Message | Unknown) -> tuple[Message, Segment | None]:
        """The payload that is asked for, or that the reader is better off without it."""
        if not isinstance(request, ChunkRequest):
            raise InvalidInput("the daemon does not know this request: it is of another version")
        if not request.chunk < self._chunk_count:
            raise InvalidInput(f"there is no chunk {request.chunk}")
        if not self._shelf.is_worth_fetching(request.chunk, request.wanted_bytes):
            return Absent(), None
        with trio.fail_after(NODE_CHUNK_TIMEOUT_S):
            segment = await self._shelf.segment(request.chunk)
        return SegmentReply(len(segment)), segment


async def _send(
    connection: trio.socket.SocketType, number: int, message: Message, descriptor: int = -1
) -> None:
    """Send a packet, with a descriptor if there is one. Raises OSError, TooSlowError if it is not taken in time."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(descriptor))] if descriptor >= 0 else []
    with trio.fail_after(BULK_IDLE_TIMEOUT_S):
        await connection.sendmsg([encode(number, message)], rights)
