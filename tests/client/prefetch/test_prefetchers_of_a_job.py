"""The nodes of a job read one plan together, each its share, through real services: what leaves the server, how often.

Each node has its stock, over a page cache that is a set, and its shelf, in a thread of its own. All read in turn.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import trio
import trio.testing

from dieselfs.cache.policy import PREFETCH_WHOLE_SHARE
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.cluster.placement import ChunkOwners
from dieselfs.cluster.pooled_source import PooledSource
from dieselfs.prefetch.extent_table import PAGE_BYTES, Extents
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.memory.budget import NODE_CACHE_EVICTABLE_SHARE, Allotment
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.prefetch.prefetcher import FINISHED_S, Prefetcher
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries
from tests.support.peer_nodes import CREDENTIAL, PeerNode, running_node

NODES = 3
CHUNKS = 480
FILES_EACH = 16
FILES = CHUNKS * FILES_EACH
FILE_BYTES = 500
CHUNK_BYTES = FILES_EACH * FILE_BYTES
GROUP_CHUNKS = 24
"""Enough for several tripwires in each node's share."""
GROUPS = CHUNKS // GROUP_CHUNKS
KEPT_CHUNKS = 4
TRANSIT_CHUNKS = 36
"""Of each node: more than it owns of any two groups. All together hold a quarter of the dataset."""
assert 4 * NODES * (KEPT_CHUNKS + TRANSIT_CHUNKS) == CHUNKS
SHARE_BYTES = GROUP_CHUNKS * FILES_EACH * PAGE_BYTES // NODES
WINDOW_BYTES = 6 * SHARE_BYTES
"""Six shares of a group: always room for all of the next one."""
MISSED_MAX = FILES // 500
"""A reader is heard of at tripwires only; where they lie far apart it is a little ahead of what was fetched."""


def content(name: bytes) -> bytes:
    return name * (FILE_BYTES // len(name))


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    names = [b"%05d" % n for n in range(FILES)]
    entries = [TreeEntry(name, 0o100644, 0, content(name)) for name in names]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


@pytest.fixture(autouse=True)
def threads_take_no_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stocks' loop waits for what they do in threads, so that every run is the same. Shelves have their own."""
    in_thread = trio.to_thread.run_sync
    threads = ThreadPoolExecutor(1)

    async def run_sync(
        function: Callable[..., Any],
        *arguments: object,
        limiter: trio.CapacityLimiter | None = None,
        **more: Any,
    ) -> Any:
        if not isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock):
            return await in_thread(function, *arguments, limiter=limiter, **more)
        async with limiter or trio.CapacityLimiter(1):
            await trio.lowlevel.checkpoint()
            return threads.submit(function, *arguments).result()

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    yield
    threads.shutdown()


@dataclass
class SetPages:
    """Checks that only true bytes are stored."""

    snapshot: Snapshot
    files: set[int] = field(default_factory=set)

    def store(self, extents: Extents, payload: memoryview, starts: npt.NDArray[np.int64]) -> int:
        for node, start in zip(extents.nodes.tolist(), starts.tolist(), strict=True):
            assert payload[start : start + FILE_BYTES] == content(self.snapshot.name(node))
            self.files.add(node)
        return int(extents.lengths.sum())

    def uncover(self, nodes: npt.NDArray[np.integer]) -> None:
        self.drop(nodes)

    def drop(self, nodes: npt.NDArray[np.integer]) -> None:
        self.files -= set(nodes.tolist())

    def drop_parts(self, extents: Extents) -> None:
        self.drop(extents.nodes)

    def prepare(self) -> None:
        pass

    def reclaimed(self, extents: Extents, of_readers: bool = False) -> npt.NDArray[np.bool_]:
        return np.array([node not in self.files for node in extents.nodes.tolist()], np.bool_)


@dataclass
class Reader:
    """A node that reads its share, and what it is made of."""

    node: PeerNode
    peers: PeerClient
    source: PooledSource
    pages: SetPages
    prefetcher: Prefetcher
    share: Share = field(init=False)

    def begin(self, plan: Plan, rank: int) -> None:
        self.share = plan.share(rank=rank, world=NODES)
        self.prefetcher.declare(self.share)

    async def read(self, first: int, end: int) -> int:
        """Its first-th up to but not end-th files, as a program does; returns how many were not at hand."""
        missed = 0
        for node in self.share.nodes(first, end).tolist():
            if node not in self.pages.files:
                self.prefetcher.note_read(node)
                missed += self.prefetcher.tripwires.held(node) is None
                await trio.lowlevel.checkpoint()
        await resolve([self])
        return missed


