"""A prefetcher over a page cache that is a dictionary, played with a clock that stands still while anything works."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import trio
import trio.testing

from dieselfs.errors import MountError
from dieselfs.prefetch.extent_table import Extents
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.memory.budget import Allotment
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.memory.warming import missing
from dieselfs_client.prefetch.prefetcher import Prefetcher
from tests.support.dataset import MemoryChunkSource, PackedDataset

FILES = 4000
FILES_PER_CHUNK = 20
CHUNKS = FILES // FILES_PER_CHUNK
GROUP_CHUNKS = 25
GROUP_FILES = FILES_PER_CHUNK * GROUP_CHUNKS
PAGE = 4096
CHUNK_BYTES = FILES_PER_CHUNK * PAGE
IDLE_S = 0.1
"""Nothing happens for so long when all are asleep."""


def content(node_name: bytes) -> bytes:
    return node_name * (PAGE // len(node_name))


@dataclass
class DictPages:
    """Checks that only true bytes are stored, and nothing twice."""

    snapshot: Snapshot
    files: set[int] = field(default_factory=set)
    most: int = 0
    is_gone: bool = False

    def store(self, extents: Extents, payload: memoryview, starts: npt.NDArray[np.int64]) -> int:
        if self.is_gone:
            raise MountError("gone")
        for node, start, length in zip(
            extents.nodes.tolist(), starts.tolist(), extents.lengths.tolist(), strict=True
        ):
            assert payload[start : start + length] == content(self.snapshot.name(node))
            assert node not in self.files
            self.files.add(node)
        self.most = max(self.most, len(self.files))
        return int(extents.lengths.sum())

    def drop(self, nodes: npt.NDArray[np.integer]) -> None:
        self.files -= set(nodes.tolist())

    uncover = drop

    def drop_parts(self, extents: Extents) -> None:
        self.drop(extents.nodes)

    def prepare(self) -> None:
        pass

    def reclaimed(self, extents: Extents, of_readers: bool = False) -> npt.NDArray[np.bool_]:
        return np.array([node not in self.files for node in extents.nodes.tolist()], np.bool_)


@dataclass
class Rig:
    prefetcher: Prefetcher
    chunk_cache: ChunkCache
    pages: DictPages
    source: MemoryChunkSource
    snapshot: Snapshot

    def plan(self, epoch: int = 0, seed: int = 1) -> Plan:
        return Plan(self.snapshot, PlanSpec(seed, epoch, GROUP_CHUNKS))

    async def resolve(self) -> None:
        """Until all that can be done is done."""
        await trio.testing.wait_all_tasks_blocked()
        while self.prefetcher.is_busy:
            await trio.testing.wait_all_tasks_blocked(0.001)

    async def warm(self) -> None:
        """All that can be kept."""
        limiter = trio.CapacityLimiter(1)
        for chunk in missing(range(self.snapshot.chunk_count), self.prefetcher):
            await self.prefetcher.bring(chunk, limiter)

    def is_at_hand(self, node: int) -> bool:
        return node in self.pages.files or self.prefetcher.tripwires.held(node) is not None

    async def read(self, share: Share, first: int, end: int) -> int:
        """Read a share's first-th up to but not end-th files as a program does; returns how many were not at hand."""
        missed = 0
        for node in share.nodes(first, end).tolist():
            missed += not self.is_at_hand(node)
            if node not in self.pages.files:
                self.prefetcher.note_read(node)
                await trio.lowlevel.checkpoint()
        await self.resolve()
        return missed


def run(
    packed: PackedDataset,
    scenario: Callable[[Rig], Awaitable[None]],
    window: int = 0,
    pinned: int = FILES * PAGE,
) -> Rig:
    """Play a scenario; clocks stand still but when all are asleep."""
    rigs: list[Rig] = []
    clock = trio.testing.MockClock()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            source = packed.source()
            chunk_cache = ChunkCache(packed.snapshot, source, 8 * CHUNK_BYTES, nursery)
            pages = DictPages(packed.snapshot)
            allotment = Allotment(0, 0, 8 * CHUNK_BYTES, window, pinned)
            prefetcher = Prefetcher(packed.snapshot, chunk_cache, source, pages, allotment, nursery)
            rigs.append(Rig(prefetcher, chunk_cache, pages, source, packed.snapshot))
            nursery.start_soon(let_sleep, prefetcher, clock)
            with trio.fail_after(3600):
                await scenario(rigs[0])
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
    return rigs[0]


async def let_sleep(prefetcher: Prefetcher, clock: trio.testing.MockClock) -> None:
    """As a clock that jumps by itself, but never while a thread works: it may be slow."""
    while True:
        await trio.testing.wait_all_tasks_blocked(IDLE_S)
        if not prefetcher.is_busy:
            clock.jump(trio.lowlevel.current_statistics().seconds_to_next_deadline)


async def read_to_the_end(rig: Rig, share: Share, files: int = FILES) -> int:
    return sum([await rig.read(share, first, first + 100) for first in range(0, files, 100)])
