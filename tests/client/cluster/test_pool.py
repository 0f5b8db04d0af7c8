"""Several nodes of a job in one process, over a real server and real connections between them."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count

import pytest
import trio

from dieselfs.cluster import failure_detector as suspicion
from dieselfs.cluster.job import Job
from dieselfs.cluster.secret import JobSecret
from dieselfs.dataset import Dataset
from dieselfs.errors import AlreadyExists
from dieselfs.limits import MIB
from dieselfs.sources.interface import Slices
from dieselfs.sources.server import ServerSource, is_intact
from dieselfs_client.cluster import pool as pool_module
from dieselfs_client.cluster.pool import Pool, PoolConfig, PoolHost
from dieselfs_client.memory import node_cache
from tests.support.server import RunningServer, running_server

CHUNKS = 12
FILES_PER_CHUNK = 8
FILE_BYTES = 512 * 1024
ROOM_FOR_ALL = 160 * MIB
"""A node keeps every chunk with so much, should chance give it all of them."""
SECRET = JobSecret(bytes(32))
job_numbers = count()
"""Each scenario is a job of its own: nodes of another may be on its roll for a while."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with Dataset(server.settings(), "pooled", must_exist=False) as data:
            for number in range(CHUNKS * FILES_PER_CHUNK):
                data.put(f"{number:03}", content(number))
        yield server


