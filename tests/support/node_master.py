"""The master of a node, as the processes of the node see it: a real node cache and a real node socket."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import trio

from dieselfs.chunk.segment import Segment
from dieselfs.cluster.member import Member
from dieselfs.process.state_dirs import make_private
from dieselfs.sources.interface import Source
from dieselfs_client.cluster.local_service import LocalService, bound
from dieselfs_client.memory.node_cache import NodeCache
from tests.support.dataset import PackedDataset

START_TIMEOUT_S = 30.0
ROOM_BYTES = 1 << 30


@dataclass
class NodeMaster:
    """A running master; its node cache is filled from `server`."""

    packed: PackedDataset
    server: Source
    node_cache: NodeCache = field(init=False)
    sharing: LocalService = field(init=False)
    _call: Callable[[Callable[[], object]], object] = field(init=False)

    def fetch(self, chunk: int) -> Segment:
        payload = self.server.fetch_chunk(chunk)
        segment = Segment.create(len(payload))
        segment.view[:] = payload
        segment.seal()
        return segment

    def change(self, members: Sequence[Member]) -> None:
        """Set the members."""
        self._call(lambda: self.sharing.change_members(members))

    async def run(
        self, path: Path, members: Sequence[Member], started: Callable[[trio.CancelScope], None]
    ) -> None:
        token = trio.lowlevel.current_trio_token()
        self._call = lambda function: trio.from_thread.run_sync(function, trio_token=token)
        make_private(path.parent)
        with bound(path) as listener:
            async with trio.open_nursery() as nursery:
                self.node_cache = NodeCache(self.packed.snapshot, self.fetch, ROOM_BYTES, ROOM_BYTES, nursery)
                self.sharing = LocalService(self.node_cache, self.packed.snapshot)
                self.sharing.change_members(members)
                started(nursery.cancel_scope)
                await self.sharing.serve(listener)


@contextmanager
def running_master(
    packed: PackedDataset, path: Path, members: Sequence[Member], server: Source | None = None
) -> Iterator[NodeMaster]:
    """A master at the socket `path`, until the end of the block. It is the first of `members`."""
    master = NodeMaster(packed, server or packed.source())
    scopes: SimpleQueue[tuple[trio.CancelScope, trio.lowlevel.TrioToken]] = SimpleQueue()

    def started(scope: trio.CancelScope) -> None:
        scopes.put((scope, trio.lowlevel.current_trio_token()))

    thread = Thread(target=trio.run, args=(master.run, path, members, started))
    thread.start()
    scope, token = scopes.get(timeout=START_TIMEOUT_S)
    try:
        yield master
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join(START_TIMEOUT_S)
        assert not thread.is_alive()
