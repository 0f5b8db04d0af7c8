"""What every object store must do. A subclass gives `make_store`, and pytest the rest."""

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.errors import AlreadyExists, Damaged, NotFound
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.interface import ObjectStore
from tests.support.own_service import call
from tests.support.referring_world import World, copied

DATASET_ID = bytes(range(16))
OTHER_ID = bytes(16)
CHUNK_ID = b"\x65" + bytes(range(15))


def chunk_at(time_s: int, number: int = 0) -> bytes:
    return time_s.to_bytes(4, "big") + number.to_bytes(CHUNK_ID_BYTES - 4, "big")


class ChunkStoreSuite:
    def make_store(self, folder: Path) -> ObjectStore:
        """An empty store."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        yield self.make_store(tmp_path)

    def test_what_was_put_is_got(self, store: ObjectStore) -> None:
        store.put(DATASET_ID, CHUNK_ID, [b"head", bytearray(b"er"), b"", memoryview(b"payload")])
        assert store.size(DATASET_ID, CHUNK_ID) == 13
        assert store.get_range(DATASET_ID, CHUNK_ID, 0, 13) == b"headerpayload"
        assert store.get_range(DATASET_ID, CHUNK_ID, 4, 5) == b"erpay"
        assert store.get_range(DATASET_ID, CHUNK_ID, 13, 0) == b""

    @pytest.mark.parametrize("parts", [[], [b""], [b"x"] * 3000, [memoryview(bytes(5 << 20)), b"end"]])
    def test_parts_of_any_number_and_size(self, store: ObjectStore, parts: list[bytes]) -> None:
        store.put(DATASET_ID, CHUNK_ID, parts)
        content = b"".join(parts)
        assert store.size(DATASET_ID, CHUNK_ID) == len(content)
        assert store.get_range(DATASET_ID, CHUNK_ID, 0, len(content)) == content

    def test_parts_may_hold_numbers(self, store: ObjectStore) -> None:
        store.put(DATASET_ID, CHUNK_ID, [memoryview(b"12345678").cast("I"), b"9"])
        assert store.get_range(DATASET_ID, CHUNK_ID, 0, 9) == b"123456789"

    def test_a_range_behind_the_end_is_damage(self, store: ObjectStore) -> None:
        store.put(DATASET_ID, CHUNK_ID, [b"12345"])
        for offset, length in ((0, 6), (5, 1), (7, 1)):
            with pytest.raises(Damaged, match=f"offset {offset}:"):
                store.get_range(DATASET_ID, CHUNK_ID, offset, length)

    def test_what_was_not_put_is_not_found(self, store: ObjectStore) -> None:
        store.put(DATASET_ID, CHUNK_ID, [b"1"])
        for dataset_id, chunk_id in ((OTHER_ID, CHUNK_ID), (DATASET_ID, chunk_at(5))):
            with pytest.raises(NotFound):
                store.get_range(dataset_id, chunk_id, 0, 1)
            with pytest.raises(NotFound):
                store.size(dataset_id, chunk_id)

    def test_the_file_of_a_chunk_is_all_of_it_or_there_is_none_of_any_chunk(self, store: ObjectStore) -> None:
        store.put(DATASET_ID, CHUNK_ID, [b"12345"])
        store.put(OTHER_ID, CHUNK_ID, [b"67890"])
        descriptor, other = store.open_chunk(DATASET_ID, CHUNK_ID), store.open_chunk(OTHER_ID, CHUNK_ID)
        if descriptor is None or other is None:  # a store without files has none for any chunk, now or later
            assert descriptor is None and other is None
            assert store.open_chunk(DATASET_ID, CHUNK_ID) is None
            assert store.get_range(DATASET_ID, CHUNK_ID, 0, 5) == b"12345"
            return
        with open(descriptor, "rb") as file, open(other, "rb") as other_file:
            store.delete(DATASET_ID, CHUNK_ID)
            assert (file.read(), other_file.read()) == (b"12345", b"67890")
            assert not os.get_inheritable(descriptor)
        with pytest.raises(NotFound):
            store.open_chunk(DATASET_ID, CHUNK_ID)

    def test_an_id_is_taken_once(self, store: ObjectStore) -> None:
        store.put(DATASET_ID, CHUNK_ID, [b"first"])
        for content in (b"first", b"second", b""):
            with pytest.raises(AlreadyExists):
                store.put(DATASET_ID, CHUNK_ID, [content])
        assert store.get_range(DATASET_ID, CHUNK_ID, 0, 5) == b"first"
        store.put(OTHER_ID, CHUNK_ID, [b"another dataset's"])

    def test_one_of_many_threads_gets_an_id(self, store: ObjectStore) -> None:
        def attempt(number: int) -> bytes | None:
            content = bytes([number]) * 100_000
            try:
                store.put(DATASET_ID, chunk_at(7, number % 10), [content])
            except AlreadyExists:
                return None
            return content

        with ThreadPoolExecutor(8) as threads:
            stored = [content for content in threads.map(attempt, range(80)) if content is not None]
        assert len(stored) == 10
        got = [
            store.get_range(DATASET_ID, chunk_id, 0, 100_000) for chunk_id in store.list_chunks(DATASET_ID)
        ]
        assert sorted(got) == sorted(stored)

    def test_a_deleted_chunk_is_gone(self, store: ObjectStore) -> None:
        store.put(DATASET_ID, CHUNK_ID, [b"1"])
        store.put(DATASET_ID, chunk_at(5), [b"2"])
        for _ in range(2):
            store.delete(DATASET_ID, CHUNK_ID)
        store.delete(OTHER_ID, CHUNK_ID)
        assert list(store.list_chunks(DATASET_ID)) == [chunk_at(5)]
        store.put(DATASET_ID, CHUNK_ID, [b"again"])

    def test_chunks_are_listed_in_the_order_of_their_ids(self, store: ObjectStore) -> None:
        source = random.Random(1)
        spread = [1 << bit for bit in range(32)] + [
            1_700_000_000 + second for second in range(0, 40_000, 997)
        ]
        chunk_ids = [chunk_at(time_s, source.randrange(1 << 90)) for time_s in spread for _ in range(2)]
        for chunk_id in source.sample(chunk_ids, len(chunk_ids)):
            store.put(DATASET_ID, chunk_id, [b"x"])
        assert list(store.list_chunks(DATASET_ID)) == sorted(chunk_ids)
        for since_s in (
            0,
            1,
            2,
            3,
            4,
            5,
            1_700_000_000,
            1_700_000_997,
            1_700_000_998,
            1_700_016_384,
            1 << 31,
            1 << 40,
        ):
            expected = sorted(
                identity for identity in chunk_ids if int.from_bytes(identity[:4], "big") >= since_s
            )
            assert list(store.list_chunks(DATASET_ID, since_s)) == expected
        assert list(store.list_chunks(OTHER_ID)) == []

    def test_chunks_may_come_and_go_during_a_listing(self, store: ObjectStore) -> None:
        chunk_ids = [chunk_at(time_s) for time_s in range(0, 100_000, 5000)]
        for chunk_id in chunk_ids:
            store.put(DATASET_ID, chunk_id, [b"x"])
        listing = store.list_chunks(DATASET_ID)
        assert next(listing) == chunk_ids[0]
        store.put(DATASET_ID, chunk_at(3), [b"x"])
        store.delete_dataset(DATASET_ID)
        assert set(listing) <= {*chunk_ids, chunk_at(3)}

    def test_a_dataset_is_listed_while_it_has_a_chunk(self, store: ObjectStore) -> None:
        assert list(store.list_datasets()) == []
        store.put(DATASET_ID, CHUNK_ID, [b"1"])
        store.put(OTHER_ID, CHUNK_ID, [b"1"])
        store.put_record("users", b"not a dataset")
        assert sorted(store.list_datasets()) == [OTHER_ID, DATASET_ID]
        assert list(store.list_datasets({OTHER_ID})) == [DATASET_ID]
        assert list(store.list_datasets({OTHER_ID, DATASET_ID})) == []
        store.delete(OTHER_ID, CHUNK_ID)
        assert list(store.list_datasets()) == [DATASET_ID]

    def test_a_deleted_dataset_is_gone(self, store: ObjectStore) -> None:
        for time_s in range(0, 50_000, 999):
            store.put(DATASET_ID, chunk_at(time_s), [b"1"])
        store.put(OTHER_ID, CHUNK_ID, [b"1"])
        for _ in range(2):
            store.delete_dataset(DATASET_ID)
        assert list(store.list_datasets()) == [OTHER_ID]
        assert list(store.list_chunks(DATASET_ID)) == []
        with pytest.raises(NotFound):
            store.size(DATASET_ID, chunk_at(999))
        store.put(DATASET_ID, chunk_at(999), [b"new"])
        assert list(store.list_chunks(DATASET_ID)) == [chunk_at(999)]

    def test_a_record_is_replaced(self, store: ObjectStore) -> None:
        assert store.get_record("users") is None
        for content in (b"first", b"", b"third" * 1000):
            store.put_record("users", content)
            assert store.get_record("users") == content
        store.put_record("user-s", b"another")
        assert store.get_record("users") == b"third" * 1000

    def test_records_are_listed_by_prefix_and_removed(self, store: ObjectStore) -> None:
        assert store.list_records("") == []
        for name in ("tag-b1", "users", "tag-a2", "tag"):
            store.put_record(name, name.encode())
        assert store.list_records("tag-") == ["tag-a2", "tag-b1"]
        assert store.list_records("") == ["tag", "tag-a2", "tag-b1", "users"]
        store.delete_record("tag-a2")
        store.delete_record("tag-a2")
        assert store.list_records("tag-") == ["tag-b1"]
        assert store.get_record("tag-a2") is None

    def test_a_large_record_is_kept_whole(self, store: ObjectStore) -> None:
        content = bytes(range(256)) * (40 << 12)
        store.put_record("tag-large", content)
        assert store.get_record("tag-large") == content
        store.put_record("tag-large", b"small now")
        assert store.get_record("tag-large") == b"small now"
        assert store.list_records("") == ["tag-large"]

    def test_a_record_is_created_once(self, store: ObjectStore) -> None:
        assert store.create_record("identity", b"first")
        assert not store.create_record("identity", b"second")
        assert store.get_record("identity") == b"first"
        assert store.list_records("") == ["identity"]
        store.put_record("identity", b"replaced")
        assert not store.create_record("identity", b"third")
        store.delete_record("identity")
        assert store.create_record("identity", b"fourth")

    def test_one_of_several_creators_of_a_record_succeeds(self, store: ObjectStore) -> None:
        contents = [b"%d" % number * 1000 for number in range(8)]
        with ThreadPoolExecutor(8) as threads:
            created = list(threads.map(lambda content: store.create_record("identity", content), contents))
        assert created.count(True) == 1
        assert store.get_record("identity") == contents[created.index(True)]

    def test_a_record_is_seen_whole(self, store: ObjectStore) -> None:
        store.put_record("users", b"0" * 10_000)
        with ThreadPoolExecutor(4) as threads:
            writes = [threads.submit(store.put_record, "users", b"%d" % (n % 10) * 10_000) for n in range(40)]
            while not all(write.done() for write in writes):
                content = store.get_record("users")
                assert content is not None and len(content) == 10_000 and len(set(content)) == 1
            for write in writes:
                write.result()


class ServedStoreSuite(ChunkStoreSuite):
    """Of a store that a server is started with: also what servers need of several of its parts together."""

    def test_a_copy_by_reference_outlives_its_source_and_the_records(
        self, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dieselfs_server.datasets.referring_copy.REFERENCE_BYTES_MIN", 1)
        with closing(SqliteMetadata(":memory:")) as metadata:
            world = World(tmp_path, metadata, store)
            world.copy("a", b"d", "b", b"d")
            for name in world.records():
                store.delete_record(name)
            for name in "ba":
                call(world.service, "rebuild", dataset=name, since_s=-1, is_forced=False)
            world.remove("a", b"d/x")
            assert len(world.references("b")) == 2 and world.purge("a").chunks_removed == 0
            call(world.service, "drop_dataset", name="a", dataset_id=world.id("a"))
            assert world.contents("b") == copied()
            checked = call(world.service, "fsck", dataset="b", is_deep=True, is_repair=False)
            assert checked.problems == ()
            for name in "bc":
                call(world.service, "drop_dataset", name=name, dataset_id=world.id(name))
            assert world.records() == [] and list(store.list_datasets()) == []
