"""A daemon's part in its job: the master of its node, or attached to it, until the master is gone (DIESEL 4.2).

    attached    bytes come from the masters of all nodes, that of this node included       Attachment
    master      it owns the node's chunks, and shares them with whoever is attached        Pool, ChunkSharing

Who reads through it notices nothing of the change but the speed. A master never becomes anything else.
"""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import trio

from dieselfs.cache.master_watch import MasterWatch
from dieselfs.cache.member import Member
from dieselfs.cache.node_lock import NodeLock, lock_path
from dieselfs.cache.node_socket import NodeClient, job_socket_path, runtime_folder
from dieselfs.cache.warmth import Warmth
from dieselfs.chunk_source import NodeSource
from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.limits import JOB_GATHER_TIMEOUT_S, MASTER_POLL_S, MASTER_SILENCE_S
from dieselfs.meta.snapshot import Snapshot
from dieselfs.peers.attachment import Attachment
from dieselfs.peers.client import PeerFigures
from dieselfs.peers.source import PooledSource, PoolFigures
from dieselfs.reader import ChunkReader
from dieselfs.rpc.client import ServerClient
from dieselfs_client.counted_source import CountedSource
from dieselfs_client.foreground import Foreground
from dieselfs_client.job.changing_source import ChangingSource
from dieselfs_client.job.mastership import Mastership
from dieselfs_client.job.member_list import MemberList
from dieselfs_client.job.membership import Members
from dieselfs_client.job.pool import Pool, PoolTerms
from dieselfs_client.job.warmth import JobState, JobWarmth
from dieselfs_client.legacy import Legacy
from dieselfs_client.sharing import ChunkSharing, bound
from dieselfs_client.warming import Pace

_log = logging.getLogger(__name__)


def path_of(snapshot: Snapshot, terms: PoolTerms) -> Path:
    """The socket of the master of this node."""
    fingerprint = terms.secret.fingerprint()
    return job_socket_path(runtime_folder(), snapshot.dataset, snapshot.digest, terms.job, fingerprint)


def lock_of(snapshot: Snapshot, terms: PoolTerms) -> NodeLock:
    """What the processes of the job on this node lock.

    Raises Unavailable if it cannot be used, AccessDenied if others can reach into its folder.
    """
    return NodeLock(lock_path(path_of(snapshot, terms)))