def content(number: int) -> bytes:
    return number.to_bytes(4, "little") * (FILE_BYTES // 4)


@dataclass
class Node:
    data: Dataset
    pool: Pool
    leaves: trio.CancelScope

    async def read_all(self) -> None:
        """Every chunk, checked."""
        for chunk in range(self.data.snapshot.chunk_count):
            payload = await self.pool.node_cache.read(chunk)
            if payload is None:
                payload = await trio.to_thread.run_sync(self.pool.source.fetch_chunk, chunk)
            assert is_intact(self.data.snapshot, chunk, Slices.of_payload(payload))


async def start(
    server: RunningServer, nursery: trio.Nursery, job: str, number: int, nodes: int, memory: int
) -> Node:
    data = Dataset(server.settings(), "pooled")
    terms = PoolConfig(Job(job, number, nodes, f"node-{number}"), SECRET, nodes, "127.0.0.1", memory)
    leaves = trio.CancelScope()

    async def run(pool: Pool) -> None:
        with leaves:
            await pool.run()

    pool = Pool(ServerSource(data.client, data.snapshot), data.client, terms, PoolHost(nursery))
    nursery.start_soon(run, pool)
    return Node(data, pool, leaves)


def play(
    server: RunningServer,
    size: int,
    scenario: Callable[[list[Node]], Awaitable[None]],
    memory: int = 64 * MIB,
    job: str | None = None,
) -> None:
    async def main() -> None:
        nodes: list[Node] = []
        name = job or f"job-{next(job_numbers)}"
        try:
            async with trio.open_nursery() as nursery:
                for number in range(size):
                    nodes.append(await start(server, nursery, name, number, size, memory))
                with trio.fail_after(120):
                    for node in nodes:
                        await node.pool.gathered.wait()
                    await scenario(nodes)
                nursery.cancel_scope.cancel()
        finally:
            for node in nodes:
                node.data.close()

    trio.run(main)


def test_a_node_with_another_default_order_is_refused(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(nodes: list[Node]) -> None:
        monkeypatch.setattr(pool_module, "DEFAULT_ORDER_VERSION", 1)  # as an older dieselfs
        terms = PoolConfig(Job("orders", 1, 2, "node-1"), SECRET, 1, "127.0.0.1", 64 * MIB)
        with Dataset(server.settings(), "pooled") as data:
            async with trio.open_nursery() as nursery:
                pool = Pool(ServerSource(data.client, data.snapshot), data.client, terms, PoolHost(nursery))
                with (
                    trio.fail_after(20),
                    pytest.raises(AlreadyExists, match=r"^node node-1 has another version of dieselfs"),
                ):
                    await pool.run()
                nursery.cancel_scope.cancel()
        assert len(nodes[0].pool.members) == 1

    play(server, 1, scenario, job="orders")


def loads(nodes: list[Node]) -> int:
    """Chunks that left the server for the job."""
    stats = [node.pool.metrics.as_dict() for node in nodes]
    return sum(each["node_cache"]["fetched_chunks"] + each["requested"]["from_servers"] for each in stats)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_chunk_leaves_the_server_once_for_the_whole_job(server: RunningServer, count: int) -> None:
    async def scenario(nodes: list[Node]) -> None:
        chunks = nodes[0].data.snapshot.chunk_count
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(node.read_all)
            assert loads(nodes) == chunks
        for node in nodes:
            stats = node.pool.metrics.as_dict()
            assert len(node.pool.members) == count
            asked = stats["requested"]
            assert (
                asked["extents"]
                == asked["from_node"] + asked["from_peers"] + asked["from_servers"]
                == 2 * chunks
            )
        assert sum(node.pool.metrics.as_dict()["job"]["own_chunks"] for node in nodes) == chunks

    play(server, count, scenario)


def test_what_a_node_owns_can_be_fetched_before_anybody_asks(server: RunningServer) -> None:
    async def scenario(nodes: list[Node]) -> None:
        for node in nodes:
            node.pool.warm()
            while node.pool.warmth().share < 1:
                await trio.sleep(0.01)
        assert loads(nodes) == nodes[0].data.snapshot.chunk_count
        await nodes[0].read_all()
        assert loads(nodes) == nodes[0].data.snapshot.chunk_count

    play(server, 2, scenario, memory=ROOM_FOR_ALL)


def test_when_a_node_goes_the_others_read_on(server: RunningServer) -> None:
    async def scenario(nodes: list[Node]) -> None:
        await nodes[0].read_all()
        nodes[2].leaves.cancel()
        for _ in range(2):
            await nodes[0].read_all()
            await nodes[1].read_all()
        stats = nodes[0].pool.metrics.as_dict()
        assert stats["requested"]["failed"] == 0
        while len(nodes[0].pool.members) > 2:
            await trio.sleep(0.05)
        await nodes[0].read_all()

    play(server, 3, scenario)


def test_what_was_fetched_in_the_place_of_a_node_leaves_when_that_is_back(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspicion, "PEER_RETURN_S", 0.1)

    async def scenario(nodes: list[Node]) -> None:
        pool = nodes[0].pool
        for chunk in range(nodes[0].data.snapshot.chunk_count):
            await pool.node_cache.fetch(chunk)
        own = pool.metrics.as_dict()["job"]["own_chunks"]
        assert len(pool.node_cache.chunks()) > own
        pool.peers.was_slow(next(member for member in pool.members if member.node == "node-1"))
        while len(pool.node_cache.chunks()) > own:
            await trio.sleep(0.01)
        await nodes[0].read_all()

    play(server, 2, scenario, memory=ROOM_FOR_ALL)


def test_a_process_that_may_hold_few_chunks_reads_all_of_them(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_cache, "allow_descriptors", lambda: 5)

    async def scenario(nodes: list[Node]) -> None:
        await nodes[0].read_all()
        policy = nodes[0].pool.node_cache.policy
        assert 0 < policy.pinned_bytes + policy.evictable_bytes <= 5 * FILES_PER_CHUNK * FILE_BYTES

    play(server, 1, scenario)


def test_more_than_fits_passes_through(server: RunningServer) -> None:
    async def scenario(nodes: list[Node]) -> None:
        for node in nodes:
            await node.read_all()
            node_cache = node.pool.node_cache
            assert node.pool.warmth().share == 1.0, "as much as can be kept"
            assert node_cache.policy.pinned_bytes + node_cache.policy.evictable_bytes <= 16 * MIB

    play(server, 2, scenario, memory=16 * MIB)
