"""What every metadata store must do. A subclass gives `make_store`, and pytest the rest."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dieselfs.chunk.format import VERSION_MAX, ChunkHeader, Op, Preamble
from dieselfs.errors import AlreadyExists, DieselfsError, InvalidInput, NotFound, Unavailable
from dieselfs.names import split_path
from dieselfs.records import FileRecord, NoteChange, PendingFile
from dieselfs.snapshot.builder import SnapshotBuilder, build_snapshot
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.metadata.interface import MetadataStore
from tests.conformance.rebuild_suite import RebuildSuite
from tests.support.metadata_chunks import (
    DATASET,
    DATASET_ID,
    NOW_NS,
    Put,
    apply,
    chunk_id,
    delete,
    deleted_entries,
    list_all,
    pack,
    table_records,
)
from tests.support.metadata_model import MetadataModel
from tests.support.metadata_scenarios import CHUNKS, PATHS, SCENARIOS, cut_files

OTHER_ID = bytes(16)


def check_against_model(store: MetadataStore, headers: dict[bytes, ChunkHeader]) -> None:
    """Assert that all that the store tells about the dataset is what the model makes of the applied chunks."""
    model = MetadataModel(headers)
    unversioned = {path: record._replace(version=0) for path, record in model.records.items()}
    table = store.entry_table(DATASET_ID)
    assert table_records(table) == unversioned
    for path in [b"", b"nowhere", *PATHS]:
        assert store.lookup(DATASET_ID, path) == model.records.get(path)
    for folder in {b"nowhere", *PATHS, *(split_path(path)[0] for path in PATHS)}:
        expected = [record._replace(extents=()) for record in model.folder(folder)]
        assert list_all(store, folder, limit=1) == expected
        assert list_all(store, folder) == expected
    chunks = store.chunks(DATASET_ID)
    assert [chunk.chunk_id for chunk in chunks] == sorted(headers)
    assert {chunk.chunk_id: deleted_entries(chunk) for chunk in chunks} == model.deleted
    dataset = store.dataset(DATASET)
    assert (dataset.files, dataset.total_bytes, dataset.chunks) == (
        model.files,
        model.total_bytes,
        len(headers),
    )
    assert dataset.generation == len(headers)
    assert table.dataset == dataset
    assert list(table.chunk_table) == chunks


_model_settings = settings(
    max_examples=30,
    suppress_health_check=[
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
    ],  # inherited by each store's class
)


class MetadataSuite(RebuildSuite):
    def make_store(self, folder: Path) -> MetadataStore:
        """A store that is empty, or that holds what a store made with the same folder was left with."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[MetadataStore]:
        with closing(self.make_store(tmp_path)) as store:
            store.create_dataset(DATASET, DATASET_ID)
            yield store

    def test_datasets_are_listed_by_name(self, store: MetadataStore) -> None:
        store.create_dataset("ants", OTHER_ID)
        assert [dataset.name for dataset in store.datasets()] == ["ants", DATASET]
        assert store.dataset("ants") == store.datasets()[0]
        assert store.dataset("ants").dataset_id == OTHER_ID

    def test_a_new_dataset_is_empty(self, store: MetadataStore) -> None:
        dataset = store.dataset(DATASET)
        assert (dataset.generation, dataset.files, dataset.total_bytes, dataset.chunks) == (0, 0, 0, 0)
        check_against_model(store, {})
        assert store.newest_chunk_time_s(DATASET_ID, 1000) == 0

    def test_names_and_ids_are_taken_once(self, store: MetadataStore) -> None:
        for name, dataset_id in ((DATASET, OTHER_ID), ("ants", DATASET_ID)):
            with pytest.raises(AlreadyExists, match=DATASET):
                store.create_dataset(name, dataset_id)
        assert len(store.datasets()) == 1

    def test_a_rebuilt_dataset_goes_on_from_its_generation(self, store: MetadataStore) -> None:
        store.create_dataset("ants", OTHER_ID, generation=41, updated_ns=NOW_NS + 5)
        chunk = pack([Put(b"a", 1)], chunk_id(1), OTHER_ID)
        assert store.apply(OTHER_ID, *chunk, NOW_NS) == 42
        assert store.dataset("ants").updated_ns == NOW_NS + 6  # the clock had stepped back

    def test_usage_is_that_of_all_chunks_until_they_are_forgotten(self, store: MetadataStore) -> None:
        def lengths(*chunks: tuple[Preamble, ChunkHeader]) -> int:
            return sum(preamble.object_length for preamble, _ in chunks)

        def stored_bytes() -> int:
            (found,) = store.usage([DATASET])
            assert found is not None and found.record == store.dataset(DATASET)
            return found.stored_bytes

        assert stored_bytes() == 0
        first = pack([Put(b"a", 1, size=100), Put(b"b", 2, size=50)], chunk_id(1))
        second = pack([Put(b"a", 3, size=70), Put(b"b", 4, size=7)], chunk_id(2))
        for chunk in (first, second, first):
            store.apply(DATASET_ID, *chunk, NOW_NS)
        assert stored_bytes() == lengths(first, second)  # replaced entries too
        assert store.usage(["none", DATASET])[0] is None
        copy_id = store.begin_rebuild(DATASET_ID)
        for chunk in (first, second):
            store.apply(copy_id, *chunk, NOW_NS, is_again=True)
        assert stored_bytes() == lengths(first, second)
        store.finish_rebuild(DATASET_ID, copy_id, NOW_NS)
        assert stored_bytes() == lengths(first, second)
        store.forget_chunk(DATASET_ID, chunk_id(1))
        assert stored_bytes() == lengths(second)
        store.drop_dataset(DATASET_ID)
        assert store.usage([DATASET]) == [None]
        store.create_dataset(DATASET, DATASET_ID)
        assert stored_bytes() == 0

    def test_common_notes_belong_to_no_dataset(self, store: MetadataStore) -> None:
        assert store.common_note("a") is None
        assert store.change_common_note(NoteChange("a", None, b"1"))
        assert not store.change_common_note(NoteChange("a", None, b"2"))
        assert store.notes(DATASET_ID, ["a"]) == [None]
        store.drop_dataset(DATASET_ID)
        assert store.common_note("a") == b"1"
        assert store.change_common_note(NoteChange("a", b"1", None))
        assert store.common_note("a") is None

    def test_notes_are_kept_by_name(self, store: MetadataStore) -> None:
        notes = {
            "a": b"",
            "jobs/x/1": b"\0one",
            "jobs/x/2": b"two",
            "jobs/xy": b"y",
            "jobs0": b"0",
            "ü/ä": b"ae",
        }
        assert store.notes(DATASET_ID, list(notes)) == [None] * 6 and store.notes_below(DATASET_ID, "") == {}
        assert store.change_notes(
            DATASET_ID, [NoteChange(name, None, notes[name]) for name in reversed(notes)]
        )
        assert store.notes(DATASET_ID, ["jobs/x/2", "nobody", "a"]) == [b"two", None, b""]
        assert list(store.notes_below(DATASET_ID, "").items()) == list(notes.items())
        assert list(store.notes_below(DATASET_ID, "jobs/x/")) == ["jobs/x/1", "jobs/x/2"]
        assert store.notes_below(DATASET_ID, "ü/") == {"ü/ä": b"ae"}
        assert store.notes_below(DATASET_ID, "none/") == {}
        store.create_dataset("ants", OTHER_ID)
        assert store.notes_below(OTHER_ID, "") == {}
        store.drop_dataset(DATASET_ID)
        store.create_dataset(DATASET, DATASET_ID)
        assert store.notes_below(DATASET_ID, "") == {}

    def test_a_dataset_can_have_notes_from_its_beginning(self, store: MetadataStore) -> None:
        notes = [NoteChange("mark", None, b"begun"), NoteChange("other", None, b"1")]
        store.create_dataset("marked", OTHER_ID, 0, 0, notes)
        assert store.notes(OTHER_ID, ["mark", "other", "third"]) == [b"begun", b"1", None]
        assert store.change_notes(OTHER_ID, [NoteChange("mark", b"begun", None)])
        assert store.notes(OTHER_ID, ["mark"]) == [None]

    def test_notes_change_together_and_only_if_they_are_as_expected(self, store: MetadataStore) -> None:
        assert store.change_notes(DATASET_ID, [NoteChange("a", None, b"1"), NoteChange("b", None, b"2")])
        before = {"a": b"1", "b": b"2"}
        for stale in (
            [NoteChange("a", b"1", b"3"), NoteChange("b", b"1", b"3")],
            [NoteChange("a", b"1", None), NoteChange("c", b"1", b"3")],
            [NoteChange("c", None, b"3"), NoteChange("a", None, b"3")],
            [NoteChange("c", b"1", None)],
            [NoteChange("a", b"0", b"1")],
        ):
            assert not store.change_notes(DATASET_ID, stale)
            assert store.notes_below(DATASET_ID, "") == before
        change = [NoteChange("a", b"1", b"3"), NoteChange("b", b"2", None), NoteChange("c", None, b"4")]
        assert store.change_notes(DATASET_ID, change)
        assert store.notes_below(DATASET_ID, "") == {"a": b"3", "c": b"4"}
        assert not store.change_notes(DATASET_ID, change)
        assert store.change_notes(DATASET_ID, [])

    def test_of_many_who_change_a_note_each_is_ahead_once(self, store: MetadataStore) -> None:
        def count_up(_: int) -> None:
            while True:
                (note,) = store.notes(DATASET_ID, ["count"])
                if store.change_notes(
                    DATASET_ID, [NoteChange("count", note, b"%d" % (int(note or b"0") + 1))]
                ):
                    return

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(count_up, range(40)))
        assert store.notes(DATASET_ID, ["count"]) == [b"40"]

    def test_an_unknown_dataset_is_not_found(self, store: MetadataStore) -> None:
        preamble, header = pack([Put(b"a", 1)], chunk_id(1), OTHER_ID)
        for ask in (
            lambda: store.dataset("ants"),
            lambda: store.drop_dataset(OTHER_ID),
            lambda: store.reserve_versions(OTHER_ID, 1, NOW_NS),
            lambda: store.apply(OTHER_ID, preamble, header, NOW_NS),
            lambda: store.last_version(OTHER_ID),
            lambda: store.has_chunk(OTHER_ID, chunk_id(1)),
            lambda: store.check_whole(OTHER_ID),
            lambda: store.forget_chunk(OTHER_ID, chunk_id(1)),
            lambda: store.chunks(OTHER_ID),
            lambda: store.newest_chunk_time_s(OTHER_ID, 1000),
            lambda: store.lookup(OTHER_ID, b"a"),
            lambda: store.pending(OTHER_ID, b"a"),
            lambda: store.notes(OTHER_ID, ["a"]),
            lambda: store.notes_below(OTHER_ID, ""),
            lambda: store.change_notes(OTHER_ID, [NoteChange("a", None, b"1")]),
            lambda: store.list_folder(OTHER_ID, b"", b"", 10),
            lambda: store.entry_table(OTHER_ID),
        ):
            with pytest.raises(NotFound):
                ask()

    def test_datasets_do_not_mix(self, store: MetadataStore) -> None:
        store.create_dataset("ants", OTHER_ID)
        apply(store, [Put(b"a", 1, size=3)], chunk_id(1))
        apply(store, [delete(b"a", 9), Put(b"x/y", 9)], chunk_id(1), OTHER_ID)
        assert store.lookup(DATASET_ID, b"a") is not None
        assert store.lookup(OTHER_ID, b"a") is None
        assert [record.path for record in list_all(store, b"")] == [b"a"]
        assert list(table_records(store.entry_table(OTHER_ID))) == [b"x/y"]

    def test_a_dropped_dataset_leaves_nothing(self, store: MetadataStore) -> None:
        apply(store, [Put(b"a/b", 1, size=3), delete(b"c", 2), Put(b"d", 3, size=4, length=2)], chunk_id(1))
        store.drop_dataset(DATASET_ID)
        assert store.datasets() == []
        store.create_dataset(DATASET, DATASET_ID)
        check_against_model(store, {})
        preamble, header = pack([Put(b"c", 1, size=3), Put(b"d", 3, size=4, place=2, length=2)], chunk_id(2))
        store.apply(DATASET_ID, preamble, header, NOW_NS)
        check_against_model(store, {chunk_id(2): header})

    def test_versions_are_reserved_once(self, store: MetadataStore) -> None:
        assert store.last_version(DATASET_ID) == 0
        first = store.reserve_versions(DATASET_ID, 10, NOW_NS)
        assert first == NOW_NS and store.last_version(DATASET_ID) == NOW_NS + 9
        assert store.reserve_versions(DATASET_ID, 1, NOW_NS - 5) == NOW_NS + 10
        assert store.reserve_versions(DATASET_ID, 1, NOW_NS + 1000) == NOW_NS + 1000

    def test_versions_go_on_behind_what_was_applied(self, store: MetadataStore) -> None:
        apply(store, [Put(b"a", NOW_NS + 50)], chunk_id(1))
        assert store.last_version(DATASET_ID) == NOW_NS + 50
        assert store.reserve_versions(DATASET_ID, 1, NOW_NS) == NOW_NS + 51

    def test_versions_end(self, store: MetadataStore) -> None:
        apply(store, [Put(b"a", VERSION_MAX - 1)], chunk_id(1))
        with pytest.raises(InvalidInput):
            store.reserve_versions(DATASET_ID, 2, NOW_NS)
        assert store.reserve_versions(DATASET_ID, 1, NOW_NS) == VERSION_MAX

    def test_versions_are_reserved_once_by_many_threads(self, store: MetadataStore) -> None:
        with ThreadPoolExecutor(4) as threads:
            firsts = list(threads.map(lambda _: store.reserve_versions(DATASET_ID, 3, NOW_NS), range(40)))
        assert sorted(firsts) == list(range(NOW_NS, NOW_NS + 120, 3))

    def test_a_chunk_dies_with_a_generation_also_if_the_clock_steps_back(self, store: MetadataStore) -> None:
        """Else a purge could remove a chunk that a reader of an older generation needs."""
        apply(store, [Put(b"a", 1)], chunk_id(1))
        pinned_ns = store.dataset(DATASET).updated_ns
        preamble, header = pack([delete(b"a", 2)], chunk_id(2))
        store.apply(DATASET_ID, preamble, header, NOW_NS - 3600 * 10**9)
        dead, newer = store.chunks(DATASET_ID)
        assert dead.deleted_entries == 1
        assert pinned_ns < dead.updated_ns == newer.updated_ns == store.dataset(DATASET).updated_ns

    def test_a_chunk_is_applied_once(self, store: MetadataStore) -> None:
        preamble, header = pack([Put(b"a", 1, size=3)], chunk_id(1, time_s=777))
        assert not store.has_chunk(DATASET_ID, chunk_id(1, time_s=777))
        assert store.apply(DATASET_ID, preamble, header, NOW_NS) == 1
        assert store.apply(DATASET_ID, preamble, header, NOW_NS + 1) == 1
        assert store.has_chunk(DATASET_ID, chunk_id(1, time_s=777))
        assert [store.newest_chunk_time_s(DATASET_ID, until_s) for until_s in (776, 777)] == [0, 777]
        assert store.dataset(DATASET).updated_ns == NOW_NS
        (chunk,) = store.chunks(DATASET_ID)
        assert chunk.updated_ns == NOW_NS
        assert (chunk.header_length, chunk.payload_length) == (
            preamble.header_length,
            preamble.payload_length,
        )
        assert chunk.payload_digest == preamble.payload_digest
        assert apply(store, [Put(b"b", 2)], chunk_id(2)) == 2

    def test_an_empty_chunk_is_a_chunk(self, store: MetadataStore) -> None:
        assert apply(store, [], chunk_id(1)) == 1
        check_against_model(store, {chunk_id(1): pack([], chunk_id(1))[1]})

    def test_an_old_put_does_not_bring_a_deleted_path_back(self, store: MetadataStore) -> None:
        apply(store, [delete(b"a", 5)], chunk_id(2))
        apply(store, [Put(b"a", 4)], chunk_id(1))
        assert store.lookup(DATASET_ID, b"a") is None
        apply(store, [Put(b"a", 6)], chunk_id(3))
        assert store.lookup(DATASET_ID, b"a") is not None
        assert [chunk.deleted_entries for chunk in store.chunks(DATASET_ID)] == [1, 1, 0]

    def test_a_file_that_spans_chunks_appears_when_it_is_whole(self, store: MetadataStore) -> None:
        apply(store, [Put(b"big", 1, size=2)], chunk_id(1))
        apply(store, [Put(b"big", 7, size=9, place=5, length=4)], chunk_id(3))
        before = store.lookup(DATASET_ID, b"big")
        assert before is not None and before.size == 2
        assert store.dataset(DATASET).total_bytes == 2
        apply(store, [Put(b"big", 7, size=9, place=0, length=5)], chunk_id(2))
        after = store.lookup(DATASET_ID, b"big")
        assert after is not None and after.size == 9
        assert [(extent.place, extent.chunk_id) for extent in after.extents] == [
            (0, chunk_id(2)),
            (5, chunk_id(3)),
        ]
        assert [chunk.deleted_entries for chunk in store.chunks(DATASET_ID)] == [1, 0, 0]

    def test_a_file_of_which_extents_are_missing_is_pending(self, store: MetadataStore) -> None:
        apply(store, [Put(b"big", 1, size=2)], chunk_id(1))
        assert store.pending(DATASET_ID, b"big") == PendingFile()
        apply(store, [Put(b"big", 5, size=9, place=5, length=4, mtime_ns=7)], chunk_id(2))
        apply(
            store, [Put(b"big", 4, size=8, place=0, length=3), Put(b"big", 5, size=9, length=2)], chunk_id(3)
        )
        pending = store.pending(DATASET_ID, b"big")
        assert (pending.version, pending.size, sorted(pending.extents)) == (5, 9, [(0, 2), (5, 4)])
        _, header = pack(
            [Put(b"big", 5, size=9, length=2), Put(b"big", 5, size=9, place=5, length=4)], chunk_id(2)
        )
        assert [pending.extents[place] for place in [(0, 2), (5, 4)]] == header.digests.tolist()
        apply(store, [Put(b"big", 5, size=9, place=2, length=3)], chunk_id(4))
        assert _record(store, b"big").size == 9
        assert store.pending(DATASET_ID, b"big") == PendingFile()
        apply(store, [Put(b"big", 6, size=9, place=2, length=3)], chunk_id(5))
        assert store.pending(DATASET_ID, b"big").version == 6
        apply(store, [delete(b"big", 7)], chunk_id(6))
        assert store.pending(DATASET_ID, b"big") == PendingFile()

    def test_copies_of_purge_take_over(self, store: MetadataStore) -> None:
        entries = [
            Put(b"a", 1, size=3),
            delete(b"b", 2),
            Put(b"c", 3, size=4, length=2),
            Put(b"c", 3, size=4, place=2, length=2),
        ]
        apply(store, [*entries, Put(b"x", 4)], chunk_id(1))
        apply(store, [delete(b"x", 5)], chunk_id(2))
        apply(store, entries, chunk_id(3))
        assert [deleted_entries(chunk) for chunk in store.chunks(DATASET_ID)] == [[0, 1, 2, 3, 4], [], []]
        assert {
            extent.chunk_id
            for record in table_records(store.entry_table(DATASET_ID)).values()
            for extent in record.extents
        } == {chunk_id(3)}
        apply(store, entries, chunk_id(0))  # a copy in an older chunk is none
        assert deleted_entries(store.chunks(DATASET_ID)[0]) == [0, 1, 2, 3]

    def test_a_dead_chunk_can_be_forgotten(self, store: MetadataStore) -> None:
        apply(store, [Put(b"a", 1, size=3)], chunk_id(1))
        with pytest.raises(InvalidInput, match="1 entries"):
            store.forget_chunk(DATASET_ID, chunk_id(1))
        apply(store, [Put(b"a", 2, size=4)], chunk_id(2))
        for _ in range(2):
            store.forget_chunk(DATASET_ID, chunk_id(1))
        assert not store.has_chunk(DATASET_ID, chunk_id(1))
        dataset = store.dataset(DATASET)
        assert (dataset.chunks, dataset.files, dataset.total_bytes) == (1, 1, 4)
        assert [extent.chunk_id for extent in _record(store, b"a").extents] == [chunk_id(2)]

    def test_a_folder_is_listed_page_by_page(self, store: MetadataStore) -> None:
        names = [b"f%03d" % number for number in range(50)]
        apply(store, [Put(b"d/" + name, 1 + i) for i, name in enumerate(names)], chunk_id(1))
        apply(
            store,
            [Put(b"d/f010x/y/z", 100), Put(b"d/f020", 101, Op.DIRECTORY), Put(b"d/f020/y", 102)],
            chunk_id(2),
        )
        listed = list_all(store, b"d", limit=7)
        assert [record.path for record in listed] == sorted(b"d/" + name for name in [*names, b"f010x"])
        assert [record.path for record in listed if record.op == Op.DIRECTORY] == [b"d/f010x", b"d/f020"]
        assert [record.path for record in list_all(store, b"")] == [b"d"]
        apply(store, [delete(b"d/f010x/y/z", 200)], chunk_id(3))
        assert b"d/f010x" not in [record.path for record in list_all(store, b"d")]
        assert list_all(store, b"d/f010x") == []

    def test_a_snapshot_is_built_from_the_table(self, store: MetadataStore) -> None:
        apply(
            store,
            [
                Put(b"", 1, Op.DIRECTORY, mode=0o711),
                Put(b"d/f", 2, size=9, place=0, length=5),
                Put(b"l", 3, Op.SYMLINK, target=b"d/f"),
                Put(b"e", 4),
            ],
            chunk_id(1),
        )
        apply(store, [Put(b"d/f", 2, size=9, place=5, length=4)], chunk_id(2))
        snapshot = Snapshot(build_snapshot(store.entry_table(DATASET_ID)), "snapshot")
        snapshot.verify()
        file = snapshot.find(b"d/f")
        assert [extent.length for extent in snapshot.extents(file)] == [5, 4]
        assert snapshot.stat(file).size == 9

    def test_blocks_of_entries_make_the_snapshot_of_the_table(self, store: MetadataStore) -> None:
        """With folders of their own or not, links, and files that span chunks in several folders."""
        spanning = [Put(b"%b/s" % folder, 1, size=9, length=5) for folder in (b"a", b"b/c", b"d")]
        others = [Put(b"%b/f%d" % (folder, i), 2) for folder in (b"a", b"a-", b"b/c") for i in range(5)]
        links = [
            Put(b"%b/l%d" % (folder, i), 3, Op.SYMLINK, target=b"t")
            for folder in (b"a", b"d")
            for i in (0, 1)
        ]
        folders = [Put(path, 4, Op.DIRECTORY) for path in (b"", b"a", b"b/c/empty")]
        apply(store, [*spanning, *others, *links, *folders], chunk_id(1))
        apply(store, [replace(put, place=5, length=4) for put in spanning], chunk_id(2))
        file = BytesIO()
        store.read_entries(DATASET_ID, SnapshotBuilder).write(file)
        assert file.getvalue() == build_snapshot(store.entry_table(DATASET_ID))
        snapshot = Snapshot(file.getvalue(), "snapshot")
        snapshot.verify()
        assert (snapshot.header.files, snapshot.header.links, snapshot.header.extents) == (18, 4, 6)

    def test_it_keeps_what_it_was_told_while_many_apply(self, store: MetadataStore) -> None:
        chunks = {
            chunk_id(number): pack(
                [Put(b"d%d/f%d" % (i % 3, i), 1 + (number * 7 + i) % 40, size=i % 5) for i in range(30)],
                chunk_id(number),
            )
            for number in range(16)
        }
        with ThreadPoolExecutor(4) as threads:
            generations = list(
                threads.map(
                    lambda chunk: store.apply(DATASET_ID, chunk[0], chunk[1], NOW_NS),
                    [*chunks.values(), *chunks.values()],
                )
            )
            tables = list(threads.map(lambda _: store.entry_table(DATASET_ID), range(4)))
        assert set(range(1, 17)) <= set(generations)
        headers = {identity: header for identity, (_, header) in chunks.items()}
        model = MetadataModel(headers)
        expected = {path: record._replace(version=0) for path, record in model.records.items()}
        assert all(table_records(table) == expected for table in tables)
        assert store.dataset(DATASET).total_bytes == model.total_bytes

    def test_it_is_of_no_use_when_closed(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.close()
        store.close()
        for ask in (store.datasets, lambda: store.create_dataset(DATASET, DATASET_ID)):
            with pytest.raises(Unavailable):
                ask()

    def test_a_refused_apply_changes_nothing(self, store: MetadataStore) -> None:
        preamble, header = pack([Put(b"a", 1, size=3), Put(b"b", 2)], chunk_id(1))
        broken = replace(header, versions=header.versions[:1])  # as no decoder would give it
        with pytest.raises((DieselfsError, ValueError, IndexError)):
            store.apply(DATASET_ID, preamble, broken, NOW_NS)
        check_against_model(store, {})
        store.apply(DATASET_ID, preamble, header, NOW_NS)
        check_against_model(store, {chunk_id(1): header})

    @pytest.mark.parametrize("scenario", SCENARIOS)
    def test_every_order_gives_what_the_rule_says(self, scenario: str, tmp_path: Path) -> None:
        packed = {
            chunk_id(number): pack(puts, chunk_id(number)) for number, puts in enumerate(SCENARIOS[scenario])
        }
        with closing(self.make_store(tmp_path)) as store:
            for order in permutations(packed):
                store.create_dataset(DATASET, DATASET_ID)
                for applied in range(1, len(order) + 1):
                    preamble, header = packed[order[applied - 1]]
                    store.apply(DATASET_ID, preamble, header, NOW_NS)
                    check_against_model(
                        store, {identity: packed[identity][1] for identity in order[:applied]}
                    )
                store.drop_dataset(DATASET_ID)

    @_model_settings
    @given(chunks=CHUNKS, data=st.data())
    def test_any_order_gives_what_the_rule_says(self, chunks: list[list[Put]], data: st.DataObject) -> None:
        self._check_any_order(chunks, data)

    @_model_settings
    @given(chunks=cut_files(), data=st.data())
    def test_extents_in_any_order_give_what_the_rule_says(
        self, chunks: list[list[Put]], data: st.DataObject
    ) -> None:
        self._check_any_order(chunks, data)

    def _check_any_order(self, chunks: list[list[Put]], data: st.DataObject) -> None:
        packed = {chunk_id(number): pack(puts, chunk_id(number)) for number, puts in enumerate(chunks)}
        order = data.draw(st.permutations(list(packed)))
        repeats = data.draw(st.lists(st.sampled_from(order), max_size=3))
        applied: dict[bytes, ChunkHeader] = {}
        with tempfile.TemporaryDirectory() as folder, closing(self.make_store(Path(folder))) as store:
            store.create_dataset(DATASET, DATASET_ID)
            for identity in [*order, *repeats]:
                preamble, header = packed[identity]
                applied[identity] = header
                assert store.apply(DATASET_ID, preamble, header, NOW_NS) == len(applied)
                check_against_model(store, applied)


def _record(store: MetadataStore, path: bytes) -> FileRecord:
    record = store.lookup(DATASET_ID, path)
    assert record is not None
    return record
