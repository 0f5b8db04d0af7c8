"""The node master's role in the pooled memory of its job (DIESEL 4.2): it owns a part of the chunks.

membership --members--> ownership --owner of a chunk--> PooledSource --> node cache | peers | server
"""

import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import trio

from dieselfs.cluster.chunk_requests import PeerRequest
from dieselfs.cluster.credential import JobCredential
from dieselfs.cluster.job import Job, expected_nodes, find_job, required_job
from dieselfs.cluster.member import INCARNATION_BYTES, Member
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.cluster.placement import ChunkOwners
from dieselfs.cluster.pooled_source import PooledSource
from dieselfs.cluster.secret import JobSecret, find_secret
from dieselfs.cluster.warmth import Warmth
from dieselfs.errors import DieselfsError
from dieselfs.limits import (
    CONNECT_TIMEOUT_S,
    FETCHES_AT_ONCE_MAX,
    JOB_FILES_LEAVE_S,
    JOB_GATHER_TIMEOUT_S,
    PEER_PROBE_INTERVAL_S,
)
from dieselfs.net.address import EtcdAddress, ServerList, Servers, TcpAddress
from dieselfs.net.sockets import addresses
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.members import JobId, job_digest
from dieselfs.rpc.serving.server import open_listeners
from dieselfs.settings.table import OFF, JobSettings
from dieselfs.shuffle.spec import DEFAULT_ORDER_VERSION
from dieselfs.sources.server import ServerSource
from dieselfs.telemetry.socket import PublishedMetrics
from dieselfs_client.cluster.job_files import JobFiles
from dieselfs_client.cluster.job_scores import JobScores
from dieselfs_client.cluster.membership import Members, Membership, RemoteRegistry
from dieselfs_client.cluster.peer_service import PeerService
from dieselfs_client.cluster.progress_report import ProgressReport
from dieselfs_client.memory.budget import node_cache_evictable_bytes, offered_bytes
from dieselfs_client.memory.fetch_workers import FetchWorkers
from dieselfs_client.memory.node_cache import NodeCache, usable_bytes
from dieselfs_client.memory.trio_cache import Foreground
from dieselfs_client.memory.warming import Pace, Warming, rotated
from dieselfs_client.supervision.supervisor_client import HandoverChunks

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """The configuration of a node in its job.

    - `job`: its name, and the place of this process in it; `secret`: shared by the members
    - `nodes`: the number of nodes to wait for before the first fetch; 0: unknown
    - `host`: the address at which the other nodes reach this one; None: detect it
    - `memory_bytes`: for the chunks that it owns
    """

    job: Job
    secret: JobSecret
    nodes: int
    host: str | None
    memory_bytes: int = 0


def pool_config(
    options: JobSettings, client: ServerClient, dataset: str, environment: Mapping[str, str]
) -> PoolConfig:
    """The configuration from options and environment, without memory. Raises InvalidInput, AccessDenied."""
    job = required_job(find_job(options, environment, socket.gethostname()))
    secret = find_secret(options.job_secret, client.settings.key_file, dataset, job.name)
    return PoolConfig(job, secret, expected_nodes(options, environment), options.job_host)


@dataclass(frozen=True, slots=True)
class PoolHost:
    """What a daemon provides for its role in a job.

    - `nursery` runs fetches; its cancellation abandons them
    - `foreground`: the readers that the daemon serves; `pace`: the rate of warming
    - `handover_chunks`: for the chunks of the node cache
    - `published_metrics`: what the other nodes may know of this one
    - `fetch_workers`: fetch for the node cache
    """

    nursery: trio.Nursery
    foreground: Foreground = field(default_factory=Foreground)
    pace: Pace | None = None
    handover_chunks: HandoverChunks | None = None
    published_metrics: PublishedMetrics | None = None
    fetch_workers: FetchWorkers | None = None


