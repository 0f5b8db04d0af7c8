"""Where the bytes of a node come from that belongs to a job: its own shelf, the other nodes' shelves, or a server.

    own chunk    -> the shelf, which fetches it from a server, once
    another's    -> its owner, which does the same for all; if that fails, a server, and the owner is avoided

All that arrives is verified here, whoever sent it. What a peer sends and does not match is a lie: the peer has verified
it too. This module runs threads, and waits for sockets.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from threading import Lock
from typing import Protocol

from xxhash import xxh3_128_intdigest

from dieselfs.cache.member import Member
from dieselfs.chunk_source import Arrival, Brought, Excerpts, NodeSource
from dieselfs.errors import Damaged, DieselfsError, ProtocolError, Unavailable
from dieselfs.limits import (
    PEER_AGAIN_MAX_S,
    PEER_AGAIN_S,
    PEER_BATCH_BYTES,
    PEER_CHUNKS_MAX,
    PEER_PATIENCE_S,
    PEER_REQUESTS_AT_ONCE_MAX,
    RANGES_PER_REQUEST_MAX,
)
from dieselfs.meta.snapshot import ExtentRef, Snapshot
from dieselfs.peers.asking import State, Wanted
from dieselfs.peers.client import PeerClient
from dieselfs.reader import first_damaged

SERVER_SHARE = 0.1
"""A peer is slow if a server takes no more than this part of the time in which the peer has not fetched a chunk."""

Found = memoryview | DieselfsError | None
"""The payload of a chunk; what went wrong; or None if it is not to be had here, or not for the few bytes of it."""


class OwnChunks(Protocol):
    """The chunks that this node owns. Blocks; safe to use from many threads."""

    def find(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, Found]]:
        """The payload of the chunk of each, verified, as soon as it is here; it stays readable."""
        ...


@dataclass(slots=True)
class PoolFigures:
    """Counts since the start, of payloads and pieces, and of their bytes: `asked` = `own` + `from_peers` +
    `from_servers` + `failed`.

    What `own` took from servers is counted by the shelf, as its loads. So a node has had from the servers what the
    shelf loaded, and `server_bytes`.
    """

    asked: int = 0
    asked_bytes: int = 0
    own: int = 0
    own_bytes: int = 0
    from_peers: int = 0
    peer_bytes: int = 0
    from_servers: int = 0
    server_bytes: int = 0
    failed: int = 0
    failed_bytes: int = 0


class PooledSource:
    """A `NodeSource`. Blocks, each wait bounded; safe to use from many threads, but not from that of the shelf.

    - `owner` says whose a chunk is just now, None if it is this node's own; it may change its mind at any time
    - `server` is where bytes come from that no owner has; verified
    """

    def __init__(
        self,
        snapshot: Snapshot,
        owner: Callable[[int], Member | None],
        own: OwnChunks,
        peers: PeerClient,
        server: NodeSource,
        patience_s: float = PEER_PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._snapshot = snapshot
        self._owner = owner
        self._own = own
        self._peers = peers
        self._server = server
        self._patience_s = patience_s
        self._clock = clock
        self._pause = pause
        self._threads = ThreadPoolExecutor(PEER_REQUESTS_AT_ONCE_MAX, "peers")
        self._lock = Lock()  # guards the one below
        self._figures = PoolFigures()

    def close(self) -> None:
        """Ask no more; what is under way ends as it would. The shelf, peers and server are the caller's to close."""
        self._threads.shutdown(wait=False)

    def figures(self) -> dict[str, int]:
        with self._lock:
            return asdict(self._figures)

    # -- what a node asks for ----------------------------------------------------------------------------

    def fetch_chunk(self, chunk: int) -> memoryview:
        """The payload of a chunk. Raises Damaged, which names it, or Unavailable."""
        return self._had(Wanted.whole(self._snapshot, chunk)).content

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        """As `fetch_chunk`, into memory of the payload's length; if it raises, what is there then means nothing."""
        content = self._had(Wanted.whole(self._snapshot, chunk, destination)).content
        if content is not destination:  # it was on our own shelf
            destination[:] = content

    def fetch_extent(self, extent: ExtentRef) -> bytes:
        """The bytes of one extent. Raises as `fetch_chunk`."""
        return bytes(self._had(Wanted.pieces(extent.chunk, [extent]))[0])

    def fetch_many(
        self, wanted: Mapping[int, Sequence[ExtentRef]], is_common: bool = False
    ) -> Iterator[Arrival]:
        """The bytes of extents of many chunks, or for each chunk why they cannot be had; one request to each owner, all
        at the same time.

        A request has no more than PEER_BATCH_BYTES: beyond that, there are several, one after the other. Whoever lets
        go of the iterator before its end abandons what is on its way.
        """
        groups: dict[Member | None, list[Wanted]] = {}
        for chunk, extents in wanted.items():
            if extents:
                groups.setdefault(self._owner(chunk), []).append(Wanted.pieces(chunk, extents, is_common))
            else:
                yield {chunk: Excerpts.joined(memoryview(b""), ())}
        if len(groups) > 1:
            yield from self._bring_together(groups)
        else:
            for peer, group in groups.items():
                yield from self._bring(peer, group)

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        """The chunks of each owner, as it is just now."""
        groups: dict[Member | None, list[int]] = {}
        for chunk in chunks:
            groups.setdefault(self._owner(chunk), []).append(chunk)
        return list(groups.values())

    def _bring_together(self, groups: Mapping[Member | None, Sequence[Wanted]]) -> Iterator[Arrival]:
        arrived: SimpleQueue[Arrival | BaseException | None] = SimpleQueue()
        is_abandoned = False

        def bring(peer: Member | None, group: Sequence[Wanted]) -> None:
            try:
                for each in self._bring(peer, group):
                    if is_abandoned:
                        return
                    arrived.put(each)
                arrived.put(None)
            except BaseException as error:  # a bug: whoever asked is to hear of it
                arrived.put(error)

        for peer, group in groups.items():
            self._threads.submit(bring, peer, group)
        try:
            underway = len(groups)
            while underway:
                each = arrived.get()
                if isinstance(each, BaseException):
                    raise each
                if each is None:
                    underway -= 1
                else:
                    yield each
        finally:
            is_abandoned = True

    def _had(self, wanted: Wanted) -> Excerpts:
        (arrival,) = self._bring(self._owner(wanted.chunk), [wanted])
        (brought,) = arrival.values()
        if isinstance(brought, DieselfsError):
            raise brought
        return brought

    def _bring(self, peer: Member | None, wanted: Sequence[Wanted]) -> Iterator[Arrival]:
        """From the owner of all these, and what it does not have from a server."""
        left = {each.chunk: each for each in wanted}
        late: list[Wanted] = []
        if peer is None:
            came = self._find(wanted)
        elif self._peers.is_avoided(peer.node):
            came = iter(())
        else:
            came = self._ask(peer, wanted, late)
        for together in came:
            for each, _ in together:
                del left[each.chunk]
            yield {each.chunk: brought for each, brought in together}
        began_s = self._clock()
        for each, brought in self._serve(list(left.values())):
            if peer is not None and each in late and isinstance(brought, Excerpts):
                late.clear()  # of all that it did not bring, the first will do
                if self._clock() - began_s < self._patience_s * SERVER_SHARE:
                    self._peers.dawdled(peer)
            yield {each.chunk: brought}

    # -- the three ways ----------------------------------------------------------------------------------

    def _find(self, wanted: Sequence[Wanted]) -> Iterator[list[tuple[Wanted, Brought]]]:
        """On our own shelf."""
        for each, found in self._own.find(wanted):
            if isinstance(found, memoryview):
                with self._lock:
                    self._figures.asked += _count(each)
                    self._figures.asked_bytes += each.length_bytes
                    self._figures.own += _count(each)
                    self._figures.own_bytes += each.length_bytes
                yield [(each, _cut(each, found))]
            elif found is None or (isinstance(found, Damaged) and each.extents):
                continue  # these pieces may be whole all the same
            else:
                yield [(each, self._failed(each, found))]

    def _ask(
        self, peer: Member, wanted: Sequence[Wanted], late: list[Wanted]
    ) -> Iterator[list[tuple[Wanted, Brought]]]:
        """A peer, again and again while it fetches; what it still fetches in the end is added to `late`."""
        left = list(wanted)
        patience_end_s = self._clock() + self._patience_s
        pause_s = PEER_AGAIN_S
        asked: set[int] = set()
        while left and self._clock() < patience_end_s:
            batch = _batch(left)
            left_s = patience_end_s - self._clock()
            came, states = self._take(peer, batch, asked.issuperset(each.chunk for each in batch), left_s)
            if came:
                yield came
            if not states:
                return
            later = [each for each, state in zip(batch, states, strict=True) if state == State.LATER]
            asked.update(each.chunk for each in later)
            if len(later) < len(batch):
                patience_end_s = self._clock() + self._patience_s
                pause_s = PEER_AGAIN_S
            else:
                self._pause(pause_s)
                pause_s = min(2 * pause_s, PEER_AGAIN_MAX_S)
            left = left[len(batch) :] + later
        late += left

    def _take(
        self, peer: Member, batch: Sequence[Wanted], is_again: bool, turn_s: float
    ) -> tuple[list[tuple[Wanted, Brought]], list[State]]:
        """One request: what has come, and what became of each; of none, if the peer is not to be asked again."""
        came: list[tuple[Wanted, Brought]] = []

        def arrived(wanted: Wanted, content: memoryview) -> None:
            came.append((wanted, self._verified(wanted, content)))

        try:
            return came, self._peers.pieces(peer, batch, arrived, is_again, max(turn_s, 0.0))
        except Unavailable:
            return came, []

    def _verified(self, wanted: Wanted, content: memoryview) -> Excerpts:
        """What a peer has sent. Raises ProtocolError if it is not what is wanted."""
        excerpts = _joined(wanted, content)
        if not self._is_right(wanted, excerpts):
            raise ProtocolError(f"other bytes than those of chunk {wanted.chunk}")
        with self._lock:
            self._figures.asked += _count(wanted)
            self._figures.asked_bytes += wanted.length_bytes
            self._figures.from_peers += _count(wanted)
            self._figures.peer_bytes += wanted.length_bytes
        return excerpts

    def _is_right(self, wanted: Wanted, excerpts: Excerpts) -> bool:
        """Whether these are the bytes that are wanted, by their checksums."""
        if wanted.extents:
            return first_damaged(wanted.extents, excerpts) is None
        return xxh3_128_intdigest(excerpts.content) == self._snapshot.chunk_checksum(wanted.chunk)

    def _serve(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, Brought]]:
        """A server."""
        for each, brought in self._served(wanted):
            if isinstance(brought, DieselfsError):
                yield each, self._failed(each, brought)
                continue
            with self._lock:
                self._figures.asked += _count(each)
                self._figures.asked_bytes += each.length_bytes
                self._figures.from_servers += _count(each)
                self._figures.server_bytes += each.length_bytes
            yield each, brought

    def _served(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, Brought]]:
        of_pieces = {each.chunk: each for each in wanted if each.extents}
        if of_pieces:
            extents = {chunk: each.extents for chunk, each in of_pieces.items()}
            for arrival in self._server.fetch_many(extents):
                yield from ((of_pieces[chunk], brought) for chunk, brought in arrival.items())
        for each in wanted:
            if not each.extents:
                try:
                    yield each, _whole(self._served_whole(each))
                except DieselfsError as error:
                    yield each, error

    def _served_whole(self, wanted: Wanted) -> memoryview:
        if wanted.destination is None:
            return memoryview(self._server.fetch_chunk(wanted.chunk))
        self._server.fetch_chunk_into(wanted.chunk, wanted.destination)
        return wanted.destination

    def _failed(self, wanted: Wanted, error: DieselfsError) -> DieselfsError:
        with self._lock:
            self._figures.asked += _count(wanted)
            self._figures.asked_bytes += wanted.length_bytes
            self._figures.failed += _count(wanted)
            self._figures.failed_bytes += wanted.length_bytes
        return error


def _batch(wanted: Sequence[Wanted]) -> list[Wanted]:
    """The first of these that fit into one request, at least one."""
    total_bytes = ranges = 0
    batch: list[Wanted] = []
    for each in wanted[:PEER_CHUNKS_MAX]:
        total_bytes += each.length_bytes
        ranges += len(each.extents)
        if batch and (total_bytes > PEER_BATCH_BYTES or ranges > RANGES_PER_REQUEST_MAX):
            break
        batch.append(each)
    return batch


def _count(wanted: Wanted) -> int:
    return len(wanted.extents) or 1


def _whole(payload: memoryview) -> Excerpts:
    return Excerpts(payload, [0], [len(payload)])


def _cut(wanted: Wanted, payload: memoryview) -> Excerpts:
    """What is wanted, out of the whole payload."""
    return Excerpts.of_payload(payload, wanted.extents) if wanted.extents else _whole(payload)


def _joined(wanted: Wanted, content: memoryview) -> Excerpts:
    """What is wanted, where it lies one piece behind the other."""
    return Excerpts.joined(content, wanted.extents) if wanted.extents else _whole(content)
