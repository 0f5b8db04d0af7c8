"""Extents travel together where they are answered together, and every one of them arrives."""

from collections.abc import Awaitable, Callable, Iterable, Iterator

import numpy as np
import pytest
import trio

from dieselfs.chunk.segment import Segment
from dieselfs.errors import Damaged, DieselfsError, Unavailable
from dieselfs.prefetch.extent_table import Extents, ExtentTable
from dieselfs.sources.interface import Arrival, Wanted
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.memory.node_cache import NodeCache
from dieselfs_client.prefetch.batches import Arrived, Batch, FetchBatches
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries

CHUNKS = 6
FILES_EACH = 8
FILE_BYTES = 1000


class TwoOwners(MemoryChunkSource):
    """Answers together what has even numbers, and what has odd ones."""

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        chunks = list(chunks)
        return [group for odd in (0, 1) if (group := [chunk for chunk in chunks if chunk % 2 == odd])]


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [
        TreeEntry(b"%02d" % n, 0o100644, 0, bytes([n]) * FILE_BYTES) for n in range(CHUNKS * FILES_EACH)
    ]
    return pack_entries(entries, chunk_bytes=FILES_EACH * FILE_BYTES)


def run(
    packed: PackedDataset,
    scenario: Callable[[FetchBatches, TwoOwners], Awaitable[None]],
    kind: type[TwoOwners] = TwoOwners,
) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            source = kind(packed.snapshot, packed.source().payloads)
            chunk_cache = ChunkCache(packed.snapshot, source, 1 << 20, nursery)
            with trio.fail_after(30):
                await scenario(FetchBatches(packed.snapshot, chunk_cache, source), source)
            nursery.cancel_scope.cancel()

    trio.run(main)


def extents(packed: PackedDataset, chunk: int, *files: int) -> dict[int, Extents]:
    of_chunk = ExtentTable(packed.snapshot).of_chunk(chunk)
    return {chunk: of_chunk[np.array(files)] if files else of_chunk}


def test_what_comes_in_one_request_travels_together_and_whole_chunks_alone(packed: PackedDataset) -> None:
    async def scenario(batches: FetchBatches, source: TwoOwners) -> None:
        wanted = {
            **extents(packed, 3, 1, 2),
            **extents(packed, 4),
            **extents(packed, 2, 7),
            **extents(packed, 1, 0),
            **extents(packed, 5),
            **extents(packed, 0, 3, 4),
        }
        batched = [*batches.batched(Batch(wanted))]
        assert [[*batch] for batch in batched] == [[3, 1], [4], [2, 0], [5]]
        assert all(batch[chunk] is wanted[chunk] for batch in batched for chunk in batch)

    run(packed, scenario)


def test_all_of_a_parcel_arrives_and_damage_costs_only_its_chunk(packed: PackedDataset) -> None:
    async def scenario(batches: FetchBatches, source: TwoOwners) -> None:
        source.payloads[2][0] ^= 1
        batch = extents(packed, 4, 1, 6) | extents(packed, 2, 0, 5) | extents(packed, 0, 7)
        came: dict[int, list[bytes] | type[DieselfsError]] = {}

        async def arrived(arrival: Arrived) -> None:
            for chunk, content in arrival.items():
                if isinstance(content, DieselfsError):
                    came[chunk] = type(content)
                else:
                    payload, starts = content
                    came[chunk] = [bytes(payload[start : start + FILE_BYTES]) for start in starts.tolist()]

        await batches.fetch(Batch(batch, is_shared_plan=True), arrived)
        assert came == {
            4: [bytes([n]) * FILE_BYTES for n in (33, 38)],
            2: Damaged,
            0: [bytes([7]) * FILE_BYTES],
        }
        for chunk in (1, 2):
            came.clear()
            await batches.fetch(Batch(extents(packed, chunk)), arrived)
            assert came[chunk] == (
                Damaged
                if chunk == 2
                else [bytes([n]) * FILE_BYTES for n in range(FILES_EACH, 2 * FILES_EACH)]
            )
        source.payloads[2][0] ^= 1

    run(packed, scenario)


