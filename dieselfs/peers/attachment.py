"""An attached process's way into the memory of its job. This module runs threads, and waits for sockets.

    own node's chunk   -> mapped from the master of this node, which fetches it from a server, once
    another node's     -> the master of that node, over a connection of this process; if that fails, a server
    no master          -> a server; another master may appear at any time, in the same place

Who the members are is asked from the master of this node, and the last list stands while there is none. A forked child
has what its parent knew, and connections, threads and locks of its own.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Protocol

from xxhash import xxh3_128_intdigest

from dieselfs.cache.member import INCARNATION_BYTES, Member
from dieselfs.cache.node_socket import NodeClient
from dieselfs.cache.payloads import Payload
from dieselfs.cache.segment import Memory
from dieselfs.chunk_source import Excerpts, NodeSource
from dieselfs.errors import InvalidInput
from dieselfs.limits import JOB_MASTER_WAIT_S, NODE_MEMBERS_INTERVAL_S, PEER_PINGS_AT_ONCE_MAX
from dieselfs.meta.snapshot import Snapshot
from dieselfs.peers.asking import Wanted
from dieselfs.peers.client import PeerClient
from dieselfs.peers.ownership import Ownership
from dieselfs.peers.source import Found, PooledSource
from dieselfs.reader import first_damaged
from dieselfs.rpc.address import TcpAddress
from dieselfs.rpc.auth import Key

_NOWHERE = TcpAddress("127.0.0.1", 0)
"""The address of an attached process: nobody asks it for anything."""

_log = logging.getLogger(__name__)


class MasterKeeper(Protocol):
    """Whoever sees to it that this node has a master. Safe to use from many threads."""

    def ensure(self, wait_s: float) -> None:
        """Find a master, or start one; wait no longer than this until it answers. Raises nothing."""
        ...

    def close(self) -> None:
        """This process needs the master no more."""
        ...


class MasterShelf:
    """The chunks of this node, as its master shares them. Blocks; safe to use from many threads."""

    def __init__(self, snapshot: Snapshot, node: NodeClient) -> None:
        self._snapshot = snapshot
        self._node = node

    def find(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, Found]]:
        """The payload of the chunk of each, verified as far as it is wanted; None for what the master does not bring,
        or not rightly.
        """
        for each in wanted:
            yield each, self._payload(each)

    def _payload(self, wanted: Wanted) -> memoryview | None:
        length_bytes = self._snapshot.chunk_payload_length(wanted.chunk)
        wanted_bytes = length_bytes if wanted.is_common else wanted.length_bytes
        memory = self._node.memory(wanted.chunk, length_bytes, wanted_bytes)
        if memory is None:
            return None
        view = Payload.of(memory).view
        if wanted.extents:  # to verify all of it takes as long as a hundred small files
            is_right = first_damaged(wanted.extents, Excerpts.of_payload(view, wanted.extents)) is None
        else:
            is_right = xxh3_128_intdigest(view) == self._snapshot.chunk_checksum(wanted.chunk)
        return view if is_right else None


class _Parts:
    """What one process has of an attachment: connections, locks, threads. These end with it."""

    def __init__(
        self,
        snapshot: Snapshot,
        server: NodeSource,
        node: NodeClient,
        name: str,
        key: Key,
        clock: Callable[[], float],
    ) -> None:
        self.process_id = os.getpid()
        self.peers = PeerClient(key, snapshot.digest, clock=clock)
        alone = Member(name, 0, _NOWHERE, 0, bytes(INCARNATION_BYTES))
        self.ownership = Ownership(snapshot, alone, self.peers)
        shelf = MasterShelf(snapshot, node)
        self.source = PooledSource(snapshot, self.ownership.owner, shelf, self.peers, server)
        self.errands = ThreadPoolExecutor(1, "attachment")
        self.pinging = ThreadPoolExecutor(PEER_PINGS_AT_ONCE_MAX, "pings")
        self.pings: dict[str, Future[bool]] = {}  # by node; used by the thread for errands alone
        self.errand: Future[None] | None = None
        self.due_s = clock() + NODE_MEMBERS_INTERVAL_S

    def take(self, members: Sequence[Member]) -> None:
        """These are the members from now on. Raises InvalidInput for what cannot be those of a job."""
        self.ownership.change(members)
        self.peers.keep(members)


class Attachment:
    """Blocks, each wait bounded; safe to use from many threads, and after a fork.

    Nothing is asked, and no thread runs, until it is used. The first use waits for the answer of the master
    (NODE_HELLO_TIMEOUT_S at most), and before that for the master; whatever is asked later is asked in the background.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        server: NodeSource,
        node: NodeClient,
        name: str,
        key: Key,
        keeper: MasterKeeper | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`server`: where bytes come from that nobody has; `node`: for the master of this node (`job_socket_path`);
        `name`: of the node; `key`: `JobSecret.peer_key()`.

        `keeper` is told to wait for a master JOB_MASTER_WAIT_S at the first use; later, whenever no master answers, not
        at all. It is closed with this, as `node` is.
        """
        self._snapshot = snapshot
        self._server = server
        self._node = node
        self._name = name
        self._key = key
        self._keeper = keeper
        self._clock = clock
        self._process_id = os.getpid()
        self._lock = Lock()  # guards making the parts
        self._parts: _Parts | None = None
        self._is_closed = False
        # Changed by one thread at a time: the one that makes the parts, and then the one for errands.
        self._version = 0
        self._members: tuple[Member, ...] = ()
        self._has_waited = False

    @property
    def source(self) -> PooledSource:
        """Where bytes come from. To be taken anew for each use: it is of this process alone."""
        return self._here().source

    @property
    def members(self) -> tuple[Member, ...]:
        """The masters of the job as they were last heard of, that of this node first; none before the first use."""
        return self._members

    def is_own(self, chunk: int) -> bool:
        """Whether a chunk is to be had from the master of this node just now, and not from that of another."""
        return self._here().ownership.owner(chunk) is None

    def memory(self, chunk: int, length_bytes: int, wanted_bytes: int) -> Memory | None:
        """As `NodeClient.memory`; None for a chunk of another node, too."""
        return self._node.memory(chunk, length_bytes, wanted_bytes) if self.is_own(chunk) else None

    @property
    def peers(self) -> PeerClient:
        """What asks the masters of other nodes; of this process alone, as `source`."""
        return self._here().peers

    def figures(self) -> dict[str, int]:
        """As `PooledSource.figures`, of this process; nothing before its first use."""
        parts = self._parts
        return {} if parts is None or parts.process_id != os.getpid() else parts.source.figures()

    def close(self) -> None:
        """Ask masters no more: what is under way, and whatever comes after it, is had from a server. What was mapped
        stays.
        """
        self._is_closed = True
        self._node.close()
        if self._keeper is not None:
            self._keeper.close()
        parts = self._parts
        if parts is not None and parts.process_id == os.getpid():
            parts.peers.close()

    # -- this process ------------------------------------------------------------------------------------

    def _here(self) -> _Parts:
        """The parts of this process, which look around now and then."""
        parts = self._parts
        if parts is None or parts.process_id != os.getpid():
            parts = self._made()
        now_s = self._clock()
        if now_s >= parts.due_s and not self._is_closed and (parts.errand is None or parts.errand.done()):
            parts.due_s = now_s + NODE_MEMBERS_INTERVAL_S
            if parts.errand is not None:
                parts.errand.result()  # a bug in it is not to be lost
            parts.errand = parts.errands.submit(self._look_around, parts)
        return parts

    def _made(self) -> _Parts:
        with self._guard():
            parts = self._parts
            if parts is None or parts.process_id != os.getpid():
                parts = _Parts(self._snapshot, self._server, self._node, self._name, self._key, self._clock)
                if self._members:  # which our parent knew
                    parts.take(self._members)
                elif not self._is_closed:
                    if self._keeper is not None and not self._has_waited:
                        self._keeper.ensure(JOB_MASTER_WAIT_S)
                        self._has_waited = True
                    self._learn(parts)
                self._parts = parts
            return parts

    def _look_around(self, parts: _Parts) -> None:
        """Learn who is there, and let those prove themselves who are avoided."""
        if not self._learn(parts) and self._keeper is not None and not self._is_closed:
            self._keeper.ensure(0.0)
        for node in [node for node, ping in parts.pings.items() if ping.done()]:
            parts.pings.pop(node).result()  # nor one in this
        # All at the same time: when a rack is lost, nobody waits behind the others.
        due = set(parts.peers.due()).difference(parts.pings)
        for member in self._members:
            if member.node in due and len(parts.pings) < PEER_PINGS_AT_ONCE_MAX:
                parts.pings[member.node] = parts.pinging.submit(parts.peers.ping, member)

    def _learn(self, parts: _Parts) -> bool:
        """Ask the master of this node for the members; whether it has answered."""
        told = self._node.members(self._version)
        if told is None:
            return False
        if told.members is not None:
            try:
                parts.take(told.members)
            except InvalidInput as error:
                _log.error("the master of this node names members that cannot be: %s", error)
                return False
            self._version, self._members = told.version, told.members
        return True

    def _guard(self) -> Lock:
        """The lock: a new one in a forked child, where a thread of the parent may have held the old one forever."""
        if self._process_id != os.getpid():
            # In this order: who sees that the process is this one takes the lock at once.
            self._lock, self._process_id = Lock(), os.getpid()
        return self._lock
