"""The access of an attached process to the memory of its job. This module runs threads, and waits for sockets.

    chunk of this node     -> mapped from the node master, which fetches it from a server, once
    chunk of another node  -> the master of that node, over a connection of this process; if that fails, a server
    no node master         -> a server; a new master may appear at any time

The node master supplies the membership list; without a master, the last list stays in use. A forked child has the list
of its parent, and its own connections, threads and locks.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from dieselfs.arrays import Numbers
from dieselfs.chunk.segment import Memory, readonly_view
from dieselfs.cluster.chunk_requests import PeerRequest
from dieselfs.cluster.credential import JobCredential
from dieselfs.cluster.daemon import JobDaemon
from dieselfs.cluster.holdings import distances_in_job
from dieselfs.cluster.member import Member
from dieselfs.cluster.node_client import NodeClient
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.cluster.placement import ChunkOwners
from dieselfs.cluster.pooled_source import PooledSource
from dieselfs.errors import InvalidInput, Unavailable
from dieselfs.forks import renew_after_fork
from dieselfs.limits import JOB_MASTER_WAIT_S, NODE_MEMBERS_INTERVAL_S
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import Slices, Source
from dieselfs.sources.server import is_intact
from dieselfs.telemetry.registry import Registry

_log = logging.getLogger(__name__)


class _Parts:
    """The connections, locks and threads of an attachment in one process."""

    def __init__(self, of: "Attachment") -> None:
        self.peers = PeerClient(of.credential, of.snapshot.digest, clock=of.clock, metrics=of.metrics)
        self.ownership = ChunkOwners(of.snapshot, Member.named(of.name), self.peers.detector)
        self.source = PooledSource(
            of.snapshot, self.ownership.owner, of.own_payload, self.peers, of.server, metrics=of.metrics
        )
        self.refreshing = ThreadPoolExecutor(1, "attachment")
        self.refresh: Future[None] | None = None
        self.due_s = of.clock() + NODE_MEMBERS_INTERVAL_S

    def change(self, members: Sequence[Member]) -> None:
        """Set the members. Raises InvalidInput for an impossible list."""
        self.ownership.change(members)
        self.peers.keep(members)


class Attachment:
    """Blocks, each wait bounded; thread-safe, also after a fork.

    Before the first use there are no requests and no threads. The first use waits for a master, and for its reply
    (at most NODE_HELLO_TIMEOUT_S); later refreshes run in the background.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        server: Source,
        node: NodeClient,
        name: str,
        credential: JobCredential,
        keeper: JobDaemon | None = None,
        clock: Callable[[], float] = time.monotonic,
        metrics: Registry | None = None,
    ) -> None:
        """`server`: the source of chunks that no node sends; `node`: the client of the node master (`job_socket_path`);
        `name`: of the node; `credential`: of this process.

        `keeper` waits up to JOB_MASTER_WAIT_S for a master at the first use, and does not wait later. `close` closes
        `keeper` and `node`.
        """
        self.metrics = metrics or Registry()
        self.snapshot = snapshot
        self.server = server
        self._node = node
        self.name = name
        self.credential = credential
        self._keeper = keeper
        self.clock = clock
        self._lock = Lock()  # guards the creation of the parts
        self._parts: _Parts | None = None
        self._is_closed = False
        # Changed by one thread at a time: the one that makes the parts, then the refresh thread.
        self._version = 0
        self.members: tuple[Member, ...] = ()
        """The last known node masters of the job, that of this node first; none before the first use."""
        self._has_waited = False
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Threads and connections belong to the parent; a thread of it may have held the lock."""
        self._lock, self._parts = Lock(), None

    @property
    def source(self) -> PooledSource:
        """The source of bytes. Read it for each use: it belongs to one process."""
        return self._here().source

    def distances(self) -> Numbers:
        """Where the chunks are, as the masters of the job answer: see `distances_in_job`."""
        peers = self.peers
        return distances_in_job(self.snapshot.chunk_count, self.name, self.members, peers.held)

    def peer(self, node: str) -> Member:
        """The master of another node. Raises Unavailable if none is known."""
        self._here()
        for member in self.members:
            if member.node == node:
                return member
        raise Unavailable(f"node {node} has no master in the job now")

    def own_among(self, chunks: Iterable[int]) -> set[int]:
        """The chunks that the master of this node owns now."""
        owner = self._here().ownership.owner
        return {chunk for chunk in chunks if owner(chunk) is None}

    def memory(self, chunk: int, length_bytes: int, wanted_bytes: int) -> Memory | None:
        """As `NodeClient.memory`; None also for chunks of other nodes."""
        return self._node.memory(chunk, length_bytes, wanted_bytes) if self.own_among((chunk,)) else None

    def own_payload(self, wanted: PeerRequest) -> memoryview | None:
        """The payload of a chunk of this node, shared by its master, with the requested extents verified; None if the
        master does not send it, or it is damaged.
        """
        length_bytes = self.snapshot.chunk_payload_length(wanted.chunk)
        wanted_bytes = length_bytes if wanted.is_shared_plan else wanted.length_bytes
        memory = self._node.memory(wanted.chunk, length_bytes, wanted_bytes)
        if memory is None:
            return None
        view = readonly_view(memory)
        # Verifying the whole payload costs as much as 100 small files.
        slices = Slices.of_payload(view, wanted.extents)
        return view if is_intact(self.snapshot, wanted.chunk, slices, wanted.extents) else None

    @property
    def peers(self) -> PeerClient:
        """Sends requests to the masters of other nodes; belongs to one process, as `source`."""
        return self._here().peers

    def close(self) -> None:
        """Send no more requests to masters: requests in flight and later ones use a server. Mappings stay valid."""
        self._is_closed = True
        self._node.close()
        if self._keeper is not None:
            self._keeper.close()
        if self._parts is not None:
            self._parts.peers.close()

    # -- this process ------------------------------------------------------------------------------------

    def _here(self) -> _Parts:
        """The parts of this process; starts a refresh when it is due."""
        parts = self._parts or self._make_parts()
        now_s = self.clock()
        if now_s >= parts.due_s and not self._is_closed and (parts.refresh is None or parts.refresh.done()):
            parts.due_s = now_s + NODE_MEMBERS_INTERVAL_S
            if parts.refresh is not None:
                parts.refresh.result()  # raises its error, which would be a bug
            parts.refresh = parts.refreshing.submit(self._refresh, parts)
        return parts

    def _make_parts(self) -> _Parts:
        with self._lock:
            parts = self._parts
            if parts is None:
                parts = _Parts(self)
                if self.members:  # known from the parent process
                    parts.change(self.members)
                elif not self._is_closed:
                    if self._keeper is not None and not self._has_waited:
                        self._keeper.ensure(JOB_MASTER_WAIT_S)
                        self._has_waited = True
                    self._read_members(parts)
                self._parts = parts
            return parts

    def _refresh(self, parts: _Parts) -> None:
        """Read the membership list, and ping avoided peers."""
        if not self._read_members(parts) and self._keeper is not None and not self._is_closed:
            self._keeper.ensure(0.0)
        parts.peers.probe()

    def _read_members(self, parts: _Parts) -> bool:
        """Request the membership list from the node master; whether it has answered."""
        reply = self._node.members(self._version)
        if reply is None:
            return False
        if reply.members is not None:
            try:
                parts.change(reply.members)
            except InvalidInput as error:
                _log.error(
                    "node master sent an invalid membership list; the last one stays in use: %s", error
                )
                return False
            self._version, self.members = reply.version, reply.members
        return True
