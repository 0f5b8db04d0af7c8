"""A daemon's role in its job: node master, or attached to the node master until that exits (DIESEL 4.2).

    attached    bytes come from the masters of all nodes, including this one           Attachment
    master      owns the node's chunks, and shares them with attached processes        Pool, LocalService

A change of the role does not interrupt readers. A master stays master until it exits.
"""

import logging
from contextlib import closing
from typing import Any

import numpy as np
import trio

from dieselfs.arrays import Numbers
from dieselfs.cluster.attachment import Attachment
from dieselfs.cluster.credential import JobCredential
from dieselfs.cluster.daemon import MasterWatch
from dieselfs.cluster.holdings import FAR, distances_in_job
from dieselfs.cluster.member import Member
from dieselfs.cluster.node_client import NodeClient
from dieselfs.cluster.node_lock import NodeLock
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.cluster.warmth import Warmth
from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.limits import (
    JOB_GATHER_TIMEOUT_S,
    MASTER_PATIENCE_S,
    MASTER_POLL_S,
    MASTER_SILENCE_S,
    PEER_REQUESTS_AT_ONCE_MAX,
)
from dieselfs.rpc.client import ServerClient
from dieselfs.samples.sample_store import name_for
from dieselfs.settings.table import OFF
from dieselfs.sources.interface import CountedSource, FetchMetrics, RequestMetrics, Source
from dieselfs.sources.server import ServerSource
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.series import Window
from dieselfs_client.cluster.job_files import JobFiles
from dieselfs_client.cluster.job_nodes import JobNodes
from dieselfs_client.cluster.job_scores import JobScores
from dieselfs_client.cluster.job_warmth import JobWarmth, answers_of, job_fields
from dieselfs_client.cluster.local_service import LocalService, bound
from dieselfs_client.cluster.membership import Members
from dieselfs_client.cluster.node_paths import path_of
from dieselfs_client.cluster.pool import Pool, PoolConfig, PoolHost
from dieselfs_client.memory.node_cache import NodeCache


class Election:
    """The candidacy of a daemon. `close` withdraws it, and closes `lock`."""

    def __init__(self, lock: NodeLock, rank: int) -> None:
        self._lock = lock
        self._rank = rank
        self.is_master = False
        lock.be_candidate(rank)

    def close(self) -> None:
        self._lock.clear()
        self.is_master = False

    def try_take(self, has_waited: bool = False) -> bool:
        """Become the master, if there is none and no live smaller rank. `has_waited`: ignore smaller ranks."""
        if not self.is_master and (has_waited or not self._lock.has_candidate_below(self._rank)):
            self.is_master = self._lock.try_lead()
        return self.is_master

    async def take(self) -> None:
        """Wait until this process is the master.

        Waits MASTER_PATIENCE_S for a live smaller rank that does not become master because it is stopped or starting.
        If cancelled, this process is not the master.
        """
        free_since_s: float | None = None
        while True:
            now_s = trio.current_time()
            is_free = not self._lock.has_master()
            free_since_s = (now_s if free_since_s is None else free_since_s) if is_free else None
            if self.try_take(free_since_s is not None and now_s - free_since_s >= MASTER_PATIENCE_S):
                return
            await trio.sleep(MASTER_POLL_S)


_log = logging.getLogger(__name__)


class _ServerMetrics(FetchMetrics):
    """Counts fetches before the role is known as requests to servers in the job."""

    def __init__(self, metrics: Registry) -> None:
        self._requested = RequestMetrics(metrics)

    def count_chunk(self, length_bytes: int) -> None:
        self.count_ranges(1, length_bytes)

    def count_ranges(self, ranges: int, length_bytes: int) -> None:
        self._requested.count(self._requested.from_servers, ranges, length_bytes)


