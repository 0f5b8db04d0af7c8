"""Shares a node's chunks with reading processes: the daemon's end of the socket of `dieselfs/cluster/node_client.py`.

Only processes of the same user with the same snapshot get descriptors of sealed memory. A mapping stays valid after the
daemon exits.
"""

import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from dieselfs.chunk.segment import Segment
from dieselfs.cluster import node_messages as messages
from dieselfs.cluster.holdings import encoded
from dieselfs.cluster.member import Member
from dieselfs.errors import DieselfsError, InvalidInput, MountError, ProtocolError, Unavailable, os_errors_as
from dieselfs.limits import (
    BULK_IDLE_TIMEOUT_S,
    HANDSHAKE_TIMEOUT_S,
    NODE_CHUNK_TIMEOUT_S,
    NODE_PACKET_BYTES_MAX,
    NODE_READERS_MAX,
)
from dieselfs.net.sockets import listening, peer_user, rights
from dieselfs.rpc.members import encode_members
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.memory.node_cache import NodeCache

_PACKET_ROOM_BYTES = NODE_PACKET_BYTES_MAX + 1
"""One byte more, to detect packets that are too long."""
_ACCEPT_PAUSE_S = 1.0
"""Pause when no descriptor is left for another reader."""

_log = logging.getLogger(__name__)


@contextmanager
def bound(path: Path) -> Iterator[trio.socket.SocketType]:
    """The listening socket at `path`, until the end of the block. The caller holds its lock (`NodeLock`), and the
    folder is private. Replaces the stale socket of a killed daemon. Raises MountError on failure.
    """
    path.unlink(missing_ok=True)
    with os_errors_as(MountError, f"cannot share chunks at {path}"):
        listener = listening(path, socket.SOCK_SEQPACKET)
    with listener:
        try:
            yield trio.socket.from_stdlib_socket(listener)
        finally:
            path.unlink(missing_ok=True)


