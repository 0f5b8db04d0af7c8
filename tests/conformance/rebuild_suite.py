"""What every metadata store must do when a copy of a dataset is filled and put in its place."""

import threading
from itertools import count

import pytest

from dieselfs.errors import NotFound
from dieselfs.records import NoteChange
from dieselfs_server.metadata.interface import MetadataStore
from tests.support.metadata_chunks import (
    DATASET,
    DATASET_ID,
    NOW_NS,
    Put,
    apply,
    apply_to_copy,
    chunk_id,
    pack,
    table_records,
)

WRITERS = 3
REBUILDS = 4
CHUNKS_BETWEEN = 5
WAIT_S = 120.0


def paths(store: MetadataStore) -> list[bytes]:
    return sorted(table_records(store.entry_table(DATASET_ID)))


class RebuildSuite:
    """A base of `MetadataSuite`, which has the fixture `store`."""

    def test_a_copy_is_seen_when_it_is_in_place(self, store: MetadataStore) -> None:
        apply(store, [Put(b"a", 1, size=3)], chunk_id(1))
        apply(store, [Put(b"d/b", 2, size=4)], chunk_id(2))
        before = store.dataset(DATASET)
        copy = store.begin_rebuild(DATASET_ID)
        apply_to_copy(store, copy, [Put(b"d/b", 2, size=4)], chunk_id(2))
        assert store.datasets() == [before] and paths(store) == [b"a", b"d/b"]
        store.finish_rebuild(DATASET_ID, copy, NOW_NS)
        after = store.dataset(DATASET)
        assert paths(store) == [b"d/b"] and after.dataset_id == DATASET_ID
        assert (after.files, after.total_bytes, after.chunks) == (1, 4, 1)
        assert after.generation > before.generation and after.updated_ns > before.updated_ns
        assert store.datasets() == [after]
        with pytest.raises(NotFound):
            store.chunks(copy)
        apply(store, [Put(b"c", 3)], chunk_id(3))
        assert paths(store) == [b"c", b"d/b"]

    def test_a_chunk_that_is_put_meanwhile_is_in_both(self, store: MetadataStore) -> None:
        apply(store, [Put(b"a", 1, size=3)], chunk_id(1))
        copy = store.begin_rebuild(DATASET_ID)
        apply(store, [Put(b"b", 2, size=3)], chunk_id(2))
        assert paths(store) == [b"a", b"b"]
        assert [chunk.chunk_id for chunk in store.chunks(copy)] == [chunk_id(2)]
        apply_to_copy(store, copy, [Put(b"a", 1, size=3)], chunk_id(1))
        apply_to_copy(store, copy, [Put(b"b", 2, size=3)], chunk_id(2))
        store.finish_rebuild(DATASET_ID, copy, NOW_NS)
        assert paths(store) == [b"a", b"b"] and store.dataset(DATASET).chunks == 2

    def test_versions_and_notes_stay(self, store: MetadataStore) -> None:
        store.change_notes(DATASET_ID, [NoteChange("pins/x", None, b"1")])
        last = store.reserve_versions(DATASET_ID, 10, NOW_NS) + 9
        copy = store.begin_rebuild(DATASET_ID)
        store.change_notes(DATASET_ID, [NoteChange("pins/y", None, b"2")])
        store.finish_rebuild(DATASET_ID, copy, NOW_NS)
        assert store.reserve_versions(DATASET_ID, 1, NOW_NS) == last + 1
        assert store.notes_below(DATASET_ID, "pins/") == {"pins/x": b"1", "pins/y": b"2"}

    def test_a_copy_that_is_cancelled_leaves_the_dataset(self, store: MetadataStore) -> None:
        apply(store, [Put(b"a", 1)], chunk_id(1))
        before = store.dataset(DATASET)
        copy = store.begin_rebuild(DATASET_ID)
        for _ in range(2):
            store.cancel_rebuild(DATASET_ID, copy)
        apply(store, [Put(b"b", 2)], chunk_id(2))
        assert store.dataset(DATASET).generation == before.generation + 1 and paths(store) == [b"a", b"b"]
        with pytest.raises(NotFound):
            store.finish_rebuild(DATASET_ID, copy, NOW_NS)

    def test_of_two_rebuilds_the_later_one_counts(self, store: MetadataStore) -> None:
        apply(store, [Put(b"a", 1)], chunk_id(1))
        first = store.begin_rebuild(DATASET_ID)
        second = store.begin_rebuild(DATASET_ID)
        apply_to_copy(store, second, [Put(b"a", 1)], chunk_id(1))
        with pytest.raises(NotFound):
            store.finish_rebuild(DATASET_ID, first, NOW_NS)
        store.cancel_rebuild(DATASET_ID, first)
        store.finish_rebuild(DATASET_ID, second, NOW_NS)
        assert paths(store) == [b"a"]

    def test_a_dataset_that_is_dropped_takes_its_copy_with_it(self, store: MetadataStore) -> None:
        apply(store, [Put(b"a", 1)], chunk_id(1))
        copy = store.begin_rebuild(DATASET_ID)
        store.drop_dataset(DATASET_ID)
        with pytest.raises(NotFound):
            apply_to_copy(store, copy, [Put(b"a", 1)], chunk_id(1))
        with pytest.raises(NotFound):
            store.finish_rebuild(DATASET_ID, copy, NOW_NS)
        store.create_dataset(DATASET, DATASET_ID)
        assert paths(store) == []

    def test_a_rebuild_of_nothing_is_not_found(self, store: MetadataStore) -> None:
        with pytest.raises(NotFound):
            store.begin_rebuild(bytes(16))

    def test_writers_do_not_notice_rebuilds(self, store: MetadataStore) -> None:
        """Writers note a chunk as stored before they apply it, as the object store has it then."""
        stored: dict[bytes, list[Put]] = {}
        written: set[bytes] = set()
        failures: list[BaseException] = []
        is_over, progress, numbers = threading.Event(), threading.Semaphore(0), count(1)

        def write(writer: int) -> None:
            try:
                while not is_over.is_set():
                    number = next(numbers)
                    first = store.reserve_versions(DATASET_ID, 2, NOW_NS)
                    name = b"w%d/%d" % (writer, number)
                    puts = [Put(name, first, size=1), Put(b"shared", first + 1, size=2)]
                    stored[chunk_id(number)] = puts
                    apply(store, puts, chunk_id(number))
                    written.add(name)
                    progress.release()
            except BaseException as error:
                failures.append(error)
                progress.release(1000)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
        for thread in threads:
            thread.start()
        try:
            for number in range(REBUILDS):
                for _ in range(CHUNKS_BETWEEN):
                    assert progress.acquire(timeout=WAIT_S)
                copy = store.begin_rebuild(DATASET_ID)
                for identity in sorted(stored):
                    store.apply(copy, *pack(stored[identity], identity), NOW_NS, is_again=True)
                    if failures:
                        break
                store.finish_rebuild(DATASET_ID, copy, NOW_NS + number)
        finally:
            is_over.set()
            for thread in threads:
                thread.join(WAIT_S)
        assert failures == []
        assert set(paths(store)) == written | {b"shared"}
        newest = max(put.version for puts in stored.values() for put in puts if put.path == b"shared")
        record = store.lookup(DATASET_ID, b"shared")
        assert record is not None and record.version == newest
        assert store.dataset(DATASET).files == len(written) + 1
        assert {chunk.chunk_id for chunk in store.chunks(DATASET_ID)} == set(stored)
