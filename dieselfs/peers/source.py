"""Where the bytes of a node come from that belongs to a job: its own shelf, the other nodes' shelves, or a server.

    own chunk    -> the shelf, which fetches it from a server, once
    another's    -> its owner, which does the same for all; if that fails, a server, and the owner is avoided

All that arrives is verified here, whoever sent it. What a peer sends and does not match is a lie: the peer has verified
it too. This module runs threads, and waits for sockets.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Protocol

from xxhash import xxh3_128_intdigest

from dieselfs.cache.member import Member
from dieselfs.chunk_source import NodeSource
from dieselfs.errors import Damaged, DieselfsError, Unavailable
from dieselfs.limits import (
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

Pieces = list[memoryview]
Brought = Pieces | DieselfsError
"""What was wanted of a chunk, where a whole payload is one piece; or why it cannot be had."""


Found = memoryview | DieselfsError | None
"""The payload of a chunk; what went wrong; or None if the chunk is not worth fetching for the few bytes of it."""


class OwnChunks(Protocol):
    """The chunks that this node owns. Blocks; safe to use from many threads."""

    def find(self, wanted: Sequence[Wanted]) -> list[Found]:
        """The payload of the chunk of each, verified; it stays readable. One that is wanted whole is never None."""
        ...


@dataclass(slots=True)
class PoolFigures:
    """Counts since the start, of payloads and pieces: `asked` = `own` + `from_peers` + `from_servers` + `failed`.

    What `own` took from servers is counted by the shelf, as its loads. So a node has had from the servers what the
    shelf loaded, and `server_bytes`.
    """

    asked: int = 0
    own: int = 0
    own_bytes: int = 0
    from_peers: int = 0
    peer_bytes: int = 0
    from_servers: int = 0
    server_bytes: int = 0
    failed: int = 0


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
        return self._had(Wanted.whole(self._snapshot, chunk))[0]

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        """As `fetch_chunk`, into memory of the payload's length."""
        destination[:] = self.fetch_chunk(chunk)

    def fetch_extent(self, extent: ExtentRef) -> bytes:
        """The bytes of one extent. Raises as `fetch_chunk`."""
        return self.fetch_extents(extent.chunk, [extent])[0]

    def fetch_extents(self, chunk: int, extents: Sequence[ExtentRef]) -> list[bytes]:
        """The bytes of extents of one chunk. Raises as `fetch_chunk`."""
        return [bytes(piece) for piece in self._had(Wanted.pieces(chunk, extents))] if extents else []

    def fetch_many(self, wanted: Mapping[int, Sequence[ExtentRef]]) -> dict[int, Brought]:
        """The bytes of extents of many chunks, or for each chunk why they cannot be had; one request to each owner.

        A request has no more than PEER_BATCH_BYTES: beyond that, there are several, one after the other. Pieces are
        views, of memory that is held for as long as one of a request is.
        """
        groups: dict[Member | None, list[Wanted]] = {}
        for chunk, extents in wanted.items():
            if extents:
                groups.setdefault(self._owner(chunk), []).append(Wanted.pieces(chunk, extents))
        brought: dict[int, Brought] = {chunk: [] for chunk, extents in wanted.items() if not extents}
        if groups:
            first, *rest = groups.items()
            others = [self._threads.submit(self._bring, peer, group) for peer, group in rest]
            brought |= self._bring(*first)
            for other in others:
                brought |= other.result()
        return brought

    def _had(self, wanted: Wanted) -> Pieces:
        brought = self._bring(self._owner(wanted.chunk), [wanted])[wanted.chunk]
        if isinstance(brought, DieselfsError):
            raise brought
        return brought

    def _bring(self, peer: Member | None, wanted: Sequence[Wanted]) -> dict[int, Brought]:
        """From the owner of all these, and what it does not have from a server."""
        brought: dict[int, Brought] = {}
        if peer is None:
            self._find(wanted, brought)
        elif not self._peers.is_avoided(peer.node):
            self._ask(peer, wanted, brought)
        for each in wanted:
            if each.chunk not in brought:
                brought[each.chunk] = self._serve(each)
        with self._lock:
            self._figures.asked += sum(map(_count, wanted))
        return brought

    # -- the three ways ----------------------------------------------------------------------------------

    def _find(self, wanted: Sequence[Wanted], brought: dict[int, Brought]) -> None:
        """On our own shelf."""
        for each, found in zip(wanted, self._own.find(wanted), strict=True):
            if isinstance(found, memoryview):
                brought[each.chunk] = _cut(each, found)
                with self._lock:
                    self._figures.own += _count(each)
                    self._figures.own_bytes += each.length_bytes
            elif isinstance(found, Damaged) and each.extents:
                continue  # these pieces may be whole all the same
            elif found is not None:
                brought[each.chunk] = self._failed(each, found)

    def _ask(self, peer: Member, wanted: Sequence[Wanted], brought: dict[int, Brought]) -> None:
        """A peer, again and again while it fetches; what it does not bring in time is left out."""
        left = list(wanted)
        patience_end_s = self._clock() + self._patience_s
        while left and self._clock() < patience_end_s:
            batch = _batch(left)
            try:
                later = self._take(peer, batch, brought)
            except Unavailable:
                return
            if len(later) < len(batch):
                patience_end_s = self._clock() + self._patience_s
            else:
                self._pause(PEER_AGAIN_S)
            left = left[len(batch) :] + later

    def _take(self, peer: Member, batch: Sequence[Wanted], brought: dict[int, Brought]) -> list[Wanted]:
        """One request. Returns what the peer has not fetched yet. Raises Unavailable if it is not to be asked again."""
        later = []
        for each, (state, view) in zip(batch, self._peers.pieces(peer, batch), strict=True):
            if state == State.LATER:
                later.append(each)
            elif state == State.HERE:
                pieces = _joined_pieces(each, view)
                if not self._is_right(each, pieces):
                    self._peers.lied(peer.node)
                    raise Unavailable(f"node {peer.node} has sent other bytes than those of the chunk")
                brought[each.chunk] = pieces
                with self._lock:
                    self._figures.from_peers += _count(each)
                    self._figures.peer_bytes += each.length_bytes
        return later

    def _is_right(self, wanted: Wanted, pieces: Pieces) -> bool:
        """Whether these are the bytes that are wanted, by their checksums."""
        if wanted.extents:
            return first_damaged(wanted.extents, pieces) is None
        return xxh3_128_intdigest(pieces[0]) == self._snapshot.chunk_checksum(wanted.chunk)

    def _serve(self, wanted: Wanted) -> Brought:
        """A server."""
        try:
            if wanted.extents:
                fetched = self._server.fetch_extents(wanted.chunk, wanted.extents)
                pieces = [memoryview(piece) for piece in fetched]
            else:
                pieces = [memoryview(self._server.fetch_chunk(wanted.chunk))]
        except DieselfsError as error:
            return self._failed(wanted, error)
        with self._lock:
            self._figures.from_servers += _count(wanted)
            self._figures.server_bytes += wanted.length_bytes
        return pieces

    def _failed(self, wanted: Wanted, error: DieselfsError) -> DieselfsError:
        with self._lock:
            self._figures.failed += _count(wanted)
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


def _cut(wanted: Wanted, payload: memoryview) -> Pieces:
    """What is wanted, out of the whole payload."""
    if not wanted.extents:
        return [payload]
    return [payload[extent.offset : extent.offset + extent.length] for extent in wanted.extents]


def _joined_pieces(wanted: Wanted, joined: memoryview) -> Pieces:
    """What is wanted, where it lies one piece behind the other."""
    if not wanted.extents:
        return [joined]
    pieces, start = [], 0
    for extent in wanted.extents:
        end = start + extent.length
        pieces.append(joined[start:end])
        start = end
    return pieces
