"""Readers of a plan who come to what is on its way: they are held back at the last tripwire before it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import trio
import trio.testing

from dieselfs.prefetch.extent_table import Extents
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import PlanSpec
from dieselfs_client.memory.budget import Allotment
from dieselfs_client.memory.chunk_cache import ChunkCache, Key
from dieselfs_client.mount.reading.core import MountCore
from dieselfs_client.mount.reading.read_path import ReadPath
from dieselfs_client.prefetch.prefetcher import Prefetcher
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.still_time import run_in_still_time, time_flies

FILES = 2000
FILES_PER_CHUNK = 20
GROUP_CHUNKS = 25
GROUP_FILES = FILES_PER_CHUNK * GROUP_CHUNKS
PAGE = 4096
CHUNK_BYTES = FILES_PER_CHUNK * PAGE


def content(number: int) -> bytes:
    return b"%04d" % number * (PAGE // 4)


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%04d" % n, 0o100644, 0, content(n)) for n in range(FILES)]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


class AnyPages:
    """A page cache that takes everything."""

    def store(self, extents: Extents, payload: memoryview, starts: npt.NDArray[np.int64]) -> int:
        return int(extents.lengths.sum())

    def uncover(self, nodes: npt.NDArray[np.integer]) -> None:
        self.drop(nodes)

    def drop(self, nodes: npt.NDArray[np.integer]) -> None:
        pass

    def drop_parts(self, extents: Extents) -> None:
        pass

    def prepare(self) -> None:
        pass

    def reclaimed(self, extents: Extents, of_readers: bool = False) -> npt.NDArray[np.bool_]:
        return np.zeros(len(extents), np.bool_)


class GatedResidency(ChunkCache):
    """No chunk comes while `gate` is not set."""

    gate: trio.Event

    async def fetch(self, chunk: Key, limiter: trio.CapacityLimiter | None = None) -> memoryview:
        await self.gate.wait()
        return await super().fetch(chunk, limiter)


@dataclass
class Rig:
    prefetcher: Prefetcher
    reads: ReadPath
    chunk_cache: GatedResidency
    order: list[int]
    """The nodes of a plan whose reader has just begun, and of which two groups are in stock."""

    async def resolve(self) -> None:
        """Until nothing is under way."""
        await trio.testing.wait_all_tasks_blocked()
        while self.prefetcher.is_busy:
            await trio.testing.wait_all_tasks_blocked(0.001)

    async def read_until_held_back(self) -> int:
        """At a tripwire of the first two groups, while the third is on its way: its node."""
        self.chunk_cache.gate = trio.Event()
        for node in self.order[: 2 * GROUP_FILES]:
            if self.prefetcher.tripwires.held(node) is not None:
                if self.reads.at_once(node + 1, 0, PAGE) is None:
                    return node
                await trio.testing.wait_all_tasks_blocked()
        raise AssertionError("the reader was never held back")


def run(packed: PackedDataset, scenario: Callable[[Rig], Awaitable[None]], allotment: Allotment) -> None:
    snapshot = packed.snapshot

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            source = packed.source()
            chunk_cache = GatedResidency(snapshot, source, 8 * CHUNK_BYTES, nursery)
            chunk_cache.gate = trio.Event()
            chunk_cache.gate.set()
            prefetcher = Prefetcher(snapshot, chunk_cache, source, AnyPages(), allotment, nursery)
            share = Plan(snapshot, PlanSpec(1, 0, GROUP_CHUNKS)).share()
            reads = ReadPath(MountCore(snapshot), chunk_cache, prefetcher)
            rig = Rig(prefetcher, reads, chunk_cache, share.nodes().tolist())
            prefetcher.declare(share)
            await rig.resolve()
            await scenario(rig)
            nursery.cancel_scope.cancel()

    run_in_still_time(main)


ALL_IS_KEPT = Allotment(0, 0, 8 * CHUNK_BYTES, 0, FILES * PAGE)
ONE_GROUP_AT_A_TIME = Allotment(0, 0, 8 * CHUNK_BYTES, GROUP_FILES * PAGE, 0)


def test_a_reader_is_held_back_until_what_he_comes_to_is_in_stock(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        node = await rig.read_until_held_back()
        assert rig.order.index(node) > GROUP_FILES and rig.reads.metrics.as_dict()["reads"]["at_once"] > 5, (
            "not at those before"
        )
        received: list[memoryview] = []

        async def read() -> None:
            received.extend(await rig.reads.fetch(node + 1, 0, PAGE))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            assert not received
            rig.chunk_cache.gate.set()
        assert b"".join(received) == content(int(packed.snapshot.name(node)))
        assert not rig.prefetcher.is_starved(node)
        assert rig.reads.metrics.as_dict()["reads"]["waited_s"]["count"] == 1

    run(packed, scenario, ALL_IS_KEPT)


def test_a_reader_is_not_held_back_for_long(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        node = await rig.read_until_held_back()
        with time_flies():
            buffers = await rig.reads.fetch(node + 1, 0, PAGE)
        assert b"".join(buffers) == content(int(packed.snapshot.name(node)))
        assert rig.prefetcher.is_starved(node), "what he comes to is still on its way"

    run(packed, scenario, ALL_IS_KEPT)


def test_nobody_is_held_back_for_what_waits_until_he_reads_on(packed: PackedDataset) -> None:
    """There is no room for it before."""

    async def scenario(rig: Rig) -> None:
        tripwires = 0
        for node in rig.order:
            if rig.prefetcher.tripwires.held(node) is not None:
                assert rig.reads.at_once(node + 1, 0, PAGE) is not None
                await rig.resolve()
                tripwires += 1
        assert tripwires > 10

    run(packed, scenario, ONE_GROUP_AT_A_TIME)
