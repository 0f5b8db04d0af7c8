"""Reading everything: of one instant while others write, and never anything that is not what was written."""

from contextlib import closing, suppress
from threading import Thread

import pytest

from dieselfs.chunk.format import Op
from dieselfs.errors import Damaged, NotFound
from dieselfs_server.metadata.redis.store import RedisMetadata
from dieselfs_server.metadata.redis.values import STORED
from tests.conformance.metadata_suite import check_against_model
from tests.support.metadata_chunks import (
    DATASET,
    DATASET_ID,
    NOW_NS,
    Put,
    apply,
    chunk_id,
    delete,
    list_all,
    pack,
    table_records,
)
from tests.support.metadata_model import MetadataModel
from tests.support.redis import RedisProcess, needs_redis
from tests.support.redis_faults import CallingLink, altered_values, store_with

pytestmark = needs_redis

ENTRIES = [
    Put(b"", 1, Op.DIRECTORY),
    Put(b"a", 1, size=3),
    Put(b"x/d/f", 2, size=4, length=2),
    Put(b"x/d/f", 2, size=4, place=2, length=2),
    Put(b"x/d/g", 3, Op.SYMLINK, target=b"../f"),
    Put(b"x/h", 4, size=6, length=5),
    delete(b"gone", 5),
    Put(b"x/old", 6),
]


def test_a_table_is_of_one_instant_while_others_upload(redis_url: str) -> None:
    """Between any two batches of the reader, another server applies a chunk: until it is held up, for a moment."""
    with closing(store_with(redis_url)) as writer:
        writer.create_dataset(DATASET, DATASET_ID)
        headers = {}
        numbers = iter(range(10_000))
        threads: list[Thread] = []

        def write() -> None:
            number = next(numbers)
            identity = chunk_id(number)
            preamble, header = pack(
                [Put(b"d%d/same" % (number % 3), number + 1, size=number), Put(b"f%d" % number, number + 1)],
                identity,
            )
            headers[identity] = header
            writer.apply(DATASET_ID, preamble, header, NOW_NS)

        def write_between() -> None:
            """What a writer does that is not held up is done before the reader goes on."""
            while threads and not threads[-1].is_alive():
                threads.pop()
            if not threads:
                threads.append(Thread(target=write))
                threads[-1].start()
                threads[-1].join(0.5)

        with closing(store_with(redis_url, lambda client: CallingLink(client, write_between))) as reader:
            table = reader.entry_table(DATASET_ID)
        for thread in threads:
            thread.join()
        generation = table.dataset.generation
        assert len(table.chunk_table) == generation >= 2
        read = {chunk.chunk_id: headers[chunk.chunk_id] for chunk in table.chunk_table}
        model = MetadataModel(read)
        assert {path: record.size for path, record in table_records(table).items()} == {
            path: record.size for path, record in model.records.items()
        }
        assert (table.dataset.files, table.dataset.total_bytes) == (model.files, model.total_bytes)
        check_against_model(writer, headers)  # the hold is gone


def test_an_altered_value_is_noticed_and_rebuilt(redis_server: RedisProcess, redis_url: str) -> None:
    prefix = redis_url.rpartition("=")[2].encode()
    with closing(store_with(redis_url)) as store, redis_server.client() as client:
        store.create_dataset(DATASET, DATASET_ID)
        preamble, header = pack(ENTRIES, chunk_id(1))
        store.apply(DATASET_ID, preamble, header, NOW_NS)
        apply(store, [Put(b"x/old", 7, size=1)], chunk_id(2))
        paths = [put.path for put in ENTRIES]
        right = {path: store.lookup(DATASET_ID, path) for path in paths}
        listed = {folder: list_all(store, folder) for folder in (b"", b"x", b"x/d")}
        table = table_records(store.entry_table(DATASET_ID))
        noticed = set()
        for key in altered_values(client, prefix):
            with closing(store_with(redis_url)) as fresh:  # without what the other remembers
                for path in paths:
                    with suppress(Damaged, NotFound):
                        assert fresh.lookup(DATASET_ID, path) == right[path]
                for folder, records in listed.items():
                    with suppress(Damaged, NotFound):
                        assert list_all(fresh, folder) == records
                try:
                    assert table_records(fresh.entry_table(DATASET_ID)) == table
                except (Damaged, NotFound) as error:
                    noticed.add(key.rpartition(b":")[0] if b":live:" in key else key.rpartition(b":")[2])
                    if b"datasets" not in key and b"dataset" not in key.rpartition(b":")[2]:
                        assert f"rebuild dl://{DATASET}" in str(error)
        for part in (b"{datasets2}", b"chunks", b"dataset", b"deleted", b"folders", b"pieces"):
            assert any(key.endswith(part) for key in noticed), part
        assert any(key.endswith(b"live") for key in noticed)


