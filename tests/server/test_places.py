"""Who waits for a quota or a rate does not hold one of the few places that others need meanwhile."""

from pathlib import Path

import pytest
import trio
import trio.testing

from dieselfs.rpc.messages import thrift
from dieselfs_server.access.accounts import with_quota
from dieselfs_server.admission.quotas import QuotaExceeded
from dieselfs_server.call import Call
from dieselfs_server.handlers.writing import STORE_WRITES_MAX
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.service import Service
from dieselfs_server.store.memory import MemoryStore
from tests.support.metadata_chunks import DATASET, DATASET_ID, Put, chunk_id, encode, pack
from tests.support.own_service import TRUSTED, called, own_service, parts_of

ROOM = pack([Put(b"f01", 1, size=100)], chunk_id(1))[0].object_length


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = own_service(tmp_path, MemoryStore(), SqliteMetadata(":memory:"))
    made.metadata.create_dataset(DATASET, DATASET_ID)
    return made


async def put(service: Service, number: int) -> None:
    identity = chunk_id(number)
    data = encode([Put(b"f%02d" % number, number, size=100)], identity)
    struct = thrift.put_chunk_args(dataset=DATASET, chunk_id=identity, bulk_length=len(data))
    await service.handlers["put_chunk"](Call(service.access, TRUSTED, "put_chunk", struct, data))


def test_chunks_that_wait_for_room_in_a_quota_leave_their_places_to_others(service: Service) -> None:
    service.users.change(lambda accounts: with_quota(accounts, f"dataset:{DATASET}", {"stored_bytes": ROOM}))
    service.metadata.create_dataset("others", bytes(16))
    dataset = service.metadata.dataset(DATASET)
    ended: list[int] = []

    async def waiting(number: int) -> None:
        with pytest.raises(QuotaExceeded):
            await put(service, number)
        ended.append(number)

    async def run() -> None:
        # The room is held by a chunk that is not stored while the others wait.
        with parts_of(service, "put_chunk").quotas.admitted(
            dataset, *pack([Put(b"f01", 1, size=100)], chunk_id(1))
        ):
            async with trio.open_nursery() as nursery:
                for number in range(2, 2 + STORE_WRITES_MAX):
                    nursery.start_soon(waiting, number)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await called(
                    service, "write_file", dataset="others", path=b"a", content=b"a", mode=0o644, mtime_ns=1
                )
                assert not ended
                nursery.cancel_scope.cancel()

    trio.run(run)


def test_a_reader_of_a_tag_waits_for_its_rate_outside_the_places_of_readers(service: Service) -> None:
    taken: list[int] = []

    async def pace(_length_bytes: int) -> None:
        taken.append(service.tags.reads.borrowed_tokens)

    async def run() -> None:
        await put(service, 1)
        await called(service, "put_tag", dataset=DATASET, tag="v1", generation=0)
        struct = thrift.get_snapshot_args(dataset=DATASET, tag="v1", generation=0)
        await service.handlers["get_snapshot"](
            Call(service.access, TRUSTED, "get_snapshot", struct, pace=pace)
        )

    trio.run(run)
    assert taken == [0]