def test_what_comes_together_is_joined_unless_it_is_large(packed: PackedDataset) -> None:
    async def scenario(batches: FetchBatches, source: TwoOwners) -> None:
        batch = extents(packed, 4, 1, 6) | extents(packed, 2, 0) | extents(packed, 0, 3) | extents(packed, 5)
        came: Arrived = {}
        for chunk, of_chunk in batch.items():
            content = b"".join(source.fetch_extent(extent) for extent in of_chunk.extents())
            came[chunk] = memoryview(content), np.arange(len(of_chunk)) * FILE_BYTES
        came[2] = Unavailable("not this one")
        joined = [*batches.joined(Batch(batch), came)]
        assert [set(each.chunks.tolist()) for each, _ in joined] == [{4, 0}, {5}], (
            "as large as a chunk at most"
        )
        for each, (payload, starts) in joined:
            for node, start in zip(each.nodes.tolist(), starts.tolist(), strict=True):
                name = int(packed.snapshot.name(node))
                assert payload[start : start + FILE_BYTES] == bytes([name]) * FILE_BYTES

    run(packed, scenario)


def test_a_fault_of_a_source_costs_what_it_did_not_bring(packed: PackedDataset) -> None:
    class Faulty(TwoOwners):
        def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
            yield next(iter(super().fetch_many(wanted)))
            raise RuntimeError("no thread can be started")

    async def scenario(batches: FetchBatches, source: TwoOwners) -> None:
        came: dict[int, bool] = {}

        async def arrived(arrival: Arrived) -> None:
            came.update((chunk, not isinstance(content, Unavailable)) for chunk, content in arrival.items())

        batch = extents(packed, 0, 1) | extents(packed, 2, 3) | extents(packed, 4, 5)
        await batches.fetch(Batch(batch), arrived)
        assert came == {0: True, 2: False, 4: False}

    run(packed, scenario, Faulty)


def test_extents_of_own_chunks_are_read_in_the_node_cache_those_in_memory_together(
    packed: PackedDataset,
) -> None:
    """Of another node's chunks, and of a damaged one, they come from the source."""
    content = packed.source().payloads

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            source = TwoOwners(packed.snapshot, content)

            def fetch_segment(chunk: int) -> Segment:
                if chunk == 5:
                    raise Damaged("bits flipped")
                segment = Segment.create(len(content[chunk]))
                segment.view[:] = content[chunk]
                segment.seal()
                return segment

            node_cache = NodeCache(
                packed.snapshot, fetch_segment, 1 << 30, 0, nursery, owns=lambda chunk: chunk != 4
            )
            chunk_cache = ChunkCache(packed.snapshot, source, 1 << 20, nursery, node_cache=lambda: node_cache)
            for chunk in (0, 2):
                await node_cache.fetch(chunk)
            batch = Batch(is_shared_plan=True)
            for chunk in (0, 1, 2, 4, 5):
                batch |= extents(packed, chunk, 1, 2)
            came: list[list[int]] = []

            async def arrived(what: Arrived) -> None:
                came.append([*what])
                for chunk, result in what.items():
                    assert not isinstance(result, DieselfsError)
                    payload, starts = result
                    of_chunk = batch[chunk]
                    for start, offset, length in zip(starts, of_chunk.offsets, of_chunk.lengths, strict=True):
                        assert payload[start : start + length] == content[chunk][offset : offset + length]

            with trio.fail_after(30):
                await FetchBatches(packed.snapshot, chunk_cache, source).fetch(batch, arrived)
            assert came[:2] == [[0, 2], [1]]
            assert sorted(chunk for chunks in came[2:] for chunk in chunks) == [4, 5]
            counted = node_cache.metrics.as_dict()["requested"]
            assert counted["from_node"] == counted["extents"] == 6
            nursery.cancel_scope.cancel()

    trio.run(main)
