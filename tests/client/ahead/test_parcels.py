"""Pieces travel together where they are answered together, and every one of them arrives."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pytest
import trio

from dieselfs.chunk_source import Arrival
from dieselfs.errors import Damaged, DieselfsError, Unavailable
from dieselfs.meta.snapshot import ExtentRef
from dieselfs_client.ahead.parcels import Arrived, Parcel, Parcels
from dieselfs_client.ahead.pieces import PieceTable
from dieselfs_client.ahead.residency import ChunkResidency
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
    scenario: Callable[[Parcels, TwoOwners], Awaitable[None]],
    kind: type[TwoOwners] = TwoOwners,
) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            source = kind(packed.snapshot, packed.source().payloads)
            residency = ChunkResidency(packed.snapshot, source, 1 << 20, nursery)
            with trio.fail_after(30):
                await scenario(Parcels(packed.snapshot, residency, source), source)
            nursery.cancel_scope.cancel()

    trio.run(main)


def pieces(packed: PackedDataset, chunk: int, *files: int) -> Parcel:
    of_chunk = PieceTable(packed.snapshot).of_chunk(chunk)
    return {chunk: of_chunk[np.array(files)] if files else of_chunk}


def test_what_comes_in_one_request_travels_together_and_whole_chunks_alone(packed: PackedDataset) -> None:
    async def scenario(parcels: Parcels, source: TwoOwners) -> None:
        wanted = {
            **pieces(packed, 3, 1, 2),
            **pieces(packed, 4),
            **pieces(packed, 2, 7),
            **pieces(packed, 1, 0),
            **pieces(packed, 5),
            **pieces(packed, 0, 3, 4),
        }
        packed_parcels = [*parcels.packed(wanted)]
        assert [[*parcel] for parcel in packed_parcels] == [[3, 1], [4], [2, 0], [5]]
        assert all(parcel[chunk] is wanted[chunk] for parcel in packed_parcels for chunk in parcel)

    run(packed, scenario)


def test_all_of_a_parcel_arrives_and_damage_costs_only_its_chunk(packed: PackedDataset) -> None:
    async def scenario(parcels: Parcels, source: TwoOwners) -> None:
        source.payloads[2][0] ^= 1
        parcel = pieces(packed, 4, 1, 6) | pieces(packed, 2, 0, 5) | pieces(packed, 0, 7)
        came: dict[int, list[bytes] | type[DieselfsError]] = {}

        async def arrived(arrival: Arrived) -> None:
            for chunk, content in arrival.items():
                if isinstance(content, DieselfsError):
                    came[chunk] = type(content)
                else:
                    payload, starts = content
                    came[chunk] = [bytes(payload[start : start + FILE_BYTES]) for start in starts.tolist()]

        await parcels.fetch(parcel, is_common=True, arrived=arrived)
        assert came == {
            4: [bytes([n]) * FILE_BYTES for n in (33, 38)],
            2: Damaged,
            0: [bytes([7]) * FILE_BYTES],
        }
        for chunk in (1, 2):
            came.clear()
            await parcels.fetch(pieces(packed, chunk), is_common=False, arrived=arrived)
            assert came[chunk] == (
                Damaged
                if chunk == 2
                else [bytes([n]) * FILE_BYTES for n in range(FILES_EACH, 2 * FILES_EACH)]
            )
        source.payloads[2][0] ^= 1

    run(packed, scenario)


def test_what_comes_together_is_joined_unless_it_is_large(packed: PackedDataset) -> None:
    async def scenario(parcels: Parcels, source: TwoOwners) -> None:
        parcel = pieces(packed, 4, 1, 6) | pieces(packed, 2, 0) | pieces(packed, 0, 3) | pieces(packed, 5)
        came: Arrived = {}
        for chunk, of_chunk in parcel.items():
            content = b"".join(source.fetch_extent(extent) for extent in of_chunk.extents())
            came[chunk] = memoryview(content), np.arange(len(of_chunk)) * FILE_BYTES
        came[2] = Unavailable("not this one")
        joined = [*parcels.joined(parcel, came)]
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
        def fetch_many(
            self, wanted: Mapping[int, Sequence[ExtentRef]], is_common: bool = False
        ) -> Iterator[Arrival]:
            yield next(iter(super().fetch_many(wanted, is_common)))
            raise RuntimeError("no thread can be started")

    async def scenario(parcels: Parcels, source: TwoOwners) -> None:
        came: dict[int, bool] = {}

        async def arrived(arrival: Arrived) -> None:
            came.update((chunk, not isinstance(content, Unavailable)) for chunk, content in arrival.items())

        parcel = pieces(packed, 0, 1) | pieces(packed, 2, 3) | pieces(packed, 4, 5)
        await parcels.fetch(parcel, is_common=False, arrived=arrived)
        assert came == {0: True, 2: False, 4: False}

    run(packed, scenario, Faulty)