async def resolve(readers: list[Reader]) -> None:
    await trio.testing.wait_all_tasks_blocked()
    while any(reader.prefetcher.is_busy for reader in readers):
        await trio.testing.wait_all_tasks_blocked(0.001)


@contextmanager
def nodes_of_a_job(
    packed: PackedDataset, server: MemoryChunkSource, pinned_chunks: int, transit_chunks: int
) -> Iterator[list[PeerNode]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                running_node(
                    packed,
                    f"node-{number}",
                    room_bytes=pinned_chunks * CHUNK_BYTES,
                    evictable_bytes=transit_chunks * CHUNK_BYTES,
                    server=server,
                )
            )
            for number in range(NODES)
        ]


def reader_on(
    node: PeerNode,
    all_nodes: list[PeerNode],
    server: MemoryChunkSource,
    groups_together: int,
    nursery: trio.Nursery,
) -> Reader:
    snapshot = node.packed.snapshot
    peers = PeerClient(CREDENTIAL, snapshot.digest, connect_timeout_s=20, silence_s=30, call_timeout_s=60)
    ownership = ChunkOwners(snapshot, node.member, peers.detector)
    ownership.change([each.member for each in all_nodes])
    source = PooledSource(snapshot, ownership.owner, node.own, peers, server)
    pages = SetPages(snapshot)
    # A little more than these groups: the shares of a node differ by a few files.
    span = int((groups_together + 0.2) * SHARE_BYTES)
    node_cache = int(4.1 * span / NODE_CACHE_EVICTABLE_SHARE) if groups_together > 1 else 0
    allotment = Allotment(0, 0, 8 * CHUNK_BYTES, max(4 * span, WINDOW_BYTES), 0, node_cache)
    chunk_cache = ChunkCache(snapshot, source, allotment.evictable, nursery)
    return Reader(
        node, peers, source, pages, Prefetcher(snapshot, chunk_cache, source, pages, allotment, nursery)
    )


def play(
    packed: PackedDataset,
    scenario: Callable[[list[Reader], MemoryChunkSource], Awaitable[None]],
    transit_chunks: int = TRANSIT_CHUNKS,
    pinned_chunks: int = KEPT_CHUNKS,
    groups_together: int = 1,
) -> list[Reader]:
    """Play a scenario; what comes from the server directly, and not through a shelf, is counted there, too.

    `groups_together`: so many have the memory to be fetched together.
    """
    readers: list[Reader] = []
    server = packed.source()

    async def main(nodes: list[PeerNode]) -> None:
        async with trio.open_nursery() as nursery:
            readers.extend(reader_on(node, nodes, server, groups_together, nursery) for node in nodes)
            try:
                await scenario(readers, server)
            finally:
                nursery.cancel_scope.cancel()

    with nodes_of_a_job(packed, server, pinned_chunks, transit_chunks) as nodes:
        try:
            trio.run(main, nodes, clock=trio.testing.MockClock())
        finally:
            for reader in readers:
                reader.source.close()
                reader.peers.close()
    return readers