def test_whatever_is_altered_dropping_and_applying_mends_it(
    redis_server: RedisProcess, redis_url: str
) -> None:
    prefix = redis_url.rpartition("=")[2].encode()
    packed = {chunk_id(1): pack(ENTRIES, chunk_id(1)), chunk_id(2): pack([Put(b"x/old", 7)], chunk_id(2))}
    with redis_server.client() as client:
        for number in range(100):
            with closing(store_with(redis_url)) as store:
                store.create_dataset(DATASET, DATASET_ID)
                for chunk in packed.values():
                    store.apply(DATASET_ID, *chunk, NOW_NS)
            altered = altered_values(client, prefix)
            if all(next(altered, None) is not None for _ in range(number + 1)):
                with closing(store_with(redis_url)) as store:
                    with suppress(NotFound):
                        store.drop_dataset(DATASET_ID)
                    store.create_dataset(DATASET, DATASET_ID)
                    for chunk in packed.values():
                        store.apply(DATASET_ID, *chunk, NOW_NS)
                    check_against_model(store, {identity: header for identity, (_, header) in packed.items()})
                    store.drop_dataset(DATASET_ID)
            else:
                assert number > 10
                break


@pytest.mark.parametrize("what", [b"*.*", b"*live:*"])
def test_entries_that_redis_lost_are_missed(redis_server: RedisProcess, redis_url: str, what: bytes) -> None:
    """A node of a cluster came back without what it had, or somebody deleted a key by hand."""
    prefix = redis_url.rpartition("=")[2].encode()
    with closing(store_with(redis_url)) as store, redis_server.client() as client:
        store.create_dataset(DATASET, DATASET_ID)
        apply(store, ENTRIES, chunk_id(1))
        client.delete(*client.keys(prefix + what))
        with pytest.raises(Damaged, match="rebuild dl://pets"):
            store.entry_table(DATASET_ID)
        if what == b"*.*":
            for read in (
                lambda: store.lookup(DATASET_ID, b"a"),
                lambda: store.lookup(DATASET_ID, b"x/d/f"),
                lambda: store.list_folder(DATASET_ID, b"x/d", b"", 10),
                lambda: store.pending(DATASET_ID, b"x/h"),
            ):
                with pytest.raises(Damaged, match="rebuild dl://pets"):
                    read()


def test_a_reader_who_died_does_not_hold_writers_up_for_ever(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs_server.metadata.redis.apply.REDIS_HOLD_S", 0.3)
    with closing(store_with(redis_url)) as store:
        store.create_dataset(DATASET, DATASET_ID)
        _leave_hold(store)
        assert apply(store, [Put(b"a", 1)], chunk_id(1)) == 1
        assert apply(store, [Put(b"b", 1)], chunk_id(2)) == 2


def _leave_hold(store: RedisMetadata) -> None:
    from dieselfs_server.metadata.redis.table import _Hold

    _Hold(store._client, store._datasets.keys(DATASET_ID)).renew()


CHUNKS = [pack([Put(b"a", number, size=number)], chunk_id(number)) for number in range(1, 5)]


@needs_redis
def test_a_number_that_is_out_of_date_or_damaged_is_made_again(
    redis_url: str, redis_server: RedisProcess
) -> None:
    prefix = redis_url.partition("prefix=")[2]
    with closing(store_with(redis_url)) as store, redis_server.client() as client:
        store.create_dataset(DATASET, DATASET_ID)

        def check(chunks: int) -> None:
            (found,) = store.usage([DATASET])
            assert found is not None
            assert found.stored_bytes == sum(preamble.object_length for preamble, _ in CHUNKS[:chunks])

        store.apply(DATASET_ID, *CHUNKS[0], NOW_NS)
        (key,) = client.scan_iter(prefix + "*:dataset")
        old = client.hget(key, STORED)
        store.apply(DATASET_ID, *CHUNKS[1], NOW_NS)
        client.hset(key, STORED, old)  # as if a server of before had applied the second chunk
        store.apply(DATASET_ID, *CHUNKS[2], NOW_NS)
        assert client.hget(key, STORED) == old
        check(3)
        assert client.hget(key, STORED) != old
        client.hset(key, STORED, b"damaged by somebody")
        store.apply(DATASET_ID, *CHUNKS[3], NOW_NS)
        check(4)
        client.hdel(key, STORED)
        check(4)