class JobRole:
    """Used from one trio thread; `source` from any other."""

    def __init__(
        self,
        reader: ServerSource,
        client: ServerClient,
        config: PoolConfig,
        lock: NodeLock,
        host: PoolHost,
        silence_s: float = MASTER_SILENCE_S,
    ) -> None:
        """As `Pool`, which is made when this daemon becomes the master: at once, if there is no other one. `lock`: see
        `lock_of`; it is closed at the end. `silence_s`: a master that does not answer for this time is killed.
        """
        self._snapshot = snapshot = reader.snapshot
        self._client = client
        self._config = config
        self.node = config.job.node
        """The name of this node."""
        self._host = host
        self._socket = path_of(snapshot, config)
        self._watch = MasterWatch(self._socket, snapshot.digest, silence_s)
        self._election = Election(lock, config.job.rank)
        self._reader = reader
        self.metrics = reader.metrics
        self._alone = CountedSource(lambda: self._reader, _ServerMetrics(self.metrics))
        self._attachment: Attachment | None = None
        self._pool: Pool | None = None
        self._sharing: LocalService | None = None
        self._warmth = JobWarmth(self._others, self._ask)
        self._report_threads = trio.CapacityLimiter(PEER_REQUESTS_AT_ONCE_MAX)
        self._is_to_warm = False
        self.gathered = trio.Event()
        """Set when the expected nodes are members, or after JOB_GATHER_TIMEOUT_S."""
        self.refusal: DieselfsError | None = None
        """Why this node cannot join; the nursery is cancelled then."""
        nodes = JobNodes(self.node, self._others, lambda: self._pool is not None, self._peers)
        self.scores = JobScores(snapshot, nodes, self.metrics)
        """Those of all mounts of the job."""
        folder = name_for(f"{self._socket} {config.secret.fingerprint().hex()}")
        self.files = JobFiles(snapshot, nodes, self.scores.files, folder)
        """The files that its mounts keep."""
        self._declare_metrics(self.metrics)
        if self._election.try_take():
            self._make_pool()

    def _declare_metrics(self, metrics: Registry) -> None:
        metrics.declare(catalogue.JOB_NAME, lambda: self._config.job.name)
        metrics.info("job.node", "Name of this node.", lambda: self.node)
        metrics.info("job.is_master", "Whether this is the node master.", lambda: self._pool is not None)
        metrics.declare(catalogue.JOB_MEMBERS, lambda: sorted(each.node for each in self._present))
        metrics.declare(
            catalogue.JOB_SUSPECTED,
            lambda: sorted(self._part.peers.detector.suspected()) if self._part else [],
        )
        metrics.declare(catalogue.JOB_SLOWEST, lambda: self._part.peers.slowest() if self._part else None)
        metrics.gauge("job.master_silent_s", "Silence of the master.", lambda: round(self._watch.silent_s, 1))
        metrics.gauge(
            "job.attached", "Attached processes.", lambda: self._sharing.readers if self._sharing else 0
        )

    @property
    def _part(self) -> Pool | Attachment | None:
        return self._pool or self._attachment

    @property
    def _present(self) -> Members:
        """The known masters of the job, that of this node first."""
        return self._part.members if self._part else ()

    @property
    def source(self) -> Source:
        """The current source of this daemon's bytes; read it for each request. From any thread."""
        part = self._part
        return part.source if part else self._alone

    @property
    def node_cache(self) -> NodeCache | None:
        """The chunks of this node, if this daemon is the node master."""
        return None if self._pool is None else self._pool.node_cache

    def start(self, is_oneshot: bool = False, is_resumed: bool = False) -> None:
        """Take part in the job until the nursery is cancelled; then leave it.

        `is_resumed`: an earlier daemon of this mount has waited for the nodes; do not wait again.
        """
        self._is_to_warm = is_oneshot
        if is_resumed:
            self.gathered.set()
        self._host.nursery.start_soon(self._run)
        self._host.nursery.start_soon(self._warmth.run)
        self._host.nursery.start_soon(self.scores.run)
        self._host.nursery.start_soon(self.files.run)

    async def _run(self) -> None:
        with closing(self._election), closing(self.files):
            if self._pool is None:
                await self._run_attached()
            assert self._pool is not None
            await self._run_master(self._pool)

    # -- attached ----------------------------------------------------------------------------------------

    async def _run_attached(self) -> None:
        """Be attached until this daemon becomes the master."""
        if self._host.handover_chunks is not None:
            self._host.handover_chunks.renounce()
        node = NodeClient(self._socket, self._snapshot.digest)
        credential = JobCredential(self._config.secret, self._client.settings.tls != OFF)
        attachment = Attachment(
            self._snapshot, self._reader, node, self.node, credential, metrics=self.metrics
        )
        _log.info("job %s: attached to the node master", self._config.job.name)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._attach, attachment)
                await self._election.take()
                nursery.cancel_scope.cancel()
            _log.info("job %s: the node master is gone; this daemon takes over", self._config.job.name)
            self._make_pool()
        finally:
            self._watch.close()
            attachment.close()  # after another source has taken its place

    async def _attach(self, attachment: Attachment) -> None:
        """Use the master as soon as it answers, which is after its nodes have joined; then watch it."""
        with trio.move_on_after(JOB_GATHER_TIMEOUT_S):
            while not await trio.to_thread.run_sync(self._watch.look):
                await trio.sleep(MASTER_POLL_S)
        # The first use reads the membership list and blocks.
        await trio.to_thread.run_sync(lambda: attachment.source)
        self._attachment = attachment
        self.gathered.set()
        while True:
            await trio.sleep(self._watch.interval_s)
            await trio.to_thread.run_sync(self._watch.look)

    # -- master ------------------------------------------------------------------------------------------

    def _make_pool(self) -> None:
        self._pool = Pool(
            self._reader, self._client, self._config, self._host, self._share_members, self.scores, self.files
        )

    async def _run_master(self, pool: Pool) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._share, pool)
            try:
                await pool.run(self._is_to_warm, self.gathered.is_set())
            except DieselfsError as error:
                self.refusal = error
                self._host.nursery.cancel_scope.cancel()

    async def _share(self, pool: Pool) -> None:
        """Let other processes of the node attach, once the membership list is known."""
        await pool.gathered.wait()
        try:
            sharing = LocalService(pool.node_cache, self._snapshot)
            sharing.change_members(pool.members)
            self._sharing = sharing
            with bound(self._socket) as listener:
                self.gathered.set()
                await sharing.serve(listener)
        except DieselfsError as error:
            _log.warning(
                "cannot share chunks with other processes of this node; they read from servers: %s", error
            )
            self.gathered.set()

    def _share_members(self, members: Members) -> None:
        self.files.look_again()
        if self._sharing is not None:
            try:
                self._sharing.change_members(members)
            except DieselfsError as error:
                _log.warning(
                    "cannot share the new membership list; attached processes use the last one: %s", error
                )

    # -- warming -------------------------------------------------------------------------------------------

    def warm(self) -> None:
        """Make all nodes of the job fetch the chunks that they own and can pin."""
        self._is_to_warm = True
        if self._pool is not None:
            self._pool.warm()
        self._warmth.warm()

    async def warmth(self) -> dict[str, Any]:
        """The warmth of the nodes of the job, for JSON. Waits no longer than WARMTH_TIMEOUT_S for them."""
        job = self._config.job
        nodes = {job.node: None, **await self._warmth.of_others()}
        if self._pool is not None:
            nodes[job.node] = self._pool.warmth()
        dataset_bytes = int(self._snapshot.column("chunk_payload_lengths").sum(dtype=np.int64))
        return job_fields(job.name, job.node, nodes, dataset_bytes)

    def distances(self) -> Numbers:
        """As `distances_in_job`, from any thread; all are FAR before this node is in the job."""
        part, count = self._part, self._snapshot.chunk_count
        if part is None:
            return np.full(count, FAR)
        return distances_in_job(count, self.node, part.members, part.peers.held)

    # -- reports -------------------------------------------------------------------------------------------

    async def reports(self, window: Window | None) -> dict[str, bytes]:
        """The metrics of the other nodes as JSON, or their histories in a window; of those that answer within
        WARMTH_TIMEOUT_S.
        """
        return await answers_of(self._others(), self._ask_report, window, self._report_threads)

    def _ask_report(self, member: Member, window: Window | None) -> bytes:
        return self._peers().report(member, window)

    def _others(self) -> Members:
        """The masters in other processes: of the other nodes, and of this node unless it is this daemon."""
        return self._present[1:] if self._pool else self._present

    def _ask(self, member: Member, is_to_warm: bool) -> Warmth:
        return self._peers().warmth(member, is_to_warm)

    def _peers(self) -> PeerClient:
        """Called from threads. Raises Unavailable before this node is in the job."""
        part, pool = self._part, self._pool
        # A new master that has no list yet would take itself for the whole job.
        if part is None or (pool is not None and not pool.has_joined):
            raise Unavailable(f"job {self._config.job.name}: this node has not joined yet")
        return part.peers
