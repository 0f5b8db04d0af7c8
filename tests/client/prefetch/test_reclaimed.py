"""Which extents are looked at, and that what the kernel has reclaimed is fetched again."""

from collections import Counter

import numpy as np
import pytest
import trio

from dieselfs.prefetch.extent_table import ExtentTable
from dieselfs_client.prefetch.budget import (
    CHUNKS_AT_ONCE,
    LOOK_AGAIN_S,
    PUSHED_AGAIN_S,
    SAMPLES_PER_CHUNK,
    sampled,
    spread,
)
from dieselfs_client.prefetch.lending import LENT_S
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.prefetch_rig import (
    CHUNK_BYTES,
    CHUNKS,
    FILES,
    FILES_PER_CHUNK,
    GROUP_FILES,
    PAGE,
    Rig,
    read_to_the_end,
    run,
)

pytestmark = pytest.mark.usefixtures("threads_take_no_time")


@pytest.fixture(scope="module")
def chunks_of_pages() -> PackedDataset:
    entries = [TreeEntry(b"%03d" % number, 0o100644, 0, bytes(PAGE)) for number in range(105)]
    return pack_entries(entries, chunk_bytes=20 * PAGE)


def test_some_of_each_chunk_with_the_first_and_the_last(chunks_of_pages: PackedDataset) -> None:
    table = ExtentTable(chunks_of_pages.snapshot)
    everything = table.of_files(np.random.default_rng(1).permutation(np.arange(1, 106)))
    samples = sampled(everything)
    for chunk in range(chunks_of_pages.snapshot.chunk_count):
        of_chunk, seen = table.of_chunk(chunk), samples[samples.chunks == chunk]
        assert len(seen) == min(SAMPLES_PER_CHUNK, len(of_chunk)) == len(set(seen.numbers.tolist()))
        assert seen.offsets.min() == of_chunk.offsets.min() and seen.offsets.max() == of_chunk.offsets.max()


@pytest.mark.parametrize("files", [0, 1, 2, 3])
def test_few_extents(chunks_of_pages: PackedDataset, files: int) -> None:
    some = ExtentTable(chunks_of_pages.snapshot).of_files(np.arange(1, files + 1))
    assert sampled(some).nodes.tolist() == some.nodes.tolist()


@pytest.mark.parametrize("count", [0, 1, CHUNKS_AT_ONCE, CHUNKS_AT_ONCE + 1, 10 * CHUNKS_AT_ONCE - 3])
def test_turns_come_to_all_chunks(count: int) -> None:
    chunks = np.arange(count)
    turns = [spread(chunks, turn).tolist() for turn in range(20)]
    assert all(len(turn) <= CHUNKS_AT_ONCE for turn in turns)
    assert set().union(*turns) == set(range(count))


