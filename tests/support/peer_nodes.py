"""Nodes of a job in one process: each a trio run in its own thread, with a shelf, and a service on a real socket."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Thread

import numpy as np
import trio

from dieselfs.cache.member import Member
from dieselfs.cache.secret import JobSecret
from dieselfs.cache.segment import Segment
from dieselfs.cache.warmth import Warmth
from dieselfs.chunk_source import ChunkSource
from dieselfs.rpc.address import TcpAddress
from dieselfs.rpc.auth import Key
from dieselfs.rpc.serving.reception import open_listeners
from dieselfs_client.job.own_shelf import OwnShelf
from dieselfs_client.job.peer_service import PeerService
from dieselfs_client.shelf import Shelf
from tests.support.dataset import PackedDataset

START_TIMEOUT_S = 30.0
ROOM_BYTES = 1 << 30
SECRET = JobSecret(bytes(range(32)))


@dataclass
class PeerNode:
    """A node that runs. Its shelf is filled from `server`, at once or when `gate` is set."""

    packed: PackedDataset
    server: ChunkSource
    gate: Event = field(default_factory=Event)
    times_warmed: int = 0
    own_patience_s: float = START_TIMEOUT_S
    member: Member = field(init=False)
    shelf: Shelf = field(init=False)
    own: OwnShelf = field(init=False)
    service: PeerService = field(init=False)

    def warmth(self, is_to_warm: bool) -> Warmth:
        self.times_warmed += is_to_warm
        return self.shelf.warmth(np.arange(self.packed.snapshot.chunk_count))

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
        key: Key,
        room_bytes: int,
        transit_bytes: int,
        answer_s: float,
        started: Callable[[trio.CancelScope], None],
    ) -> None:
        async with trio.open_nursery() as nursery:
            self.shelf = Shelf(self.packed.snapshot, self.fetch, room_bytes, transit_bytes, nursery)
            self.own = OwnShelf(self.shelf, trio.lowlevel.current_trio_token(), self.own_patience_s)
            self.service = PeerService(self.packed.snapshot, self.shelf, key, answer_s, self.warmth)
            async with open_listeners(TcpAddress("127.0.0.1", 0)) as (listener,):
                port = listener.socket.getsockname()[1]
                self.member = Member(name, 0, TcpAddress("127.0.0.1", port), room_bytes, bytes(16))
                nursery.start_soon(self.service.serve, listener)
                started(nursery.cancel_scope)
                await trio.sleep_forever()


@contextmanager
def running_node(
    packed: PackedDataset,
    name: str = "node",
    key: Key | None = None,
    room_bytes: int = ROOM_BYTES,
    transit_bytes: int = ROOM_BYTES,
    answer_s: float = 10.0,
    server: ChunkSource | None = None,
    own_patience_s: float = START_TIMEOUT_S,
) -> Iterator[PeerNode]:
    """A node, until the end of the block. It answers when it has everything, unless `answer_s` says otherwise."""
    node = PeerNode(packed, server or packed.source(), own_patience_s=own_patience_s)
    node.gate.set()
    scopes: SimpleQueue[tuple[trio.CancelScope, trio.lowlevel.TrioToken]] = SimpleQueue()

    def started(scope: trio.CancelScope) -> None:
        scopes.put((scope, trio.lowlevel.current_trio_token()))

    thread = Thread(
        target=trio.run,
        args=(node.run, name, key or SECRET.peer_key(), room_bytes, transit_bytes, answer_s, started),
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
