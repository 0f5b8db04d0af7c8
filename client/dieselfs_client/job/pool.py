"""A node's part in the pooled memory of its job (DIESEL 4.2): its share of the chunks, and the others' for the asking.

membership --who is there--> ownership --whose is it--> PooledSource --> own shelf | peers | server
"""

import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import trio

from dieselfs.cache.job import AUTO, Job, find_job
from dieselfs.cache.member import INCARNATION_BYTES, Member, Terms
from dieselfs.cache.secret import JobSecret, find_secret
from dieselfs.cache.warmth import Warmth
from dieselfs.errors import DieselfsError, InvalidInput
from dieselfs.limits import JOB_GATHER_TIMEOUT_S, PEER_PROBE_INTERVAL_S
from dieselfs.meta.snapshot import Snapshot
from dieselfs.peers.client import PeerClient
from dieselfs.peers.ownership import Ownership
from dieselfs.peers.source import PooledSource
from dieselfs.reader import ChunkReader
from dieselfs.rpc.address import EtcdAddress, ServerList, Servers, TcpAddress
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.serving.reception import open_listeners
from dieselfs_client.foreground import Foreground
from dieselfs_client.job.membership import Members, Membership, RemoteRoll
from dieselfs_client.job.own_shelf import OwnShelf
from dieselfs_client.job.peer_probing import keep_probing
from dieselfs_client.job.peer_service import PeerService
from dieselfs_client.job_options import JobOptions
from dieselfs_client.legacy import Legacy
from dieselfs_client.memory import shelf_transit_bytes
from dieselfs_client.segment_room import usable_bytes
from dieselfs_client.shelf import Shelf
from dieselfs_client.warming import Pace, Warming, rotated

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


def terms_of(
    options: JobOptions,
    client: ServerClient,
    dataset: str,
    memory_bytes: int,
    environment: Mapping[str, str],
) -> PoolTerms:
    """What the options and the environment say of the job. Raises InvalidInput, AccessDenied."""
    name = None if options.job == AUTO else options.job
    job = find_job(environment, socket.gethostname(), name, options.job_rank, None, options.job_node)
    if job is None:
        raise InvalidInput(
            "job=auto: neither Slurm, torchrun nor Open MPI speaks of a job here; give it a name: job=NAME"
        )
    secret = find_secret(options.job_secret, client.settings.key_file, dataset, job.name)
    return PoolTerms(job, secret, options.nodes(environment), options.job_host, memory_bytes)