class Pool:
    """Used from one trio thread; `source` from any other."""

    def __init__(
        self,
        reader: ServerSource,
        client: ServerClient,
        config: PoolConfig,
        host: PoolHost,
        on_change: Callable[[Members], None] = lambda members: None,
        scores: JobScores | None = None,
        files: JobFiles | None = None,
    ) -> None:
        """`reader`: the source of chunks that no node has. `on_change` gets each new list of `members`, within `run`.

        The pool counts in the registry of `reader`.
        """
        self.metrics = metrics = reader.metrics
        snapshot = reader.snapshot
        memory_bytes = usable_bytes(config.memory_bytes, snapshot)
        self._config = config
        self._client = client
        self._snapshot = snapshot
        lengths = snapshot.column("chunk_payload_lengths")
        dataset_bytes = int(lengths.sum(dtype=np.int64))
        credential = JobCredential(config.secret, client.settings.tls != OFF)
        self.peers = PeerClient(credential, snapshot.digest, metrics=metrics)
        """Sends requests to the other nodes."""
        self._me = Member(
            config.job.node,
            config.job.rank,
            TcpAddress(config.host or own_address(client.address), 0),  # `run` sets the port
            offered_bytes(memory_bytes, reader.disk_bytes, dataset_bytes, config.nodes),
            os.urandom(INCARNATION_BYTES),
            credential.fingerprint,
        )
        self._ownership = ChunkOwners(snapshot, self._me, self.peers.detector)
        evictable_bytes = node_cache_evictable_bytes(memory_bytes, max(config.nodes, 1))
        workers = host.fetch_workers
        self.node_cache = NodeCache(
            snapshot,
            reader.fetch_segment if workers is None else partial(workers.fetch_segment, reader),
            memory_bytes - evictable_bytes,
            evictable_bytes,
            host.nursery,
            foreground=host.foreground,
            keeper=host.handover_chunks,
            metrics=metrics,
            owns=lambda chunk: self._ownership.owner(chunk) is None,
            is_on_disk=reader.keeps,
        )
        """The chunks of this node, also for its other processes."""
        self._warming = Warming(
            self.node_cache, self._order, snapshot.chunk_payload_length, host.foreground, host.pace
        )
        self._service = PeerService(
            snapshot,
            self.node_cache,
            credential,
            warmth=self._warmth_for_peer,
            metrics=metrics,
            published_metrics=host.published_metrics,
            scores=scores,
            files=files,
        )
        self._files = files
        self._membership: Membership | None = None
        self._on_change = on_change
        self._refusal: DieselfsError | None = None
        own = self._own_payload() if snapshot.header.is_encrypted else None
        self.source = PooledSource(snapshot, self._ownership.owner, own, self.peers, reader, metrics=metrics)
        """The source of this node's bytes, except for those in its node cache that are not encrypted."""
        metrics.gauge("job.own_chunks", "Owned chunks.", lambda: len(self._ownership.own_chunks()))
        metrics.gauge("job.warmth", "Pinned share of own chunks.", lambda: round(self.warmth().share, 4))
        self.gathered = trio.Event()
        """Set when the expected nodes are members, or after JOB_GATHER_TIMEOUT_S."""

    def _own_payload(self) -> Callable[[PeerRequest], memoryview | None]:
        """Reads chunks of this node from its node cache, in any thread; for readers that decrypt them."""
        token, limiter = trio.lowlevel.current_trio_token(), trio.CapacityLimiter(FETCHES_AT_ONCE_MAX)

        def own_payload(wanted: PeerRequest) -> memoryview | None:
            ranges = (
                np.array([(extent.offset, extent.length) for extent in wanted.extents])
                if wanted.extents
                else None
            )
            read = partial(self.node_cache.read, wanted.chunk, ranges, limiter)
            try:
                return trio.from_thread.run(read, trio_token=token)
            except (DieselfsError, trio.RunFinishedError, trio.Cancelled):
                return None  # a server has it, or explains

        return own_payload

    @property
    def members(self) -> Members:
        """The current members, this node first."""
        return tuple(sorted(self._members(), key=lambda member: member.node != self._me.node))

    async def run(self, is_oneshot: bool = False, is_resumed: bool = False) -> None:
        """Be a member of the job until cancelled; then leave it. `is_resumed`: an earlier daemon of this mount was in
        the job. So this one does not wait for the nodes again, and serves its readers even if the server refuses it.

        Raises the server's refusal, and Unavailable if the port cannot be opened.
        """
        async with open_listeners(self._me.address) as listeners, trio.open_nursery() as nursery:
            port = listeners[0].socket.getsockname()[1]
            me = replace(self._me, address=TcpAddress(self._me.address.host, port))
            for listener in listeners:
                nursery.start_soon(self._service.serve, listener)
            nursery.start_soon(self._be_member, me, nursery, is_resumed)
            try:
                await self._gather(1 if is_resumed else max(self._config.nodes, 1))
                nursery.start_soon(self._warming.run)
                if is_oneshot:
                    self.warm()
                await self._watch_peers()
            finally:
                if self._files is not None:
                    with trio.move_on_after(JOB_FILES_LEAVE_S, shield=True):
                        leave = partial(self._files.hand_over, is_leaving=True)
                        await trio.to_thread.run_sync(leave, abandon_on_cancel=True)
                self.source.close()
                self.peers.close()
        if self._refusal is not None:
            raise self._refusal

    async def _be_member(self, me: Member, nursery: trio.Nursery, is_resumed: bool) -> None:
        snapshot, secret = self._snapshot, self._config.secret
        digest = job_digest(snapshot.digest, DEFAULT_ORDER_VERSION)
        job_id = JobId(snapshot.dataset, self._config.job.name, snapshot.generation, digest)
        progress = ProgressReport(self.metrics, trio.current_time)
        registry = RemoteRegistry(self._client, job_id, secret, progress.due)
        self._membership = Membership(registry, secret, job_id, me, self._change, metrics=self.metrics)
        try:
            await self._membership.run(is_resumed)
        except DieselfsError as error:
            self._refusal = error  # `run` raises it, without the exception group of a nursery
            nursery.cancel_scope.cancel()

    async def _gather(self, nodes: int) -> None:
        """Wait for the nodes, so that each chunk has its final owner from the first fetch."""
        while self._membership is None:
            await trio.lowlevel.checkpoint()
        with trio.move_on_after(JOB_GATHER_TIMEOUT_S) as scope:
            await self._membership.wait_for(nodes)
        if scope.cancelled_caught:
            here = len(self._membership.members)
            name = self._config.job.name
            _log.warning("job %s: %d of %d nodes have joined; not waiting for the others", name, here, nodes)
        self.gathered.set()

    @property
    def has_joined(self) -> bool:
        """Whether a server has answered with the members."""
        return self._membership is not None and self._membership.has_joined

    def _members(self) -> Members:
        return self._membership.members if self._membership else ()

    def _change(self, members: Members) -> None:
        """Set the members, and drop the chunks that now belong to others."""
        self._ownership.change(members)
        self.peers.keep(members)
        pinned = self.node_cache.chunks()
        self.node_cache.drop(set(pinned).difference(self._ownership.own_among(pinned).tolist()))
        self._warming.look_again()
        self._on_change(self.members)

    async def _watch_peers(self) -> None:
        """Probe suspected nodes. When one is healthy again, drop the chunks that were fetched in its place."""
        suspected: frozenset[str] = frozenset()
        while True:
            self.peers.probe()
            before, suspected = suspected, self.peers.detector.suspected()
            if before - suspected:
                owner = self._ownership.owner
                self.node_cache.drop(
                    [chunk for chunk in self.node_cache.chunks() if owner(chunk) is not None]
                )
                self._warming.look_again()
            await trio.sleep(PEER_PROBE_INTERVAL_S)

    def _order(self) -> list[int]:
        """The chunks that this node owns, in order of their warming; each node starts at another place."""
        nodes = sorted(member.node for member in self._members())
        place = nodes.index(self._me.node) if self._me.node in nodes else 0
        return rotated(self._ownership.own_chunks(), place, len(nodes))

    def warm(self) -> None:
        """Start to fetch the chunks that this node owns and can pin, in the background."""
        self._warming.start()

    def _warmth_for_peer(self, is_to_warm: bool) -> Warmth:
        if is_to_warm:
            self.warm()
        return self.warmth()

    def warmth(self) -> Warmth:
        """The warmth of this node."""
        return self.node_cache.warmth(self._ownership.own_chunks())


def own_address(servers: Servers) -> str:
    """The address of the interface to the servers; the other nodes use the same network."""
    server: object = servers
    if isinstance(servers, ServerList):
        server = servers.servers[0]
    elif isinstance(servers, EtcdAddress):
        server = servers.members[0]
    if isinstance(server, TcpAddress):
        with suppress(OSError):
            family, _, _, _, where = addresses(server.host, server.port, CONNECT_TIMEOUT_S)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)  # sends nothing
                host: str = probe.getsockname()[0]
                return host
    return "127.0.0.1"
