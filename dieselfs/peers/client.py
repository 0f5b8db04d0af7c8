"""Asks the other nodes of a job, over few connections, and never waits long for one that does not answer.

Blocks; safe to use from many threads. A node has at most `connections_each` connections to each other one, each for
one call at a time; further calls wait for their turn. So p nodes with one connection each have p x (p - 1), and with as
many as each has processes of the job p x (n - 1) for n processes, as in the paper.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any

import numpy as np

from dieselfs.cache.member import Member
from dieselfs.cache.warmth import Warmth
from dieselfs.errors import DieselfsError, ProtocolError, Unavailable
from dieselfs.limits import (
    PEER_CALL_TIMEOUT_S,
    PEER_CONNECT_TIMEOUT_S,
    PEER_CONNECTIONS_MAX,
    PEER_SILENCE_S,
)
from dieselfs.peers.asking import State, Wanted, encode_wanted
from dieselfs.peers.suspicion import Suspicion
from dieselfs.peers.turns import Turns
from dieselfs.rpc.auth import Key
from dieselfs.rpc.connection import Connection, open_socket

_STATES = frozenset(State)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PeerFigures:
    """Counts since the start. `failures`: calls that brought nothing, `lies` among them. Pings are not counted."""

    requests: int = 0
    received_bytes: int = 0
    failures: int = 0
    lies: int = 0


class _Line:
    """The connections to one peer."""

    def __init__(self, peer: Member, connections_max: int, now_s: float) -> None:
        self.peer = peer
        self.turns = Turns(connections_max)
        # The client's lock guards both.
        self.heard_s = now_s  # when it last answered
        self.idle: list[Connection] = []
        self.is_closed = False


class PeerClient:
    """`key`: `JobSecret.peer_key()`; `digest`: of the snapshot that the job reads. Times are waits, in seconds."""

    def __init__(
        self,
        key: Key,
        digest: bytes,
        connections_each: int = PEER_CONNECTIONS_MAX,
        connect_timeout_s: float = PEER_CONNECT_TIMEOUT_S,
        silence_s: float = PEER_SILENCE_S,
        call_timeout_s: float = PEER_CALL_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._digest = digest
        self._connections_each = connections_each
        self._connect_timeout_s = connect_timeout_s
        self._silence_s = silence_s
        self._call_timeout_s = call_timeout_s
        self._clock = clock
        self._lock = Lock()  # guards all below
        self._suspicion = Suspicion(clock)
        self._has_failed = False  # a peer, since it was last asked who may have gone with it
        self._lines: dict[str, _Line] = {}
        self._members: frozenset[Member] = frozenset()
        self._figures = PeerFigures()
        self._is_closed = False

    def close(self) -> None:
        """Close all connections; calls that are under way end as they would."""
        with self._lock:
            self._is_closed = True
        self.keep(())

    def keep(self, members: Collection[Member]) -> None:
        """These are the members now: close the connections to all others, and forget what was held against them. One
        that is new may prove itself at once.
        """
        with self._lock:
            self._suspicion.keep({member.node for member in members})
            for member in members:
                if member not in self._members:
                    self._suspicion.renewed(member.node)
            self._members = frozenset(members)
            gone = [line for line in self._lines.values() if line.peer not in members]
            for line in gone:
                del self._lines[line.peer.node]
                line.is_closed = True
            idle = [connection for line in gone for connection in line.idle]
        for connection in idle:
            connection.close()

    # -- whom to ask -------------------------------------------------------------------------------------

    def is_asked(self, node: str, chunk_key: int) -> bool:
        """Whether a peer is asked for a chunk now; see `Suspicion`."""
        with self._lock:
            return self._suspicion.is_asked(node, chunk_key)

    def is_avoided(self, node: str) -> bool:
        with self._lock:
            return self._suspicion.share(node) == 0.0

    def doubted(self) -> frozenset[str]:
        """The nodes that are asked for less than all of their chunks."""
        with self._lock:
            return self._suspicion.doubted()

    def due(self) -> list[str]:
        """The nodes that are avoided, and may be pinged now."""
        with self._lock:
            return self._suspicion.due()

    def unheard(self) -> list[str]:
        """Once after a peer has failed, the others of whom nothing was heard lately either: they may have gone with it,
        as a whole rack does, and would be found out one after the other.
        """
        with self._lock:
            has_failed, self._has_failed = self._has_failed, False
            since_s = self._clock() - self._silence_s
            return [
                node
                for node, line in self._lines.items()
                if has_failed and line.heard_s < since_s and self._suspicion.share(node) > 0
            ]

    def lied(self, node: str) -> None:
        """A peer has sent other bytes than those that it was asked for: avoid it."""
        _log.error("node %s has sent wrong bytes, and is avoided for a while", node)
        with self._lock:
            self._figures.lies += 1
            self._figures.failures += 1
            self._suspicion.lied(node)

    def dawdled(self, peer: Member) -> None:
        """A peer did not get in all its time what a server has brought at once: avoid it."""
        with self._lock:
            self._figures.failures += 1
            if self._has_left(peer):
                return
            self._suspicion.failed(peer.node)
        _log.warning("node %s is slow, and is avoided for a while", peer.node)

    def figures(self) -> dict[str, int]:
        with self._lock:
            return asdict(self._figures)

    # -- asking ------------------------------------------------------------------------------------------

    def ping(self, peer: Member) -> bool:
        """Whether a peer is well; if it is, it is asked again from now on, if not, it is avoided for longer."""
        try:
            self._call(peer, "ping", {}, None, is_ping=True)
        except Unavailable:
            return False
        with self._lock:
            is_again = self._suspicion.share(peer.node) == 0
            self._suspicion.proved(peer.node)
        if is_again:
            _log.info("node %s answers again", peer.node)
        return True

    def warmth(self, peer: Member, is_to_warm: bool = False) -> Warmth:
        """How warm the memory of a peer is; with `is_to_warm`, it fetches what it can keep from now on.

        Raises as `pieces`.
        """
        reply = self._call(peer, "get_warmth", {"is_to_warm": is_to_warm}, None)
        return Warmth(reply.kept_bytes, reply.wanted_bytes, reply.damaged_chunks)

    def pieces(
        self,
        peer: Member,
        wanted: Sequence[Wanted],
        arrived: Callable[[Wanted, memoryview], None],
        is_again: bool = False,
        turn_s: float = math.inf,
    ) -> list[State]:
        """Ask a peer for pieces. Returns what became of each chunk; of those that are here, `arrived` gets the pieces,
        joined, at their destination if they have one, while others are on their way. It raises ProtocolError if they
        are not what is wanted, and is quick, as nobody else can ask this peer meanwhile. `is_again`: all of it was on
        its way there when it was last asked for, so that others go first. A turn is waited for no longer than `turn_s`.

        Raises Unavailable when the peer does not answer, or not as it should, after a bounded wait; it is avoided then,
        and for as long as it is, this raises at once.
        """

        def destination(reply: Any) -> Iterator[memoryview]:
            lengths = _lengths(wanted, reply.states)
            if reply.bulk_length != sum(lengths):
                raise ProtocolError(f"{reply.bulk_length} bytes are announced where {sum(lengths)} belong")
            homeless = (
                length for each, length in zip(wanted, lengths, strict=True) if each.destination is None
            )
            # One memory for all: large enough for large pages, each of which comes at once.
            left = np.empty(sum(homeless), np.uint8).data
            for each, state, length in zip(wanted, reply.states, lengths, strict=True):
                if state == State.HERE:
                    view = each.destination
                    if view is None:
                        view, left = left[:length], left[length:]
                    yield view
                    arrived(each, view)

        arguments = encode_wanted(wanted)
        reply = self._call(peer, "get_pieces", arguments, destination, is_again=is_again, turn_s=turn_s)
        with self._lock:
            self._figures.received_bytes += reply.bulk_length
        return [*map(State, reply.states)]

    def _call(
        self,
        peer: Member,
        method: str,
        arguments: dict[str, object],
        destination: Callable[[Any], Iterator[memoryview]] | None,
        is_ping: bool = False,
        is_again: bool = False,
        turn_s: float = math.inf,
    ) -> Any:
        with self._turn(peer, is_again, turn_s) as line:
            began_s = self._clock()
            if not is_ping:
                if self.is_avoided(peer.node):  # it may have failed while we waited for our turn
                    raise Unavailable(f"node {peer.node} is not asked for the moment")
                with self._lock:
                    self._figures.requests += 1
            try:
                connection = self._connection(line)
                try:
                    reply, _ = connection.call(
                        method,
                        {"digest": self._digest, **arguments},
                        (),
                        self._silence_s,
                        destination,
                        self._call_timeout_s - (self._clock() - began_s),  # connecting was part of it
                    )
                    with self._lock:
                        line.heard_s = self._clock()
                    return reply
                finally:
                    self._give_back(line, connection)
            except DieselfsError as error:
                self._note_failure(line, error, is_ping)
                raise Unavailable(f"node {peer.node}: {error}") from error

    def _note_failure(self, line: _Line, error: DieselfsError, is_ping: bool) -> None:
        with self._lock:
            is_lie = isinstance(error, ProtocolError)
            if self._has_left(line.peer):
                pass  # its successor has done nothing
            elif is_lie:
                self._suspicion.lied(line.peer.node)
            else:
                self._suspicion.failed(line.peer.node)
                self._has_failed |= not is_ping
            if not is_ping:
                self._figures.failures += 1
                self._figures.lies += is_lie
            idle, line.idle = line.idle, []  # they would fail too, each after its own wait
        for connection in idle:
            connection.close()
        if not is_ping:
            _log.warning("node %s is avoided for a while: %s", line.peer.node, error)

    def _has_left(self, peer: Member) -> bool:
        """Whether a peer is no member any more, with the lock; until somebody tells who the members are, all are."""
        return bool(self._members) and peer not in self._members

    # -- connections -------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self, peer: Member, is_again: bool, turn_s: float) -> Iterator[_Line]:
        """One of the calls to this peer that there may be at a time. Raises Unavailable when it is too long until then,
        which is nothing against the peer.
        """
        with self._lock:
            if self._is_closed:
                raise Unavailable("this node no longer asks others")
            if self._has_left(peer):
                raise Unavailable(f"node {peer.node} has left the job, or begun anew")
            line = self._lines.get(peer.node)
            is_other = line is not None and line.peer != peer
            if line is None or is_other:  # another address, or a new incarnation
                stale, line = line, _Line(peer, self._connections_each, self._clock())
                self._lines[peer.node] = line
                if stale is not None:
                    stale.is_closed = True
                    for connection in stale.idle:
                        connection.close()
        if not line.turns.take(min(turn_s, self._call_timeout_s), is_again):
            raise Unavailable(f"node {peer.node} is being asked by others all the time")
        try:
            yield line
        finally:
            line.turns.give_back()

    def _connection(self, line: _Line) -> Connection:
        with self._lock:
            while line.idle:
                connection = line.idle.pop()
                if connection.is_usable:
                    return connection
                connection.close()
        address, timeout_s = line.peer.address, self._connect_timeout_s
        # Two answers; a stranger at this address might send them byte by byte.
        return Connection(open_socket(address, None, timeout_s), address, self._key, timeout_s, 2 * timeout_s)

    def _give_back(self, line: _Line, connection: Connection) -> None:
        with self._lock:
            if connection.is_open and not line.is_closed:
                line.idle.append(connection)
                return
        connection.close()


def _lengths(wanted: Sequence[Wanted], states: bytes) -> list[int]:
    """How many bytes of each chunk follow. Raises ProtocolError for states that there are not."""
    if len(states) != len(wanted) or not _STATES.issuperset(states):
        raise ProtocolError("the states of other chunks, or of none")
    return [
        each.length_bytes if state == State.HERE else 0 for each, state in zip(wanted, states, strict=True)
    ]