class Pool:
    """Used from one trio thread; `source` from any other."""

    def __init__(
        self,
        snapshot: Snapshot,
        client: ServerClient,
        terms: PoolTerms,
        nursery: trio.Nursery,
        foreground: Foreground | None = None,
        pace: Pace | None = None,
        on_change: Callable[[Members], None] = lambda members: None,
        legacy: Legacy | None = None,
    ) -> None:
        """`nursery` runs what is fetched; when it is cancelled, all of that is abandoned. `foreground`: those for whom
        this node fetches; `pace`: how fast it is warmed. `on_change` gets every new list of `members`, in `run`.
        `legacy`: of the shelf.
        """
        foreground = foreground or Foreground()
        reader = ChunkReader(client, snapshot)
        terms = replace(terms, memory_bytes=usable_bytes(terms.memory_bytes, snapshot))
        self._terms = terms
        self._client = client
        self._snapshot = snapshot
        transit_bytes = shelf_transit_bytes(terms.memory_bytes, max(terms.nodes, 1))
        self._shelf = Shelf(
            snapshot,
            reader.fetch_segment,
            terms.memory_bytes - transit_bytes,
            transit_bytes,
            nursery,
            foreground=foreground,
            legacy=legacy,
        )
        self._warming = Warming(self._shelf, self._order, snapshot.chunk_payload_length, foreground, pace)
        key = terms.secret.peer_key()
        self._peers = PeerClient(key, snapshot.digest)
        self._service = PeerService(snapshot, self._shelf, key, warmth=self._told_warmth)
        host = terms.host or own_address(client.address)
        self._me = Member(
            terms.job.node,
            terms.job.rank,
            TcpAddress(host, 0),  # the port is known once somebody listens
            terms.memory_bytes,
            os.urandom(INCARNATION_BYTES),
        )
        self._ownership = Ownership(snapshot, self._me, self._peers)
        self._membership: Membership | None = None
        self._on_change = on_change
        self._refusal: DieselfsError | None = None
        own = OwnShelf(self._shelf, trio.lowlevel.current_trio_token())
        self.source = PooledSource(snapshot, self._ownership.owner, own, self._peers, reader)
        """Where this node's bytes come from."""
        self.gathered = trio.Event()
        """Set when the nodes that should be there are, or when they have been waited for long enough."""

    @property
    def shelf(self) -> Shelf:
        """For the other processes of this node."""
        return self._shelf

    @property
    def peers(self) -> PeerClient:
        """What asks the other nodes."""
        return self._peers

    @property
    def members(self) -> Members:
        """Who is there, this node first."""
        return tuple(sorted(self._members(), key=lambda member: member.node != self._me.node))

    async def run(self, is_oneshot: bool = False, is_going_on: bool = False) -> None:
        """Be a member of the job until cancelled; then leave it. `is_going_on`: the nodes were waited for by another
        daemon before, so that only the list of those who are there is; and what reads through this one already goes on
        doing so if the server refuses the member.

        Raises what the server refuses the member with, and Unavailable if nobody can listen.
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
            nursery.start_soon(self._be_member, me, nursery, is_going_on)
            try:
                await self._gather(1 if is_going_on else max(self._terms.nodes, 1))
                nursery.start_soon(self._warming.run)
                nursery.start_soon(self._keep_own)
                if is_oneshot:
                    self.warm()
                await keep_probing(self._peers, self._members)
            finally:
                self.source.close()
                self._peers.close()
        if self._refusal is not None:
            raise self._refusal

    async def _be_member(self, me: Member, nursery: trio.Nursery, is_going_on: bool) -> None:
        snapshot, terms = self._snapshot, self._terms
        on = Terms(snapshot.dataset, terms.job.name, snapshot.generation, snapshot.digest)
        roll = RemoteRoll(self._client, on, terms.secret)
        self._membership = Membership(roll, terms.secret, on, me, self._change)
        try:
            await self._membership.run(is_going_on)
        except DieselfsError as error:
            self._refusal = error  # raised by itself, and not in the group that a nursery makes of it
            nursery.cancel_scope.cancel()

    async def _gather(self, nodes: int) -> None:
        """Wait for the nodes, so that each chunk has its owner from the beginning."""
        while self._membership is None:
            await trio.lowlevel.checkpoint()
        with trio.move_on_after(JOB_GATHER_TIMEOUT_S) as scope:
            await self._membership.wait_for(nodes)
        if scope.cancelled_caught:
            here = len(self._membership.members)
            _log.warning("of %d nodes of the job %d are here; going on", nodes, here)
        self.gathered.set()

    def _members(self) -> Members:
        return self._membership.members if self._membership else ()

    def _change(self, members: Members) -> None:
        """These are there from now on; what now belongs to others leaves the shelf."""
        self._ownership.change(members)
        self._peers.keep(members)
        kept = self._shelf.chunks()
        self._shelf.drop(set(kept).difference(self._ownership.own_among(kept).tolist()))
        self._warming.look_again()
        self._on_change(self.members)

    async def _keep_own(self) -> None:
        """When a node that was doubted is well again, what was fetched in its place makes room for what is owned."""
        doubted: frozenset[str] = frozenset()
        while True:
            before, doubted = doubted, self._peers.doubted()
            if before - doubted:
                owner = self._ownership.owner
                self._shelf.drop([chunk for chunk in self._shelf.chunks() if owner(chunk) is not None])
                self._warming.look_again()
            await trio.sleep(PEER_PROBE_INTERVAL_S)

    def _order(self) -> list[int]:
        """The chunks that this node owns, each node beginning at another place of its share."""
        nodes = sorted(member.node for member in self._members())
        place = nodes.index(self._me.node) if self._me.node in nodes else 0
        return rotated(self._ownership.own_chunks(), place, len(nodes))

    def warm(self) -> None:
        """Fetch what this node owns and can keep, in the background, unless that is under way."""
        self._warming.start()

    def _told_warmth(self, is_to_warm: bool) -> Warmth:
        """What another node is told, which may want this one to be warmed."""
        if is_to_warm:
            self.warm()
        return self.warmth()

    # -- what it tells -----------------------------------------------------------------------------------

    def warmth(self) -> Warmth:
        """How much of what this node owns is on its shelf, of what it can keep."""
        return self._shelf.warmth(self._ownership.own_chunks())

    def stats(self) -> dict[str, Any]:
        """For `.dieselfs/stats`: what this node asked for, and what it answered; bytes and counts since the start."""
        membership = self._membership
        return {
            "name": self._terms.job.name,
            "node": self._me.node,
            "members": [member.node for member in self._members()],
            "doubted": sorted(self._peers.doubted()),
            "own_chunks": len(self._ownership.own_chunks()),
            "warmth": round(self.warmth().share, 4),
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