class LocalService:
    """Answers readers, one task for each connection. Used from one trio thread."""

    def __init__(self, node_cache: NodeCache, snapshot: Snapshot) -> None:
        self._node_cache = node_cache
        self._members: Segment | None = None  # encoded; None: the daemon is no node master
        # Versions start with the time, so that they rise from one master to the next: no reader mistakes the list of a
        # new master for the one that it knows.
        self._version = time.time_ns()
        self._digest = snapshot.digest
        self._chunk_count = snapshot.chunk_count
        self.readers = 0
        self.shared_segments = 0

    def change_members(self, members: Sequence[Member]) -> None:
        """Set the members of the job; the first is this master. Raises Unavailable without memory; then nothing has
        changed.
        """
        self._members = _sealed(encode_members(member.encode() for member in members))
        self._version += 1

    async def serve(self, listener: trio.socket.SocketType) -> None:
        """Accept connections until cancelled; then close all of them. Mappings of readers stay valid."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connection, _ = await listener.accept()
                except OSError as error:
                    _log.warning("cannot accept a reader: %s", error)
                    await trio.sleep(_ACCEPT_PAUSE_S)
                    continue
                nursery.start_soon(self._serve_reader, connection)

    async def _serve_reader(self, connection: trio.socket.SocketType) -> None:
        with connection:
            try:
                if peer_user(connection) != os.getuid():
                    _log.warning("a process of another user tried to read shared chunks")
                    return
                self.readers += 1
                try:
                    await self._answer_requests(connection)
                finally:
                    self.readers -= 1
            except (OSError, ProtocolError) as error:
                _log.info("reader disconnected: %s", error)
            except trio.TooSlowError:
                _log.info("reader disconnected: timeout")

    async def _answer_requests(self, connection: trio.socket.SocketType) -> None:
        with trio.fail_after(HANDSHAKE_TIMEOUT_S):
            packet = await connection.recv(_PACKET_ROOM_BYTES)
        if not packet:
            return
        number, hello = messages.decode(packet)
        fault = self._fault(hello)
        if fault is not None:
            await _send(connection, number, messages.Refusal.because(fault))
            return
        await _send(connection, number, messages.Welcome())
        while packet := await connection.recv(_PACKET_ROOM_BYTES):
            number, request = messages.decode(packet)
            await self._answer(connection, number, request)

    def _fault(self, hello: messages.Message | messages.Unknown) -> DieselfsError | None:
        if self.readers > NODE_READERS_MAX:
            return Unavailable(f"the daemon has {NODE_READERS_MAX} readers, which is the limit")
        if not isinstance(hello, messages.Hello):
            return ProtocolError("the first request must be the greeting")
        if hello.version != messages.PROTOCOL_VERSION:
            return ProtocolError(
                f"the daemon has version {messages.PROTOCOL_VERSION}, the reader {hello.version}: upgrade the older one"
            )
        if hello.digest != self._digest:
            return InvalidInput(
                f"the daemon shares snapshot {self._digest.hex()[:16]}, the reader has {hello.digest.hex()[:16]}"
            )
        return None

    async def _answer(
        self, connection: trio.socket.SocketType, number: int, request: messages.Message | messages.Unknown
    ) -> None:
        """Answer one request. Duplicates the descriptor before a checkpoint can close its segment."""
        descriptor = -1
        try:
            if isinstance(request, messages.MembersRequest):
                answer, segment = self._member_list(request)
            elif isinstance(request, messages.HeldRequest):
                segment = _sealed(encoded(self._chunk_count, [*self._node_cache.policy]))
                answer = messages.SegmentReply(len(segment))
            else:
                answer, segment = await self._chunk(request)
            if segment is not None:
                descriptor = os.dup(segment.descriptor)
        except DieselfsError as error:
            answer = messages.Refusal.because(error)
        except trio.TooSlowError:
            answer = messages.Refusal.because(Unavailable(f"not fetched within {NODE_CHUNK_TIMEOUT_S:g} s"))
        except OSError as error:  # no descriptor is left
            answer = messages.Refusal.because(Unavailable(f"cannot duplicate a descriptor: {error.strerror}"))
        try:
            await _send(connection, number, answer, descriptor)
            self.shared_segments += isinstance(answer, messages.SegmentReply)
        finally:
            if descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)

    def _member_list(self, request: messages.MembersRequest) -> tuple[messages.Message, Segment | None]:
        if self._members is None:
            raise InvalidInput("the daemon is in no job")
        if request.known_version == self._version:
            return messages.MembersReply(self._version, 0), None
        return messages.MembersReply(self._version, len(self._members)), self._members

    async def _chunk(
        self, request: messages.Message | messages.Unknown
    ) -> tuple[messages.Message, Segment | None]:
        """The requested payload; `Absent` if it is not worth fetching."""
        if not isinstance(request, messages.ChunkRequest):
            raise InvalidInput("unknown request: the reader has another version")
        if not request.chunk < self._chunk_count:
            raise InvalidInput(f"there is no chunk {request.chunk}")
        if not self._node_cache.is_worth_fetching(request.chunk, request.wanted_bytes):
            return messages.Absent(), None
        with trio.fail_after(NODE_CHUNK_TIMEOUT_S):
            segment = await self._node_cache.fetch(request.chunk)
        return messages.SegmentReply(len(segment)), segment


def _sealed(content: bytes) -> Segment:
    """Raises Unavailable without memory."""
    segment = Segment.create(len(content))
    segment.view[:] = content
    segment.seal()
    return segment


async def _send(
    connection: trio.socket.SocketType, number: int, message: messages.Message, descriptor: int = -1
) -> None:
    """Send a packet, with a descriptor if there is one. Raises OSError, TooSlowError."""
    with trio.fail_after(BULK_IDLE_TIMEOUT_S):
        await connection.sendmsg(
            [messages.encode(number, message)], rights(descriptor) if descriptor >= 0 else []
        )
