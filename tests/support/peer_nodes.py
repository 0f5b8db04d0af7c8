"""Nodes of a job in one process: each a trio run in a thread, with a node cache, and a service on a real socket."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Thread

import numpy as np
import trio

from dieselfs.chunk.segment import Segment
from dieselfs.cluster.chunk_requests import PeerRequest
from dieselfs.cluster.credential import JobCredential
from dieselfs.cluster.member import Member
from dieselfs.cluster.secret import JobSecret
from dieselfs.cluster.warmth import Warmth
from dieselfs.errors import DieselfsError
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.serving.server import open_listeners
from dieselfs.sources.interface import Source
from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.series import History
from dieselfs.telemetry.socket import PublishedMetrics
from dieselfs_client.cluster.job_files import JobFiles
from dieselfs_client.cluster.peer_service import PeerService
from dieselfs_client.memory.node_cache import NodeCache
from tests.support.dataset import PackedDataset

START_TIMEOUT_S = 30.0
ROOM_BYTES = 1 << 30
SECRET = JobSecret(bytes(range(32)))
CREDENTIAL = JobCredential(SECRET)
"""Of a process of the job that asks."""


@dataclass
class PeerNode:
    """A running node. Its node cache is filled from `server`, at once or when `gate` is set."""

    packed: PackedDataset
    server: Source
    gate: Event = field(default_factory=Event)
    times_warmed: int = 0
    own_patience_s: float = START_TIMEOUT_S
    member: Member = field(init=False)
    node_cache: NodeCache = field(init=False)
    own: "OwnChunks" = field(init=False)
    service: PeerService = field(init=False)

    def warmth(self, is_to_warm: bool) -> Warmth:
        self.times_warmed += is_to_warm
        return self.node_cache.warmth(np.arange(self.packed.snapshot.chunk_count))

    def fetch(self, chunk: int) -> Segment:
        self.gate.wait(START_TIMEOUT_S)
        payload = self.server.fetch_chunk(chunk)
        segment = Segment.create(len(payload))
        segment.view[:] = payload
        segment.seal()
        return segment

    async def run(
        self,
        name: str,
        credential: JobCredential,
        room_bytes: int,
        evictable_bytes: int,
        answer_s: float,
        started: Callable[[trio.CancelScope], None],
        files: JobFiles | None,
    ) -> None:
        async with trio.open_nursery() as nursery:
            self.node_cache = NodeCache(
                self.packed.snapshot, self.fetch, room_bytes, evictable_bytes, nursery
            )
            self.own = OwnChunks(self.node_cache, trio.lowlevel.current_trio_token(), self.own_patience_s)
            metrics = Registry()
            published_metrics = PublishedMetrics(metrics, {"node": "a peer"}, History(metrics))
            self.service = PeerService(
                self.packed.snapshot,
                self.node_cache,
                credential,
                answer_s,
                self.warmth,
                metrics,
                published_metrics,
                files=files,
            )
            async with open_listeners(TcpAddress("127.0.0.1", 0)) as (listener,):
                port = listener.socket.getsockname()[1]
                address = TcpAddress("127.0.0.1", port)
                self.member = Member(name, 0, address, room_bytes, bytes(16), credential.fingerprint)
                nursery.start_soon(self.service.serve, listener)
                started(nursery.cancel_scope)
                await trio.sleep_forever()


class OwnChunks:
    """The chunks of a node cache in another thread, as an attached process gets them."""

    def __init__(self, node_cache: NodeCache, token: trio.lowlevel.TrioToken, patience_s: float) -> None:
        self._node_cache = node_cache
        self._token = token
        self._patience_s = patience_s

    def __call__(self, wanted: PeerRequest) -> memoryview | None:
        try:
            return trio.from_thread.run(self._find, wanted, trio_token=self._token)
        except DieselfsError:
            return None

    async def _find(self, wanted: PeerRequest) -> memoryview | None:
        node_cache, chunk = self._node_cache, wanted.chunk
        is_worth = wanted.is_shared_plan or node_cache.is_worth_fetching(chunk, wanted.length_bytes)
        if wanted.extents and not is_worth:
            return None
        with trio.move_on_after(self._patience_s):
            payload = (await node_cache.fetch(chunk)).view
            if wanted.extents:
                ranges = [(extent.offset, extent.length) for extent in wanted.extents]
                node_cache.policy.handed_out(chunk, np.array(ranges, np.int64))
            return payload
        return None


@contextmanager
def running_node(
    packed: PackedDataset,
    name: str = "node",
    credential: JobCredential | None = None,
    room_bytes: int = ROOM_BYTES,
    evictable_bytes: int = ROOM_BYTES,
    answer_s: float = 10.0,
    server: Source | None = None,
    own_patience_s: float = START_TIMEOUT_S,
    files: JobFiles | None = None,
) -> Iterator[PeerNode]:
    """A node with a certificate of its own, until the end of the block. It answers when it has all requested chunks, or
    after `answer_s`.
    """
    node = PeerNode(packed, server or packed.source(), own_patience_s=own_patience_s)
    node.gate.set()
    scopes: SimpleQueue[tuple[trio.CancelScope, trio.lowlevel.TrioToken]] = SimpleQueue()

    def started(scope: trio.CancelScope) -> None:
        scopes.put((scope, trio.lowlevel.current_trio_token()))

    thread = Thread(
        target=trio.run,
        args=(
            node.run,
            name,
            credential or JobCredential(SECRET),
            room_bytes,
            evictable_bytes,
            answer_s,
            started,
            files,
        ),
    )
    thread.start()
    scope, token = scopes.get(timeout=START_TIMEOUT_S)
    try:
        yield node
    finally:
        node.gate.set()
        token.run_sync_soon(scope.cancel)
        thread.join(START_TIMEOUT_S)
        assert not thread.is_alive()