async def read_epoch(readers: list[Reader], epoch: int, seed: int, step: int) -> int:
    """All read their shares, `step` files at a time, one node after the other."""
    plan = Plan(readers[0].node.packed.snapshot, PlanSpec(seed, epoch, GROUP_CHUNKS))
    missed = 0
    for rank, reader in enumerate(readers):
        reader.begin(plan, rank)
    await resolve(readers)
    for first in range(0, FILES // NODES, step):
        for reader in readers:
            missed += await reader.read(first, min(first + step, FILES // NODES))
    await resolve(readers)
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    clock.jump(FINISHED_S + 1)
    await resolve(readers)
    return missed


@pytest.mark.parametrize(("seed", "step"), [(1, 8), (2, 32)])
def test_each_chunk_leaves_the_server_once_in_every_epoch(
    packed: PackedDataset, seed: int, step: int
) -> None:
    async def scenario(readers: list[Reader], server: MemoryChunkSource) -> None:
        held = 0
        for epoch in range(2):
            server.fetched_chunks.clear()
            assert await read_epoch(readers, epoch, seed, step) < MISSED_MAX
            assert len(set(server.fetched_chunks)) == len(server.fetched_chunks), "none of them twice"
            assert (
                CHUNKS - held <= len(server.fetched_chunks) <= CHUNKS - (NODES * KEPT_CHUNKS if epoch else 0)
            )
            held = NODES * (KEPT_CHUNKS + TRANSIT_CHUNKS)
        assert not server.fetched_extents
        for reader in readers:
            figures = reader.source.metrics.as_dict()["requested"]
            assert (
                figures["from_node"] + figures["from_peers"] == figures["extents"] > 0.99 * 2 * FILES / NODES
            )

    play(packed, scenario)


@pytest.mark.parametrize("groups_together", [1, 4])
def test_what_a_node_needs_of_a_span_is_one_request_to_each_peer(
    packed: PackedDataset, groups_together: int
) -> None:
    before: list[int] = []

    async def scenario(readers: list[Reader], server: MemoryChunkSource) -> None:
        await read_epoch(readers, 0, seed=5, step=16)  # from now on all is on the shelves
        before.extend(reader.peers.metrics.numbers()["peers.requests"] for reader in readers)
        assert await read_epoch(readers, 1, seed=5, step=16) < MISSED_MAX

    readers = play(packed, scenario, pinned_chunks=CHUNKS, groups_together=groups_together)
    for rank, reader in enumerate(readers):
        least, whole = requests_needed(
            readers, rank, Plan(packed.snapshot, PlanSpec(5, 1, GROUP_CHUNKS)), groups_together
        )
        spans = 1 + -(-(GROUPS - 1) // groups_together)
        assert GROUPS / groups_together < least <= spans * (NODES - 1)
        assert reader.peers.metrics.numbers()["peers.requests"] - before[rank] == least + whole


def requests_needed(readers: list[Reader], rank: int, plan: Plan, groups_together: int) -> tuple[int, int]:
    """One to each owner for the first group, and then for so many together; and one for each chunk of which so much is
    wanted that it is fetched whole.
    """
    snapshot, reader, share = plan.snapshot, readers[rank], plan.share(rank=rank, world=NODES)
    owners = ChunkOwners(snapshot, reader.node.member, reader.peers.detector)
    owners.change([each.node.member for each in readers])
    chunks = [snapshot.extents(int(node))[0].chunk for node in share.nodes()]
    whole = {chunk for chunk, files in Counter(chunks).items() if files >= PREFETCH_WHOLE_SHARE * FILES_EACH}
    spans = [-(-plan.group_of(position) // groups_together) for position in share.positions().tolist()]
    asked = {
        (span, owner.node)
        for span, chunk in zip(spans, chunks, strict=True)
        if chunk not in whole and (owner := owners.owner(chunk)) is not None
    }
    return len(asked), sum(owners.owner(chunk) is not None for chunk in whole)


def test_groups_that_are_fetched_together_leave_the_server_once_too(packed: PackedDataset) -> None:
    async def scenario(readers: list[Reader], server: MemoryChunkSource) -> None:
        assert await read_epoch(readers, 0, seed=1, step=16) < MISSED_MAX
        assert len(set(server.fetched_chunks)) == len(server.fetched_chunks) == CHUNKS
        assert not server.fetched_extents

    play(packed, scenario, transit_chunks=2 * TRANSIT_CHUNKS, groups_together=3)


def test_nodes_that_are_out_of_step_cost_loads_and_no_byte_is_wrong(packed: PackedDataset) -> None:
    async def scenario(readers: list[Reader], server: MemoryChunkSource) -> None:
        plan = Plan(packed.snapshot, PlanSpec(1, 0, GROUP_CHUNKS))
        for rank, reader in enumerate(readers):
            reader.begin(plan, rank)
            await resolve(readers)
            for first in range(0, FILES // NODES, 20):
                await reader.read(first, first + 20)
        loads = sum(
            reader.node.node_cache.metrics.numbers()["node_cache.fetched_chunks"] for reader in readers
        )
        pinned = NODES * KEPT_CHUNKS
        assert loads == len(server.fetched_chunks)
        assert CHUNKS < loads <= NODES * (CHUNKS - pinned) + pinned

    play(packed, scenario)