def test_an_epoch_over_reclaimed_pages_is_prefetched_as_the_first(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        for epoch in range(3):
            share = rig.plan(epoch).share()
            rig.prefetcher.declare(share)
            await rig.prefetcher.ahead_of(share)
            assert await read_to_the_end(rig, share) == 0
            rig.pages.files.clear()

    rig = run(packed, scenario)
    assert sorted(rig.source.fetched_chunks) == sorted([*range(CHUNKS)] * 3), "each chunk once in an epoch"
    assert not rig.source.fetched_extents
    assert rig.prefetcher.metrics.numbers()["prefetch.reclaimed_chunks"] == 2 * CHUNKS


@pytest.mark.parametrize("window", [0, 3 * GROUP_FILES * PAGE], ids=["all is kept", "all streams"])
def test_pages_that_are_reclaimed_in_the_middle_of_an_epoch_are_fetched_again(
    packed: PackedDataset, window: int
) -> None:
    """From the place of the reader on: what it has read is not fetched."""

    half = FILES // 2 + GROUP_FILES // 2 // FILES_PER_CHUNK * FILES_PER_CHUNK

    async def scenario(rig: Rig) -> None:
        share = rig.plan().share()
        rig.prefetcher.declare(share)
        await rig.prefetcher.ahead_of(share)
        for position in range(0, half, FILES_PER_CHUNK):
            assert await rig.read(share, position, position + FILES_PER_CHUNK) == 0
        rig.pages.files.clear()
        rig.source.fetched_chunks.clear()
        rig.source.fetched_extents.clear()
        await trio.sleep(LOOK_AGAIN_S)
        unread = share.nodes(half, FILES).tolist()
        noticed = next(node for node in unread if rig.prefetcher.tripwires.held(node) is None)
        rig.prefetcher.note_read(noticed)
        await rig.resolve()
        assert all(map(rig.is_at_hand, unread[: GROUP_FILES // 2]))
        for position in range(half, FILES, FILES_PER_CHUNK):
            assert await rig.read(share, position, position + FILES_PER_CHUNK) == 0

    rig = run(packed, scenario, window=window, pinned=0 if window else FILES * PAGE)
    assert rig.source.fetched_chunks, "whole chunks, as at first"
    assert len(rig.source.fetched_chunks) <= (FILES - half + 2 * GROUP_FILES) // FILES_PER_CHUNK


def test_a_read_for_a_file_that_is_there_fetches_nothing(packed: PackedDataset) -> None:
    """Its page may have been reclaimed alone, or the read was a direct one."""

    async def scenario(rig: Rig) -> None:
        share = rig.plan().share()
        rig.prefetcher.declare(share)
        await rig.prefetcher.ahead_of(share)
        await trio.sleep(LOOK_AGAIN_S)
        before = len(rig.source.fetched_chunks)
        rig.prefetcher.note_read(int(share.nodes(1, 2)[0]))
        await rig.resolve()
        assert len(rig.source.fetched_chunks) == before
        assert await read_to_the_end(rig, share) == 0

    rig = run(packed, scenario)
    assert rig.prefetcher.metrics.numbers()["prefetch.reclaimed_chunks"] == 0


def test_chunks_that_the_kernel_reclaims_all_the_time_are_fetched_twice(packed: PackedDataset) -> None:
    """The memory for chunks in flight has room for 8 of them: they take the place of their lost pages."""

    async def scenario(rig: Rig) -> None:
        for _ in range(20):
            for chunk in range(CHUNKS):
                rig.prefetcher.note_read(int(rig.prefetcher.table.of_chunk(chunk).nodes[0]))
                if rig.chunk_cache.held(chunk) is None and rig.prefetcher.keeps(chunk):
                    rig.prefetcher.note_fetched(chunk, await rig.chunk_cache.fetch(chunk))
            await rig.resolve()
            rig.pages.files.clear()
            await trio.sleep(PUSHED_AGAIN_S / 2)

    rig = run(packed, scenario)
    times = Counter(rig.source.fetched_chunks)
    assert len(times) == CHUNKS and max(times.values()) == 2


def test_readers_that_wait_for_one_chunk_lend_it_nothing(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        least = rig.chunk_cache.policy.evictable_max_bytes
        assert rig.prefetcher.keeps(3)
        for _ in range(5):
            rig.prefetcher.note_fetched(3, await rig.chunk_cache.fetch(3))
        assert rig.chunk_cache.policy.evictable_max_bytes == least

    run(packed, scenario)


def test_memory_that_was_lent_is_given_back(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        least = rig.chunk_cache.policy.evictable_max_bytes
        for _ in range(2):
            assert rig.prefetcher.keeps(3)
            rig.prefetcher.note_fetched(3, await rig.chunk_cache.fetch(3))
            await rig.resolve()
            rig.pages.files.clear()
            await trio.sleep(PUSHED_AGAIN_S)
        assert rig.chunk_cache.policy.evictable_max_bytes == least + CHUNK_BYTES
        for _ in range(3):  # the kernel still lacks pages
            await trio.sleep(LENT_S * 0.6)
            rig.prefetcher.note_read(1)
        assert rig.chunk_cache.policy.evictable_max_bytes == least + CHUNK_BYTES
        await trio.sleep(LENT_S * 1.1)
        assert rig.chunk_cache.policy.evictable_max_bytes == least

    run(packed, scenario)


def test_warming_fetches_what_was_reclaimed(packed: PackedDataset) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.warm()
        await rig.prefetcher.look_at_pinned()
        assert rig.prefetcher.budget.warmth([]).share == 1
        lost = [chunk for chunk in range(CHUNKS) if chunk % 2]
        for chunk in lost:
            rig.pages.drop(rig.prefetcher.table.of_chunk(chunk).nodes)
        await trio.sleep(LOOK_AGAIN_S)
        await rig.prefetcher.look_at_pinned()
        assert rig.prefetcher.budget.warmth([]).share == 0.5
        assert [chunk for chunk in range(CHUNKS) if rig.prefetcher.lacks(chunk)] == lost
        await rig.warm()
        assert rig.prefetcher.budget.warmth([]).share == 1

    rig = run(packed, scenario)
    assert len(rig.source.fetched_chunks) == CHUNKS + CHUNKS // 2
