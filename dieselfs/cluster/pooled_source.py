"""The source of bytes in a job: the node cache of this node, the other nodes, or a server.

    own chunk       -> the node cache, which fetches it from a server, once
    other chunk     -> its owner, which does the same; if that fails, a server, and the owner is avoided;
                       if that stands still, a server as well (`peer_hedge.py`)

All bytes are verified here. A peer that sends wrong bytes is avoided: it has verified them itself. This module runs
threads, and waits for sockets.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from queue import SimpleQueue

from blake3 import blake3

from dieselfs.cluster.chunk_requests import ChunkAvailability, PeerRequest
from dieselfs.cluster.member import Member
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.cluster.peer_hedge import PEER_HEDGE_FLOOR_S, Overtaken, PeerHedge
from dieselfs.errors import DieselfsError, ProtocolError, Unavailable
from dieselfs.limits import (
    MIB,
    PEER_CHUNKS_MAX,
    PEER_PATIENCE_S,
    PEER_REQUESTS_AT_ONCE_MAX,
    RANGES_PER_REQUEST_MAX,
)
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import Arrival, ChunkResult, RequestMetrics, Slices, Source, Wanted
from dieselfs.sources.server import hashed_parts, is_intact
from dieselfs.telemetry.registry import Registry

PEER_RETRY_S = 0.01
PEER_RETRY_MAX_S = 0.16
"""First and largest retry interval for a chunk that is in flight at a peer; it doubles each time. A thousand nodes
that wait for one chunk of a slow peer send it 5,000 requests a second.
"""
PEER_BATCH_BYTES = 8 * MIB
"""Largest request, unless it is for one chunk: the connection serves no other request meanwhile, and each fetch batch
in flight takes this much memory.
"""

SERVER_SHARE = 0.1
"""A peer is slow if a server takes no more than this part of the time in which the peer has not fetched a chunk."""


class PooledSource:
    """A `Source`. Blocks, each wait bounded; thread-safe, but not for the thread of the node cache.

    - `owner`: the current owner of a chunk, None for this node; may change at any time
    - `own`: the verified payload of a requested chunk of this node, None if the node does not send it; itself None in
      the node master, whose readers request them from its node cache first
    - `server`: verified bytes of chunks that no owner sends
    """

    def __init__(
        self,
        snapshot: Snapshot,
        owner: Callable[[int], Member | None],
        own: Callable[[PeerRequest], memoryview | None] | None,
        peers: PeerClient,
        server: Source,
        patience_s: float = PEER_PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        metrics: Registry | None = None,
    ) -> None:
        self.metrics = metrics or Registry()
        self._snapshot = snapshot
        self._owner = owner
        self._own = own
        self._peers = peers
        self._server = server
        self._patience_s = patience_s
        self._clock = clock
        self._pause = pause
        self._threads = ThreadPoolExecutor(PEER_REQUESTS_AT_ONCE_MAX, "peers")
        self._counted = RequestMetrics(self.metrics)
        self._hedge = PeerHedge(self._served, self.metrics, PEER_HEDGE_FLOOR_S)

    def close(self) -> None:
        """Send no more requests; those in flight complete. The caller closes `own`, `peers` and `server`."""
        self._threads.shutdown(wait=False)
        self._hedge.close()

    # -- as a source -------------------------------------------------------------------------------------

    def fetch_chunk(self, chunk: int) -> memoryview:
        """As `Source.fetch_chunk`. Raises Damaged, which names the chunk, or Unavailable."""
        return self._fetch_one(PeerRequest.whole(self._snapshot, chunk)).content

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        """As `Source.fetch_chunk_into`."""
        content = self._fetch_one(PeerRequest.whole(self._snapshot, chunk, destination)).content
        if content is not destination:  # it was in the node cache
            destination[:] = content

    def fetch_blocks(self, chunk: int, first: int, end: int) -> memoryview:
        """As `Source.fetch_blocks`, from a server: the nodes of a job exchange extents and whole chunks."""
        return self._server.fetch_blocks(chunk, first, end)

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        """The bytes of extents of many chunks, or for each chunk the error; concurrent requests, one to each owner.

        A request has at most PEER_BATCH_BYTES; several to one owner follow each other. Closing the iterator early
        abandons the requests in flight.
        """
        groups: list[tuple[Member | None, list[PeerRequest]]] = []
        for peer, chunks in self._by_owner(wanted):
            requests = []
            for chunk in chunks:
                if extents := wanted[chunk]:
                    requests.append(PeerRequest.of_extents(chunk, extents, wanted.is_shared_plan))
                else:
                    yield {chunk: Slices(memoryview(b""), (), ())}
            if requests:
                groups.append((peer, requests))
        if len(groups) > 1:
            yield from self._fetch_concurrently(groups)
        else:
            for peer, requests in groups:
                yield from self._fetch(peer, requests)

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        """The chunks, grouped by current owner."""
        return [group for _, group in self._by_owner(chunks)]

    def _by_owner(self, chunks: Iterable[int]) -> Iterable[tuple[Member | None, list[int]]]:
        groups: dict[int, tuple[Member | None, list[int]]] = {}  # by identity: hashing a member takes longer
        for chunk in chunks:
            owner = self._owner(chunk)
            groups.setdefault(id(owner), (owner, []))[1].append(chunk)
        return groups.values()

    def _fetch_concurrently(
        self, groups: Sequence[tuple[Member | None, Sequence[PeerRequest]]]
    ) -> Iterator[Arrival]:
        arrived: SimpleQueue[Arrival | BaseException | None] = SimpleQueue()
        is_abandoned = False

        def fetch(peer: Member | None, group: Sequence[PeerRequest]) -> None:
            try:
                for each in self._fetch(peer, group):
                    if is_abandoned:
                        return
                    arrived.put(each)
                arrived.put(None)
            except BaseException as error:  # a bug: raised in the calling thread
                arrived.put(error)

        for peer, group in groups:
            self._threads.submit(fetch, peer, group)
        try:
            in_flight = len(groups)
            while in_flight:
                each = arrived.get()
                if isinstance(each, BaseException):
                    raise each
                if each is None:
                    in_flight -= 1
                else:
                    yield each
        finally:
            is_abandoned = True

    def _fetch_one(self, request: PeerRequest) -> Slices:
        (arrival,) = self._fetch(self._owner(request.chunk), [request])
        (result,) = arrival.values()
        if isinstance(result, DieselfsError):
            raise result
        return result

    def _fetch(self, peer: Member | None, requests: Sequence[PeerRequest]) -> Iterator[Arrival]:
        """From the owner of all these chunks; the rest from a server."""
        left = {each.chunk: each for each in requests}
        late: list[PeerRequest] = []
        if peer is None:
            came = self._from_node(requests)
        elif self._peers.detector.is_avoided(peer.node):
            came = iter(())
        else:
            came = self._from_peer(peer, requests, late)
        for batch in came:
            for each, _ in batch:
                del left[each.chunk]
            yield {each.chunk: result for each, result in batch}
        began_s = self._clock()
        for each, result in self._from_server(list(left.values())):
            if peer is not None and each in late and isinstance(result, Slices):
                late.clear()  # only the first of them is timed
                if self._clock() - began_s < self._patience_s * SERVER_SHARE:
                    self._peers.was_slow(peer)
            yield {each.chunk: result}

    # -- the three sources -------------------------------------------------------------------------------

    def _from_node(self, requests: Sequence[PeerRequest]) -> Iterator[list[tuple[PeerRequest, ChunkResult]]]:
        if self._own is None:
            return
        for each in requests:
            payload = self._own(each)
            if payload is not None:
                self._counted.count(self._counted.from_node, _count(each), each.length_bytes)
                yield [(each, Slices.of_payload(payload, each.extents))]

    def _from_peer(
        self, peer: Member, requests: Sequence[PeerRequest], late: list[PeerRequest]
    ) -> Iterator[list[tuple[PeerRequest, ChunkResult]]]:
        """Retries while the peer fetches; requests that it still fetches after the timeout are added to `late`."""
        left = list(requests)
        patience_end_s = self._clock() + self._patience_s
        pause_s = PEER_RETRY_S
        requested: set[int] = set()
        while left and self._clock() < patience_end_s:
            batch = _batch(left)
            left_s = patience_end_s - self._clock()
            is_retry = requested.issuperset(each.chunk for each in batch)
            came, states = self._request(peer, batch, is_retry, left_s)
            if came:
                yield came
            if not states:
                return
            later = [
                each for each, state in zip(batch, states, strict=True) if state == ChunkAvailability.LATER
            ]
            requested.update(each.chunk for each in later)
            if len(later) < len(batch):
                patience_end_s = self._clock() + self._patience_s
                pause_s = PEER_RETRY_S
            else:
                self._pause(pause_s)
                pause_s = min(2 * pause_s, PEER_RETRY_MAX_S)
            left = left[len(batch) :] + later
        late += left

    def _request(
        self, peer: Member, batch: Sequence[PeerRequest], is_retry: bool, queue_timeout_s: float
    ) -> tuple[list[tuple[PeerRequest, ChunkResult]], list[ChunkAvailability]]:
        """One request: the received extents, verified, and the states; none if the peer failed or was overtaken."""
        came: list[tuple[PeerRequest, ChunkResult]] = []

        def receive(requests: Sequence[PeerRequest], content: memoryview) -> Iterator[memoryview]:
            chunk = requests[0].chunk
            if requests[0].extents:
                yield content
                extents = [*chain.from_iterable(each.extents for each in requests)]
                slices = Slices.joined(content, extents)
                is_right = is_intact(self._snapshot, chunk, slices, extents)
            else:
                digest = blake3()
                yield from hashed_parts(content, digest)
                slices = Slices.of_payload(content)
                is_right = digest.digest() == self._snapshot.chunk_digest(chunk)
            if not is_right:
                raise ProtocolError(f"wrong bytes for chunk {chunk}, or others in the same part of the reply")
            self._counted.count(self._counted.from_peers, len(slices), len(content))
            came.extend(zip(requests, slices.split(map(_count, requests)), strict=True))

        try:
            states = self._peers.extents(
                peer,
                batch,
                receive,
                is_retry,
                max(queue_timeout_s, 0.0),
                lambda connection: self._hedge.watch(connection, batch),
            )
        except Unavailable:
            return came, []
        except Overtaken as first:
            requested = {each.chunk: each for each in batch}
            for sent, result in first.results:
                request = requested[sent.chunk]
                self._counted.count(self._counted.from_servers, _count(request), request.length_bytes)
                came.append((request, result))
            if self._hedge.answered(peer.node, is_overtaken=True):
                self._peers.was_slow(peer)
            return came, []
        self._hedge.answered(peer.node, is_overtaken=False)
        return came, states

    def _from_server(self, requests: Sequence[PeerRequest]) -> Iterator[tuple[PeerRequest, ChunkResult]]:
        for each, result in self._served(requests):
            way = self._counted.failed if isinstance(result, DieselfsError) else self._counted.from_servers
            self._counted.count(way, _count(each), each.length_bytes)
            yield each, result

    def _served(self, requests: Sequence[PeerRequest]) -> Iterator[tuple[PeerRequest, ChunkResult]]:
        partial = {each.chunk: each for each in requests if each.extents}
        if partial:
            extents = Wanted({chunk: each.extents for chunk, each in partial.items()})
            for arrival in self._server.fetch_many(extents):
                yield from ((partial[chunk], result) for chunk, result in arrival.items())
        for each in requests:
            if each.extents:
                continue
            payload = each.destination
            try:
                if payload is None:
                    payload = memoryview(self._server.fetch_chunk(each.chunk))
                else:
                    self._server.fetch_chunk_into(each.chunk, payload)
                yield each, Slices.of_payload(payload)
            except DieselfsError as error:
                yield each, error


def _batch(requests: Sequence[PeerRequest]) -> list[PeerRequest]:
    """The first requests that fit into one call, at least one."""
    total_bytes = ranges = 0
    batch: list[PeerRequest] = []
    for each in requests[:PEER_CHUNKS_MAX]:
        total_bytes += each.length_bytes
        ranges += len(each.extents)
        if batch and (total_bytes > PEER_BATCH_BYTES or ranges > RANGES_PER_REQUEST_MAX):
            break
        batch.append(each)
    return batch


def _count(request: PeerRequest) -> int:
    return len(request.extents) or 1
