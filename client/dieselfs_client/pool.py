"""A node's part in the pooled memory of its job (DIESEL 4.2): owns its share of the chunks, and asks the others for theirs.

    membership --who is there--> ownership --whose is it--> PooledSource --> own shelf | peers | server
"""

import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import trio

from dieselfs.cache.job import Job
from dieselfs.cache.member import INCARNATION_BYTES, Member, Terms
from dieselfs.cache.secret import JobSecret
from dieselfs.dataset import Dataset
from dieselfs.errors import AlreadyExists, DieselfsError
from dieselfs.limits import JOB_GATHER_TIMEOUT_S, PEER_WATCH_S, POOL_LOADS_AT_ONCE_MAX
from dieselfs.rpc.address import EtcdAddress, ServerList, Servers, TcpAddress
from dieselfs.rpc.serving.reception import open_listeners
from dieselfs_client.membership import Membership, RemoteRoll
from dieselfs_client.ownership import Ownership
from dieselfs_client.peers.client import PeerClient
from dieselfs_client.peers.own_shelf import OwnShelf
from dieselfs_client.peers.service import PeerService
from dieselfs_client.peers.source import PooledSource
from dieselfs_client.shelf import Shelf

TRANSIT_SHARE = 0.25
"""Of the shelf's memory, for chunks that it cannot keep: each is there until the nodes that need it have had it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """What a node brings into its job.

    - `job`: its name, and this node's place in it; `secret`: what its members know
    - `nodes`: how many there should be; they are waited for before anything is fetched. 0: nobody knows
    - `host`: the address at which the other nodes reach this one; None to find it out
    - `memory_bytes`: for the chunks that it owns
    """

    job: Job
    secret: JobSecret
    nodes: int
    host: str | None
    memory_bytes: int


class Pool:
    """Used from one trio thread; `source` from any other."""

    def __init__(self, data: Dataset, terms: PoolTerms, nursery: trio.Nursery) -> None:
        """`nursery` runs what is fetched; when it is cancelled, all of that is abandoned."""
        snapshot, reader = data.snapshot, data.chunks
        self._terms = terms
        self._data = data
        self._snapshot = snapshot
        transit_bytes = int(terms.memory_bytes * TRANSIT_SHARE)
        self._shelf = Shelf(
            snapshot, reader.fetch_segment, terms.memory_bytes - transit_bytes, transit_bytes, nursery
        )
        key = terms.secret.peer_key()
        self._peers = PeerClient(key, snapshot.digest)
        self._service = PeerService(snapshot, self._shelf, key)
        host = terms.host or own_address(data.client.address)
        self._me = Member(
            terms.job.node,
            terms.job.rank,
            TcpAddress(host, 0),  # the port is known once somebody listens
            terms.memory_bytes,
            os.urandom(INCARNATION_BYTES),
        )
        self._ownership = Ownership(snapshot, self._me, self._peers.is_asked)
        self._membership: Membership | None = None
        own = OwnShelf(self._shelf, trio.lowlevel.current_trio_token())
        self.source = PooledSource(snapshot, self._ownership.owner, own, self._peers, reader)
        """Where this node's bytes come from."""
        self.gathered = trio.Event()
        """Set when the nodes that should be there are, or when they have been waited for long enough."""

    @property
    def shelf(self) -> Shelf:
        """For the other processes of this node."""
        return self._shelf

    async def run(self, is_oneshot: bool = False) -> None:
        """Be a member of the job until cancelled; then leave it.

        Raises what the server refuses the member with, and Unavailable if nobody can listen. When the node has another
        master by now, it goes on alone.
        """
        async with open_listeners(self._me.address) as listeners, trio.open_nursery() as nursery:
            port = listeners[0].socket.getsockname()[1]
            me = Member(
                self._me.node,
                self._me.rank,
                TcpAddress(self._me.address.host, port),
                self._me.memory_bytes,
                self._me.incarnation,
            )
            for listener in listeners:
                nursery.start_soon(self._service.serve, listener)
            nursery.start_soon(self._be_member, me, nursery)
            try:
                await self._gather()
                if is_oneshot:
                    nursery.start_soon(self.warm)
                await self._watch()
            finally:
                self.source.close()
                self._peers.close()

    async def _be_member(self, me: Member, nursery: trio.Nursery) -> None:
        snapshot, terms = self._snapshot, self._terms
        on = Terms(snapshot.dataset, terms.job.name, snapshot.generation, snapshot.digest)
        roll = RemoteRoll(self._data.client, on, terms.secret)
        self._membership = Membership(roll, terms.secret, on, me)
        try:
            await self._membership.run()
        except AlreadyExists as error:
            if len(self._membership.members) < 2:
                raise
            _log.warning("this node leaves the job: %s", error)

    async def _gather(self) -> None:
        """Wait for the nodes, so that each chunk has its owner from the beginning."""
        while self._membership is None:
            await trio.lowlevel.checkpoint()
        with trio.move_on_after(JOB_GATHER_TIMEOUT_S) as scope:
            await self._membership.wait_for(max(self._terms.nodes, 1))
        if scope.cancelled_caught:
            here = len(self._membership.members)
            _log.warning("of %d nodes of the job %d are here; going on", self._terms.nodes, here)
        await self._place()
        self.gathered.set()

    async def _watch(self) -> None:
        """Follow who is there and who is doubted; ask those who are avoided whether they are well again."""
        while True:
            await self._place()
            due = set(self._peers.due())
            for peer in self._ownership.members:
                if peer.node in due:
                    await trio.to_thread.run_sync(self._peers.ping, peer, abandon_on_cancel=True)
            await trio.sleep(PEER_WATCH_S)

    async def _place(self) -> None:
        assert self._membership is not None
        members = self._membership.members
        if await trio.to_thread.run_sync(self._ownership.place, members, self._peers.doubted()):
            self._peers.keep(members)
            own = set(self._ownership.own().tolist())
            self._shelf.drop([chunk for chunk in self._shelf.chunks() if chunk not in own])

    async def warm(self) -> None:
        """Fetch the chunks that this node owns and can keep, a few at a time; what fails is left to who asks for it."""
        limiter = trio.CapacityLimiter(POOL_LOADS_AT_ONCE_MAX)

        async def load(chunk: int, token: object) -> None:
            try:
                await self._shelf.segment(chunk)
            except DieselfsError as error:
                _log.warning("fetched ahead of readers: %s", error)
            finally:
                limiter.release_on_behalf_of(token)

        async with trio.open_nursery() as nursery:
            for chunk in self._ownership.own().tolist():
                token = object()
                await limiter.acquire_on_behalf_of(token)
                if not self._shelf.has_room(chunk):
                    limiter.release_on_behalf_of(token)
                    break
                nursery.start_soon(load, chunk, token)

    # -- what it tells -----------------------------------------------------------------------------------

    def warmth(self) -> float:
        """Which part of the chunks that this node owns is on its shelf, of those that it can keep."""
        own: Sequence[int] = self._ownership.own().tolist()
        lengths = self._snapshot.column("chunk_payload_lengths")[own]
        wanted = min(int(lengths.sum()), self._shelf.kept_max_bytes)
        return min(self._shelf.kept_bytes / wanted, 1.0) if wanted else 1.0

    def stats(self) -> dict[str, Any]:
        """For `.dieselfs/stats`: what this node asked for, and what it answered; bytes and counts since the start."""
        membership = self._membership
        return {
            "name": self._terms.job.name,
            "node": self._me.node,
            "members": [member.node for member in self._ownership.members],
            "doubted": sorted(self._peers.doubted()),
            "own_chunks": len(self._ownership.own()),
            "warmth": round(self.warmth(), 4),
            "shelf": {
                **asdict(self._shelf.figures),
                "kept_bytes": self._shelf.kept_bytes,
                "transit_bytes": self._shelf.transit_bytes,
            },
            "asked": self.source.figures(),
            "peers": self._peers.figures(),
            "answered": asdict(self._service.figures),
            "membership": asdict(membership.statistics()) if membership else None,
        }


def own_address(servers: Servers) -> str:
    """The address of this machine from which the servers are reached: the other nodes can reach it there."""
    known = {ServerList: "servers", EtcdAddress: "members"}.get(type(servers))
    first = getattr(servers, known)[0] if known else servers
    if isinstance(first, TcpAddress):
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((first.host, first.port))  # sends nothing
            host: str = probe.getsockname()[0]
            return host
    return "127.0.0.1"
