import random

import pytest
import trio

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.limits import MIB
from dieselfs.shuffle.plan import Share
from dieselfs.shuffle.spec import ReaderSpec
from dieselfs_client.memory.budget import allot_for
from dieselfs_client.memory.chunk_cache import EXTENT_BYTES
from dieselfs_client.mount.reading.core import MountCore
from dieselfs_client.mount.reading.read_path import ReadPath
from dieselfs_client.prefetch.budget import PUSHED_AGAIN_S
from tests.support.dataset import DATASET_ID, PackedDataset, snapshot_of
from tests.support.prefetch_rig import CHUNK_BYTES, CHUNKS, PAGE, Rig, content, read_to_the_end, run

EVICTABLE_CHUNKS = 8  # of `run`
WINDOW_CHUNKS = 100
PINNED_CHUNKS = CHUNKS - WINDOW_CHUNKS - EVICTABLE_CHUNKS

pytestmark = pytest.mark.usefixtures("threads_take_no_time")


async def read_without_a_plan(rig: Rig) -> None:
    """Read each file once, at random."""
    reads = ReadPath(MountCore(rig.snapshot), rig.chunk_cache, rig.prefetcher)
    nodes = [node for chunk in range(CHUNKS) for node in rig.prefetcher.table.of_chunk(chunk).nodes.tolist()]
    random.Random(1).shuffle(nodes)
    for node in nodes:
        if node not in rig.pages.files and reads.at_once(node + 1, 0, PAGE) is None:
            await reads.fetch(node + 1, 0, PAGE)
            await rig.resolve()


def test_without_a_plan_chunks_that_fit_into_the_window_are_fetched_once(packed: PackedDataset) -> None:
    rig = run(packed, read_without_a_plan, WINDOW_CHUNKS * CHUNK_BYTES, PINNED_CHUNKS * CHUNK_BYTES)
    assert sorted(rig.source.fetched_chunks) == list(range(CHUNKS)) and not rig.source.fetched_extents


def test_a_plan_takes_the_window_back_until_it_has_ended(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        policy, least = rig.chunk_cache.policy, EVICTABLE_CHUNKS * CHUNK_BYTES
        await read_without_a_plan(rig)
        assert policy.evictable_bytes == least + WINDOW_CHUNKS * CHUNK_BYTES
        share = Share(rig.plan(), ReaderSpec())
        rig.prefetcher.declare(share)
        assert policy.evictable_bytes <= policy.evictable_max_bytes == least
        await rig.prefetcher.ahead_of(share)
        assert await read_to_the_end(rig, share) == 0
        while rig.prefetcher.windows:
            await rig.prefetcher.moved.wait()
        await rig.resolve()
        assert policy.evictable_max_bytes == least + WINDOW_CHUNKS * CHUNK_BYTES

    run(packed, scenario, WINDOW_CHUNKS * CHUNK_BYTES, PINNED_CHUNKS * CHUNK_BYTES)


def test_what_runs_hold_of_the_window_is_not_lent(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        policy, budget = rig.chunk_cache.policy, rig.prefetcher.budget
        all_bytes = policy.evictable_max_bytes
        extents = rig.prefetcher.table.of_chunk(3)
        budget.charge(budget.hold(extents))
        assert policy.evictable_max_bytes == all_bytes - CHUNK_BYTES
        budget.release(extents)
        assert policy.evictable_max_bytes == all_bytes

    run(packed, scenario, WINDOW_CHUNKS * CHUNK_BYTES, 0)


@pytest.fixture(scope="module")
def mostly_dead() -> PackedDataset:
    """Chunks of which one file is left: a page."""
    objects = []
    for number in range(CHUNKS):
        builder, name = ChunkBuilder(CHUNK_BYTES), b"%04d" % number
        builder.add_file(name, content(name), 0o644, 0, offset=0)
        payload = content(name) + bytes(CHUNK_BYTES - PAGE)
        chunk_id = (number + 1).to_bytes(CHUNK_ID_BYTES, "big")
        objects.append(b"".join(builder.seal(payload).encode(chunk_id, "packed", DATASET_ID, number + 1)))
    return PackedDataset(objects, snapshot_of(objects))


def test_dead_bytes_of_reclaimed_chunks_take_no_memory_beyond_the_budget(mostly_dead: PackedDataset) -> None:
    """The pages of one file are charged for a chunk that is pinned, and all of its bytes stay if it is lent memory."""
    memory_bytes = 4 * MIB
    allotment = allot_for(mostly_dead.snapshot, memory_bytes)
    assert allotment.pinned == CHUNKS * PAGE and 3 * memory_bytes < CHUNKS * CHUNK_BYTES

    async def scenario(rig: Rig) -> None:
        policy, most_bytes = rig.chunk_cache.policy, 0
        least_bytes = policy.evictable_max_bytes
        for _ in range(3):
            for chunk in range(CHUNKS):
                if rig.chunk_cache.held(chunk) is None and rig.prefetcher.keeps(chunk):
                    rig.prefetcher.note_fetched(chunk, await rig.chunk_cache.fetch(chunk))
                most_bytes = max(most_bytes, policy.evictable_bytes, policy.evictable_max_bytes)
            await rig.resolve()
            rig.pages.files.clear()
            await trio.sleep(PUSHED_AGAIN_S)
        assert least_bytes < most_bytes <= least_bytes + allotment.pinned

    run(mostly_dead, scenario, allotment.window, allotment.pinned)


def test_small_extents_in_memory_count_with_what_they_cost(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        extent = next(iter(MountCore(rig.snapshot).parts(2, 0, PAGE))).extent
        await rig.chunk_cache.fetch(extent)
        assert rig.chunk_cache.policy.evictable_bytes == PAGE + EXTENT_BYTES

    run(packed, scenario)
