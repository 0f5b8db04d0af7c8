"""Sends requests to the other nodes of a job, over few connections and with bounded waits. This module opens sockets.

Blocks; thread-safe. A process has one connection to each other node, for one call at a time; further calls wait. So p
nodes with one process each have p x (p - 1) connections; with n processes in all, p x (n - 1), as in the paper. This
holds while requests fail or are overtaken by a server: the connection is closed before the next call opens one. Only
`report` opens another one, for its duration.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from dieselfs.cluster.chunk_requests import ChunkAvailability, PeerRequest, encode_requests
from dieselfs.cluster.credential import JobCredential
from dieselfs.cluster.failure_detector import FailureDetector
from dieselfs.cluster.member import Member
from dieselfs.cluster.warmth import Warmth
from dieselfs.columns import U32
from dieselfs.errors import DieselfsError, InvalidInput, ProtocolError, Unavailable
from dieselfs.limits import (
    PEER_CALL_TIMEOUT_S,
    PEER_CONNECT_TIMEOUT_S,
    PEER_PINGS_AT_ONCE_MAX,
    PEER_REPORT_BYTES_MAX,
    PEER_SILENCE_S,
)
from dieselfs.net.auth import PEER_ROLE
from dieselfs.rpc.connection import Connection, connected
from dieselfs.rpc.wire import Buffer
from dieselfs.sources.server import PART_BYTES
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.series import Window
from dieselfs.telemetry.stalls import METER

LATEST_SHARE = 0.1
"""How much the latest call counts in the mean time of a peer."""
FIRSTS_IN_A_ROW_MAX = 8
"""After this many first requests, one retry gets the semaphore, so that no retry starves."""


class _Ticket:
    """A waiting thread. `called` is locked until the semaphore is its own."""

    def __init__(self) -> None:
        self.called = Lock()
        self.called.acquire()


class PrioritySemaphore:
    """Up to `count` threads hold it at a time, first requests before retries. Blocks; thread-safe.

    A retry is for bytes that were in flight at the last request and can wait; a first request may succeed at once.
    """

    def __init__(self, count: int) -> None:
        self._lock = Lock()  # guards all below
        self._free = count
        self._firsts: deque[_Ticket] = deque()
        self._retries: deque[_Ticket] = deque()
        self._firsts_in_a_row = 0

    def acquire(self, timeout_s: float, is_retry: bool = False) -> bool:
        """Wait for the semaphore; False if it was not free within `timeout_s`. The holder releases it."""
        waiting = self._retries if is_retry else self._firsts
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            ticket = _Ticket()
            waiting.append(ticket)
        if ticket.called.acquire(timeout=timeout_s):
            return True
        with self._lock:
            if ticket not in waiting:  # released to it after the timeout
                return True
            waiting.remove(ticket)
            return False

    def release(self) -> None:
        """Pass the semaphore to the next thread."""
        with self._lock:
            if not self._firsts and not self._retries:
                self._free += 1
                return
            is_for_first = bool(self._firsts) and not (
                self._retries and self._firsts_in_a_row >= FIRSTS_IN_A_ROW_MAX
            )
            self._firsts_in_a_row = self._firsts_in_a_row + 1 if is_for_first else 0
            (self._firsts if is_for_first else self._retries).popleft().called.release()


_STATES = frozenset(ChunkAvailability)
_HERE = int(ChunkAvailability.HERE)

_log = logging.getLogger(__name__)


class _PeerLink:
    """The connection to one peer. The lock of the client guards `idle` and `is_closed`."""

    def __init__(self, peer: Member, now_s: float) -> None:
        self.peer = peer
        self.turn = PrioritySemaphore(1)
        self.answered_s = now_s  # of the last reply
        self.mean_s = 0.0  # of the last calls, of which the latest count most
        self.idle: Connection | None = None  # no call uses it
        self.is_closed = False

    def close_idle(self) -> None:
        connection, self.idle = self.idle, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """A call in flight completes, and closes its connection."""
        self.is_closed = True
        self.close_idle()


class PeerClient:
    """`credential`: of this process; `digest`: of the snapshot that the job reads. Timeouts are in seconds."""

    def __init__(
        self,
        credential: JobCredential,
        digest: bytes,
        connect_timeout_s: float = PEER_CONNECT_TIMEOUT_S,
        silence_s: float = PEER_SILENCE_S,
        call_timeout_s: float = PEER_CALL_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        metrics: Registry | None = None,
    ) -> None:
        self.metrics = metrics = metrics or Registry()
        self._requests = metrics.counter("peers.requests", "Requests to other nodes, without pings.")
        self._received = metrics.counter("peers.received_bytes", "Bytes of chunks received from other nodes.")
        self._failures = metrics.declare(catalogue.PEERS_FAILURES)
        self._corrupt = metrics.counter("peers.corrupt", "Requests that brought wrong bytes.")
        self._credential = credential
        self._digest = digest
        self._connect_timeout_s = connect_timeout_s
        self._silence_s = silence_s
        self._call_timeout_s = call_timeout_s
        self._clock = clock
        self.detector = FailureDetector(clock)
        """Which peers get requests."""
        self._lock = Lock()  # guards all below
        self._has_failed = False  # a peer, since the last `silent`
        self._links: dict[str, _PeerLink] = {}
        self._members: frozenset[Member] = frozenset()
        self._is_closed = False
        self._pinging = ThreadPoolExecutor(PEER_PINGS_AT_ONCE_MAX, "pings")
        self._pings: dict[str, Future[bool]] = {}  # by node; used only by `probe`

    def close(self) -> None:
        """Close all connections; calls in flight complete."""
        with self._lock:
            self._is_closed = True
        self._pinging.shutdown(wait=False, cancel_futures=True)
        self.keep(())

    def keep(self, members: Collection[Member]) -> None:
        """Set the members: close the connections to all other peers, and forget their failures. An avoided node with a
        new master is pinged at once.
        """
        with self._lock:
            self.detector.keep({member.node for member in members})
            for member in members:
                if member not in self._members:
                    self.detector.restarted(member.node)
            self._members = frozenset(members)
            for link in list(self._links.values()):
                if link.peer not in self._members:
                    self._links.pop(link.peer.node).close()

    def slowest(self) -> dict[str, Any] | None:
        """The node whose calls took longest lately, and their mean in seconds; None before any call."""
        with self._lock:
            means = {node: link.mean_s for node, link in self._links.items() if link.mean_s}
        node = max(means, key=means.__getitem__, default=None)
        return None if node is None else {"node": node, "mean_s": round(means[node], 6)}

    # -- which peers get requests ------------------------------------------------------------------------

    def silent(self) -> list[str]:
        """Once after a failure, the other nodes without a recent reply: a whole rack may have failed, and its nodes
        would be detected one after the other.
        """
        with self._lock:
            has_failed, self._has_failed = self._has_failed, False
            since_s = self._clock() - self._silence_s
            return [
                node
                for node, link in self._links.items()
                if has_failed and link.answered_s < since_s and not self.detector.is_avoided(node)
            ]

    def probe(self) -> None:
        """Ping members that are avoided and due, or silent, in the background. Called by one thread at a time, until
        `close`; concurrently, as the pings of a rack that has failed must not wait for each other.
        """
        for node in [node for node, ping in self._pings.items() if ping.done()]:
            self._pings.pop(node).result()  # raises its error, which would be a bug
        nodes = {*self.detector.due(), *self.silent()}.difference(self._pings)
        for member in self._members:
            if member.node in nodes:
                self._pings[member.node] = self._pinging.submit(self.ping, member)

    def was_slow(self, peer: Member) -> None:
        """A peer timed out on a chunk that a server sent quickly: avoid it."""
        self.metrics.add(self._failures)
        with self._lock:
            if self._has_left(peer):
                return
            self.detector.failed(peer.node)
        _log.warning("node %s is slow; it is avoided for a while", peer.node)

    # -- calls -------------------------------------------------------------------------------------------

    def ping(self, peer: Member) -> bool:
        """Whether a peer answers. If it does, it gets requests again; if not, it is avoided for longer."""
        try:
            self._call(peer, "ping", {}, None, is_ping=True)
        except Unavailable:
            return False
        if self.detector.recovered(peer.node):
            _log.info("node %s answers again", peer.node)
        return True

    def warmth(self, peer: Member, is_to_warm: bool = False) -> Warmth:
        """The warmth of a peer; `is_to_warm` starts its warming. Raises as `extents`."""
        reply = self._call(peer, "get_warmth", {"is_to_warm": is_to_warm}, None)
        return Warmth(reply.pinned_bytes, reply.wanted_bytes, reply.damaged_chunks)

    def report(self, peer: Member, window: Window | None = None) -> bytes:
        """The metrics of a peer as JSON, or their history in a window. Raises as `held`."""
        first_s, last_s = (math.floor(window[0]), math.ceil(window[1])) if window else (0, 0)
        is_history = window is not None
        return self._found(
            peer, "get_report", {"is_history": is_history, "first_s": first_s, "last_s": last_s}
        )

    def held(self, peer: Member) -> bytes:
        """The chunks that a peer has in memory, see `cluster.holdings`. Raises Unavailable."""
        return self._found(peer, "get_held", {})

    def _found(self, peer: Member, method: str, arguments: dict[str, object]) -> bytes:
        """As `ask_aside`; a peer of an earlier version does not know the method. Raises Unavailable."""
        try:
            return self.ask_aside(peer, method, arguments, self._silence_s, bytes_max=PEER_REPORT_BYTES_MAX)
        except InvalidInput as error:
            raise Unavailable(f"node {peer.node}: {error}") from error

    def ask_aside(
        self,
        peer: Member,
        method: str,
        arguments: dict[str, object],
        timeout_s: float,
        bulk: Sequence[Buffer] = (),
        bytes_max: int = 0,
    ) -> bytes:
        """The bulk of a call on a connection of its own. A failure does not count. Raises InvalidInput if the peer
        refuses, and Unavailable.
        """
        link = _PeerLink(peer, self._clock())
        link.is_closed = True  # it is kept for no other call
        try:
            with self._connected(link) as connection:
                asked = {"digest": self._digest, **arguments}
                _, found = connection.call(method, asked, bulk, timeout_s, bulk_bytes_max=bytes_max)
        except InvalidInput:
            raise
        except DieselfsError as error:
            raise Unavailable(f"node {peer.node}: {error}") from error
        return bytes(found or b"")

    def extents(
        self,
        peer: Member,
        requests: Sequence[PeerRequest],
        receive: Callable[[Sequence[PeerRequest], memoryview], Iterator[memoryview]],
        is_retry: bool = False,
        queue_timeout_s: float = math.inf,
        asked: Callable[[Connection], None] | None = None,
    ) -> list[ChunkAvailability]:
        """Request extents from a peer. Returns the state of each chunk.

        For each chunk that the peer has, `receive` gets the request and the buffer of its bytes: the request's
        destination if it has one. It gets requests for extents together, up to PART_BYTES in one buffer. It yields all
        parts of the buffer, in their order; each is full when the next is requested, and further bytes are in flight.
        It raises ProtocolError for wrong bytes, and must be fast: it blocks the connection.
        `is_retry`: all chunks were in flight at the last request, so first requests precede this one.
        `queue_timeout_s` bounds the wait for a connection. `asked` is called when the request has been sent. It may
        wait for the reply to begin; an error cancels the request, and is no failure of the peer unless it is
        Unavailable.
        Raises Unavailable after a bounded wait if the peer fails; the peer is then avoided, and further calls raise at
        once.
        """

        def destination(reply: Any) -> Iterator[memoryview]:
            lengths = _lengths([each.length_bytes for each in requests], reply.states)
            if reply.bulk_length != sum(lengths):
                raise ProtocolError(f"{reply.bulk_length} bytes announced, {sum(lengths)} expected")
            # One buffer for all requests without a destination: large pages make it cheaper than many.
            new_bytes = sum(n for each, n in zip(requests, lengths, strict=True) if each.destination is None)
            left = np.empty(new_bytes, np.uint8).data
            here = [each for each, state in zip(requests, reply.states, strict=True) if state == _HERE]
            for group, length in _groups(here):
                view = group[0].destination
                if view is None:
                    view, left = left[:length], left[length:]
                yield from receive(group, view)

        arguments = encode_requests(requests)
        with METER.timed("peer", but=["verification"]):
            reply = self._call(
                peer,
                "get_extents",
                arguments,
                destination,
                is_retry=is_retry,
                queue_timeout_s=queue_timeout_s,
                asked=asked,
            )
        self.metrics.add(self._received, reply.bulk_length)
        return [*map(ChunkAvailability, reply.states)]

    def samples(
        self, peer: Member, store: str, files: Sequence[int], sizes: Sequence[int]
    ) -> list[memoryview | ChunkAvailability]:
        """The bytes of files that a peer keeps in a store, unverified; LATER for those that it would keep, ELSEWHERE
        for others. `sizes`: of the files, PEER_ANSWER_BYTES_MAX together at most. Raises as `extents`.
        """
        contents: list[memoryview | ChunkAvailability] = []

        def destination(reply: Any) -> Iterator[memoryview]:
            lengths = _lengths(sizes, reply.states)
            if reply.bulk_length != sum(lengths):
                raise ProtocolError(f"{reply.bulk_length} bytes announced, {sum(lengths)} expected")
            buffer = np.empty(reply.bulk_length, np.uint8).data
            if buffer:
                yield buffer
            for length, state in zip(lengths, reply.states, strict=True):
                contents.append(buffer[:length] if state == _HERE else ChunkAvailability(state))
                buffer = buffer[length:]

        arguments: dict[str, object] = {"store": store, "files": np.array(files, U32).tobytes()}
        with METER.timed("peer"):
            reply = self._call(peer, "get_samples", arguments, destination)
        self.metrics.add(self._received, reply.bulk_length)
        return contents

    def keep_samples(
        self, peer: Member, store: str, files: Sequence[int], contents: Sequence[Buffer]
    ) -> None:
        """Have a peer keep files in a store: 1 to PEER_ANSWER_BYTES_MAX bytes together. Raises as `extents`."""
        arguments: dict[str, object] = {
            "store": store,
            "files": np.array(files, U32).tobytes(),
            "bulk_length": sum(map(len, contents)),
        }
        self._call(peer, "put_samples", arguments, None, bulk=contents)

    def _call(
        self,
        peer: Member,
        method: str,
        arguments: dict[str, object],
        destination: Callable[[Any], Iterator[memoryview]] | None,
        is_ping: bool = False,
        is_retry: bool = False,
        queue_timeout_s: float = math.inf,
        asked: Callable[[Connection], None] | None = None,
        bulk: Sequence[Buffer] = (),
    ) -> Any:
        link = self._take_turn(peer, is_retry, queue_timeout_s)
        try:
            began_s = self._clock()
            arguments["digest"] = self._digest
            if not is_ping:
                if self.detector.is_avoided(peer.node):  # it may have failed while this call waited
                    raise Unavailable(f"node {peer.node} is avoided after a failure")
                self.metrics.add(self._requests)
            try:
                with self._connected(link) as connection:
                    left_s = self._call_timeout_s - (self._clock() - began_s)  # connecting has taken a part
                    if asked is not None:
                        connection.ask(method, arguments, self._silence_s, left_s)
                        asked(connection)
                    reply, _ = connection.call(method, arguments, bulk, self._silence_s, destination, left_s)
                    link.answered_s = self._clock()
                    if not is_ping:
                        took_s = link.answered_s - began_s
                        link.mean_s += (took_s - link.mean_s) * (LATEST_SHARE if link.mean_s else 1.0)
                    return reply
            except DieselfsError as error:
                self._note_failure(link, error, is_ping)
                raise Unavailable(f"node {peer.node}: {error}") from error
        finally:
            link.turn.release()

    def _note_failure(self, link: _PeerLink, error: DieselfsError, is_ping: bool) -> None:
        is_corrupt = isinstance(error, ProtocolError)
        if not is_ping:
            self.metrics.add(self._failures)
            self.metrics.add(self._corrupt, is_corrupt)
        with self._lock:
            if self._has_left(link.peer):
                pass  # not a failure of its successor
            elif is_corrupt:
                self.detector.sent_corrupt(link.peer.node)
            else:
                self.detector.failed(link.peer.node)
                self._has_failed |= not is_ping
            link.close_idle()
        if not is_ping:
            _log.warning("node %s is avoided for a while: %s", link.peer.node, error)

    def _has_left(self, peer: Member) -> bool:
        """Whether a peer is no member any more; called with the lock. Before `keep`, every peer is a member."""
        return bool(self._members) and peer not in self._members

    # -- connections -------------------------------------------------------------------------------------

    def _take_turn(self, peer: Member, is_retry: bool, queue_timeout_s: float) -> _PeerLink:
        """Wait for the connection to this peer; the caller releases its `turn`. Raises Unavailable after the timeout,
        which is no failure of the peer.
        """
        with self._lock:
            if self._is_closed:
                raise Unavailable("this node has closed its connections to other nodes")
            if self._has_left(peer):
                raise Unavailable(f"node {peer.node} has left the job, or has a new master")
            link = self._links.get(peer.node)
            if link is not None and link.peer != peer:  # another address, or a new incarnation
                link.close()
                link = None
            if link is None:
                link = self._links[peer.node] = _PeerLink(peer, self._clock())
        timeout_s = min(queue_timeout_s, self._call_timeout_s)
        if not link.turn.acquire(timeout_s, is_retry):
            raise Unavailable(f"node {peer.node} is busy: no free connection within {timeout_s:g} s")
        return link

    @contextmanager
    def _connected(self, link: _PeerLink) -> Iterator[Connection]:
        """The connection to a peer, kept for the next call if it is still open."""
        with self._lock:
            connection, link.idle = link.idle, None
        if connection is not None and not connection.is_idle:
            connection.close()
            connection = None
        if connection is None:
            address, timeout_s = link.peer.address, self._connect_timeout_s
            sock = connected(address, self._credential.client_tls(link.peer), timeout_s)
            key = self._credential.key
            # Two replies; another process at this address might send them byte by byte.
            connection = Connection(sock, address, key, timeout_s, 2 * timeout_s, PEER_ROLE)
        try:
            yield connection
        finally:
            with self._lock:
                if connection.is_open and not connection.is_asked and not link.is_closed:
                    link.idle = connection
                else:
                    connection.close()


def _groups(requests: Sequence[PeerRequest]) -> Iterator[tuple[list[PeerRequest], int]]:
    """The same requests in order, those for extents together, and the bytes of each group: PART_BYTES at most, or one
    request.
    """
    group: list[PeerRequest] = []
    group_bytes = 0
    for each in requests:
        is_small = bool(each.extents) and each.destination is None
        if group and not (is_small and group[0].extents and group_bytes + each.length_bytes <= PART_BYTES):
            yield group, group_bytes
            group, group_bytes = [], 0
        group.append(each)
        group_bytes += each.length_bytes
    if group:
        yield group, group_bytes


def _lengths(lengths: Sequence[int], states: bytes) -> list[int]:
    """The bytes that follow for each chunk, or file, of these lengths. Raises ProtocolError for invalid states."""
    if len(states) != len(lengths) or not _STATES.issuperset(states):
        raise ProtocolError(f"malformed reply: {len(states)} states for {len(lengths)}, or unknown ones")
    return [length if state == _HERE else 0 for length, state in zip(lengths, states, strict=True)]
