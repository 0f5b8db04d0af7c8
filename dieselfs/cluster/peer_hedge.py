"""A request to a peer that is late is also sent to a server. This module runs threads, and waits for sockets."""

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from threading import Lock

from dieselfs.cluster.chunk_requests import PeerRequest
from dieselfs.limits import PEER_ANSWER_S, PEER_SILENCE_S
from dieselfs.rpc.connection import Connection, first_to_answer
from dieselfs.rpc.endpoints import OVERTAKEN_MAX
from dieselfs.rpc.hedging import HEDGE_CEILING_S, Hedging, kind_of
from dieselfs.sources.interface import ChunkResult, Slices
from dieselfs.telemetry.registry import Registry

PEER_HEDGE_FLOOR_S = 0.5
"""No request is sent to a server earlier: a peer answers within PEER_ANSWER_S, also while it fetches, so one that takes
this long stands still, or is gone. Other requests would make servers send chunks twice to a job.
"""
HEDGES_AT_ONCE_MAX = 4

assert PEER_ANSWER_S < PEER_HEDGE_FLOOR_S <= HEDGE_CEILING_S < PEER_SILENCE_S

Results = Sequence[tuple[PeerRequest, ChunkResult]]


class Overtaken(Exception):
    """A server has answered first: `results`, all of them good, in the order of their arrival."""

    def __init__(self, results: Results) -> None:
        super().__init__()
        self.results = results


class PeerHedge:
    """The requests of one source to peers. Thread-safe. `fetch` gets the same bytes from a server."""

    def __init__(
        self,
        fetch: Callable[[Sequence[PeerRequest]], Iterable[tuple[PeerRequest, ChunkResult]]],
        metrics: Registry,
        floor_s: float,
    ) -> None:
        self._fetch = fetch
        self._metrics = metrics
        self._floor_s = floor_s
        self._hedging = Hedging()
        self._threads = ThreadPoolExecutor(HEDGES_AT_ONCE_MAX, "hedges")
        self._sent = metrics.counter(
            "peers.hedges_sent", "Requests sent to a server too, because a node was slow."
        )
        self._won = metrics.counter("peers.hedges_won", "Such requests that the server answered first.")
        self._lock = Lock()  # guards the one below
        self._overtaken: dict[str, int] = {}  # how often, since the last answer, by node

    def close(self) -> None:
        """Send no more requests; those in flight complete."""
        self._threads.shutdown(wait=False)

    def watch(self, connection: Connection, requests: Sequence[PeerRequest]) -> None:
        """Wait until a peer begins to reply to these requests, which `connection` has sent. Raises Overtaken if a
        server was faster, or Unavailable if neither answers in time; then it is closed.
        """
        began_s = time.monotonic()
        kind = kind_of("get_extents", sum(each.length_bytes for each in requests))
        after_s = max(self._hedging.after_s(kind), self._floor_s)
        overtaken: Overtaken | None = None
        if first_to_answer([connection], after_s) is None and self._hedging.may_send():
            self._metrics.add(self._sent)
            overtaken = self._race(connection, [replace(each, destination=None) for each in requests])
        self._hedging.answered(kind, time.monotonic() - began_s, overtaken is not None)
        if overtaken is not None:
            self._metrics.add(self._won)
            connection.close()
            raise overtaken

    def answered(self, node: str, is_overtaken: bool) -> bool:
        """A peer has answered, or was overtaken; whether that was once too often."""
        with self._lock:
            times = self._overtaken.pop(node, 0) + 1 if is_overtaken else 0
            if 0 < times < OVERTAKEN_MAX:
                self._overtaken[node] = times
        return times >= OVERTAKEN_MAX

    def _race(self, connection: Connection, requests: Sequence[PeerRequest]) -> Overtaken | None:
        """None if the peer is first, or the server has an error."""
        bell, ringing = socket.socketpair()

        def ring(_: Future[Results]) -> None:
            with suppress(OSError):  # nobody waits any more
                ringing.send(b"x")

        with closing(bell), closing(ringing):
            future: Future[Results] = self._threads.submit(lambda: [*self._fetch(requests)])
            future.add_done_callback(ring)
            first = first_to_answer([connection, bell], PEER_SILENCE_S)
            if first is None:
                raise connection.gave_up()
        if first == 0 or future.exception() is not None:
            return None
        results = future.result()
        return Overtaken(results) if all(isinstance(result, Slices) for _, result in results) else None