class JobPart:
    """Used from one trio thread; `source` from any other."""

    def __init__(
        self,
        snapshot: Snapshot,
        client: ServerClient,
        terms: PoolTerms,
        lock: NodeLock,
        nursery: trio.Nursery,
        foreground: Foreground | None = None,
        pace: Pace | None = None,
        legacy: Legacy | None = None,
        silence_s: float = MASTER_SILENCE_S,
    ) -> None:
        """As `Pool`, which is made when this daemon is the master: at once, if nobody else is. `lock`: see `lock_of`;
        it is closed when the part is over. `silence_s`: a master that says nothing for so long is killed.
        """
        self._snapshot = snapshot
        self._client = client
        self._terms = terms
        self._nursery = nursery
        self._foreground = foreground
        self._pace = pace
        self._legacy = legacy
        self._socket = path_of(snapshot, terms)
        self._watch = MasterWatch(self._socket, snapshot.digest, silence_s)
        self._claim = Mastership(lock, terms.job.rank)
        self._reader = ChunkReader(client, snapshot)
        self._alone = CountedSource(self._reader)
        self._source = ChangingSource(self._alone)
        self._attachment: Attachment | None = None
        self._attached_source: PooledSource | None = None
        self._pool: Pool | None = None
        self._members: MemberList | None = None
        self._sharing: ChunkSharing | None = None
        self._warmth = JobWarmth(self._others, self._ask)
        self._is_to_warm = False
        self.gathered = trio.Event()
        """Set when the nodes that should be there are, or when they have been waited for long enough."""
        self.refusal: DieselfsError | None = None
        """Why this node cannot take part; the nursery is cancelled then."""
        if self._claim.try_take():
            self._make_pool()

    @property
    def source(self) -> NodeSource:
        """Where this daemon's bytes come from."""
        return self._source

    def start(self, is_oneshot: bool = False, is_going_on: bool = False) -> None:
        """Take part in the job until the nursery is cancelled; then the part is given up, and the members told so.

        `is_going_on`: in the place of a daemon that has waited for the nodes, so that they are not waited for again.
        """
        self._is_to_warm = is_oneshot
        if is_going_on:
            self.gathered.set()
        self._nursery.start_soon(self._run)
        self._nursery.start_soon(self._warmth.run)

    async def _run(self) -> None:
        with self._claim:
            if self._pool is None:
                await self._attend()
            await self._lead()

    # -- attached ----------------------------------------------------------------------------------------

    async def _attend(self) -> None:
        """Be attached until this daemon is the master."""
        if self._legacy is not None:
            self._legacy.renounce()
        node = NodeClient(self._socket, self._snapshot.digest)
        key, name = self._terms.secret.peer_key(), self._terms.job.node
        attachment = Attachment(self._snapshot, self._reader, node, name, key)
        _log.info("job %s: this node has a master; attached to it", self._terms.job.name)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._attach, attachment)
                await self._claim.take()
                nursery.cancel_scope.cancel()
            _log.info("job %s: the master of this node is gone; this daemon takes over", self._terms.job.name)
            self._make_pool()
        finally:
            self._watch.close()
            attachment.close()  # after another source has taken its place

    async def _attach(self, attachment: Attachment) -> None:
        """Use the master as soon as it answers, which it does once the nodes are there; then see that it goes on to."""
        with trio.move_on_after(JOB_GATHER_TIMEOUT_S):
            while not await trio.to_thread.run_sync(self._watch.look):
                await trio.sleep(MASTER_POLL_S)
        # The first use asks for the members, and so belongs into a thread.
        self._attached_source = await trio.to_thread.run_sync(lambda: attachment.source)
        self._attachment = attachment
        self._source.change(lambda: attachment.source)
        self.gathered.set()
        while True:
            await trio.sleep(self._watch.interval_s)
            await trio.to_thread.run_sync(self._watch.look)

    # -- master ------------------------------------------------------------------------------------------

    def _make_pool(self) -> None:
        pool = Pool(
            self._snapshot,
            self._client,
            self._terms,
            self._nursery,
            self._foreground,
            self._pace,
            self._tell,
            self._legacy,
        )
        self._pool = pool
        self._source.change(lambda: pool.source)

    async def _lead(self) -> None:
        assert self._pool is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._share, self._pool)
            try:
                await self._pool.run(self._is_to_warm, self.gathered.is_set())
            except DieselfsError as error:
                self.refusal = error
                self._nursery.cancel_scope.cancel()

    async def _share(self, pool: Pool) -> None:
        """Let the other processes of the node attach, once they can be told who is there."""
        await pool.gathered.wait()
        try:
            self._members = MemberList(pool.members)
            self._sharing = ChunkSharing(pool.shelf, self._snapshot, self._members)
            with bound(self._socket) as listener:
                self.gathered.set()
                await self._sharing.serve(listener)
        except DieselfsError as error:
            _log.warning("the other processes of this node do without its chunks: %s", error)
            self.gathered.set()

    def _tell(self, members: Members) -> None:
        """These are the members from now on, the master of this node first."""
        if self._members is not None:
            try:
                self._members.change(members)
            except DieselfsError as error:
                _log.warning("the other processes of this node keep to an older list of nodes: %s", error)

    # -- warming -------------------------------------------------------------------------------------------

    def warm(self) -> None:
        """Have all nodes of the job fetch what they own and can keep."""
        self._is_to_warm = True
        if self._pool is not None:
            self._pool.warm()
        self._warmth.warm()

    async def warmth(self) -> JobState:
        """How warm the nodes of the job are. Waits for those who answer, no longer than WARMTH_TIMEOUT_S."""
        job = self._terms.job
        nodes = {job.node: None, **await self._warmth.of_others()}
        if self._pool is not None:
            nodes[job.node] = self._pool.warmth()
        dataset_bytes = int(self._snapshot.column("chunk_payload_lengths").sum(dtype=np.int64))
        return JobState(job.name, job.node, nodes, dataset_bytes)

    def _others(self) -> list[Member]:
        """Who is to be asked: the other masters; and that of this node, if it is another process."""
        if self._pool is not None:
            return [member for member in self._pool.members if member.node != self._terms.job.node]
        return list(self._attachment.members) if self._attachment else []

    def _ask(self, member: Member, is_to_warm: bool) -> Warmth:
        """Called from threads."""
        asking = self._pool or self._attachment
        if asking is None:
            raise Unavailable("not in the job yet")
        return asking.peers.warmth(member, is_to_warm)

    # -- what it tells -----------------------------------------------------------------------------------

    def _asked(self) -> dict[str, int]:
        """What was asked for while attached; and before that, of a server alone."""
        alone = self._alone.figures()
        count, length_bytes = (
            alone["chunks"] + alone["ranges"],
            alone["chunk_bytes"] + alone["range_bytes"],
        )
        asked = asdict(
            PoolFigures(asked=count, asked_bytes=length_bytes, from_servers=count, server_bytes=length_bytes)
        )
        if self._attached_source is not None:
            for name, more in self._attached_source.figures().items():
                asked[name] += more
        return asked

    def stats(self) -> dict[str, Any]:
        """For `.dieselfs/stats`: as `Pool.stats`, with what was asked for while attached, or just that."""
        asked = self._asked()
        if self._pool is not None:
            stats = self._pool.stats()
            sharing = self._sharing
            return {
                **stats,
                "is_master": True,
                "attached": sharing.readers if sharing else 0,
                "asked": {name: asked[name] + more for name, more in stats["asked"].items()},
            }
        peers = self._attachment.peers if self._attachment else None
        return {
            "name": self._terms.job.name,
            "node": self._terms.job.node,
            "is_master": False,
            "master_silent_s": round(self._watch.silent_s, 1),
            "members": sorted(member.node for member in self._attachment.members) if self._attachment else [],
            "doubted": sorted(peers.doubted()) if peers else [],
            "asked": asked,
            "peers": peers.figures() if peers else asdict(PeerFigures()),
        }
