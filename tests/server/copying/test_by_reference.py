"""Copies that refer to chunks: what they store, and that no purge, drop or crash takes their bytes away."""

import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import PREAMBLE_BYTES, decode_preamble
from dieselfs.chunk.frames import Frames
from dieselfs.chunk.ids import ChunkIdSource, chunk_name
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import AccessDenied, Damaged, NotFound, Unavailable
from dieselfs.rpc.messages import thrift
from dieselfs.rpc.records import FsckReport
from dieselfs.shuffle.strata import strata_of_classes
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.call import Call
from dieselfs_server.datasets.commit import any_chunk, catch_up_dataset, read_chunk, read_header
from dieselfs_server.datasets.references import References
from dieselfs_server.datasets.referring_copy import is_covered
from dieselfs_server.leases.lease import live_pins, remove_pin
from dieselfs_server.maintenance.jobs import Proceed
from dieselfs_server.maintenance.repack import repack
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.reading.executor import open_payload
from dieselfs_server.store.attached import AttachedStore, Sources
from dieselfs_server.store.bundled import BundledStore
from dieselfs_server.store.compressed import CompressedStore
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.wrapper import MARKER_RECORD, open_marked
from tests.support.own_service import TRUSTED, call, parts_of
from tests.support.referring_world import FILES, World, copied

DAY_S = 24 * 3600


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dieselfs_server.datasets.referring_copy.REFERENCE_BYTES_MIN", 1)


@pytest.fixture
def world(tmp_path: Path, metadata: MetadataStore) -> World:
    return World(tmp_path, metadata, MemoryStore())


def test_a_copy_stores_headers_and_outlives_its_source(world: World) -> None:
    world.copy("a", b"d", "b", b"d")
    assert world.contents("b") == copied()
    assert world.stored_bytes("b") < 3000 < world.stored_bytes("a")
    (usage,) = world.metadata.usage(["b"])
    assert usage is not None and usage.stored_bytes > sum(map(len, FILES.values()))
    world.remove("a")
    report = world.purge("a")
    assert report.chunks_removed == 0
    assert report.held_by == ("copies without bytes of their own in 1 dataset",)
    assert world.contents("b") == copied()
    world.remove("b")
    world.purge("b")
    assert world.purge("a").chunks_removed == 2 and world.records() == []


def test_a_move_refers_too_and_a_second_one_names_the_chunk_with_the_bytes(world: World) -> None:
    chunks = set(world.chunks("a"))
    world.copy("a", b"d", "a", b"e", is_move=True)
    world.purge("a")
    world.copy("a", b"e", "a", b"f", is_move=True)
    world.purge("a")
    assert world.contents("a") == copied(b"f") and chunks < set(world.chunks("a"))
    assert {chunk_id for _, chunk_id in world.references("a")} == chunks


def test_only_whole_payloads_are_referred_to(world: World) -> None:
    """A reader of the copy could read the rest, and deleted files would stay in it."""
    world.copy("a", b"d/x/f0", "b", b"one")
    world.copy("a", b"d/y", "c", b"y")
    assert world.contents("b") == {b"one": FILES[b"d/x/f0"]}
    assert world.references("b") == [] and len(world.references("c")) == 1
    world.remove("c", b"y/f0")
    world.purge("c")
    world.purge("c")
    assert all(read_header(world.store, world.id("c"), each)[1].source is None for each in world.chunks("c"))
    assert world.contents("c") == {b"y/f1": FILES[b"d/y/f1"], b"y/f2": FILES[b"d/y/f2"]}


def test_a_purge_leaves_a_chunk_with_holes_while_it_is_referred_to(world: World) -> None:
    world.copy("a", b"d/x", "b", b"x")
    world.remove("a", b"d/x/f0")
    report = world.purge("a")
    assert (report.chunks_rewritten, report.chunks_waiting) == (0, 1)
    world.remove("b")
    world.purge("b")
    assert world.purge("a").chunks_rewritten == 1


def test_a_dropped_dataset_leaves_what_others_refer_to_until_they_are_gone(world: World) -> None:
    world.copy("a", b"d/x", "b", b"x")
    dataset_id = world.id("a")
    call(world.service, "drop_dataset", name="a", dataset_id=dataset_id)
    assert len(list(world.objects.list_chunks(dataset_id))) == 1
    assert call(world.service, "list_lost_datasets") == []
    call(world.service, "create_dataset", name="a")
    world.copy("b", b"x", "c", b"x")
    call(world.service, "drop_dataset", name="b", dataset_id=world.id("b"))
    assert world.contents("c") == copied(b"x", b"d/x")
    world.remove("c")
    world.purge("c")
    assert list(world.objects.list_chunks(dataset_id)) == [] and world.records() == []


def test_references_are_found_again_in_the_headers_alone(world: World) -> None:
    world.copy("a", b"d", "b", b"d")
    for name in world.records():
        world.objects.delete_record(name)
    checked = call(world.service, "fsck", dataset="b", is_deep=False, is_repair=False)
    assert isinstance(checked, FsckReport) and "no record" in checked.problems[0].what
    for name in "ba":
        call(world.service, "rebuild", dataset=name, since_s=-1, is_forced=False)
    world.remove("a")
    world.purge("a")
    assert world.contents("b") == copied()
    checked = call(world.service, "fsck", dataset="b", is_deep=True, is_repair=False)
    assert checked.problems == ()


def test_a_rebuild_forgets_files_whose_chunks_are_gone_only_if_it_is_forced(world: World) -> None:
    world.copy("a", b"d/x", "b", b"x")
    world.copy("a", b"d/y", "b", b"y")
    ((_, source), _) = world.references("b")
    world.objects.delete(world.id("a"), source)
    with pytest.raises(Damaged, match="1 of 4 chunks with files of b are damaged"):
        call(world.service, "rebuild", dataset="b", since_s=-1, is_forced=False)
    assert len(world.contents("b", is_read=False)) == len(FILES)
    report = call(world.service, "rebuild", dataset="b", since_s=-1, is_forced=True)
    assert report.chunks == 3 and len(report.damaged) == 1
    assert catch_up_dataset(world.store, world.metadata, world.metadata.dataset("b"), 1, 0) == (0, None)
    found = world.contents("b")
    assert len(found) == len(FILES) // 2 and set(found.values()) < set(FILES.values())


def test_a_store_with_references_keeps_servers_from_before_them_out(world: World) -> None:
    """They know the format 1 alone, and compare it before each change."""
    world.objects.put_record(MARKER_RECORD, b'{"format": 1, "id": "x"}')
    world.copy("a", b"d/x/f0", "b", b"one")
    assert world.objects.get_record(MARKER_RECORD) == b'{"format": 1, "id": "x"}'
    dataset_id, (chunk_id, _) = world.id("a"), world.chunks("a")
    for before in (1, 2):
        world.objects.put_record(MARKER_RECORD, b'{"format": %d, "id": "x"}' % before)
        References(world.objects).record(dataset_id, {dataset_id: [(bytes(16), chunk_id)]}, 0)
        assert world.objects.get_record(MARKER_RECORD) == b'{"format": 3, "id": "x"}'
    assert open_marked(world.objects, "memory:", is_new=False).get_record("other") is None


def test_of_two_first_copies_none_lowers_the_format(tmp_path: Path) -> None:
    """The one stores a reference alone, the other one a bundle at any step of it."""

    def prepare(world: World) -> None:
        world.objects.put_record(MARKER_RECORD, b'{"format": 1, "id": "x"}')

    def one(world: World) -> None:
        world.copy("a", b"d/x", "b", b"x")

    for number in range(1, 1 + steps_of(tmp_path, prepare, one)):
        world, store = stepped(tmp_path, number, prepare)
        store.act, store.calls = partial(world.copy, "a", b"d", "c", b"d"), 0
        one(world)
        assert world.objects.get_record(MARKER_RECORD) == b'{"format": 3, "id": "x"}'
        world.metadata.close()


def test_a_copy_without_bytes_is_repacked_as_any_dataset(world: World) -> None:
    world.copy("a", b"d", "b", b"d")
    snapshot = Snapshot(build_snapshot(world.metadata.entry_table(world.id("b"))), "b")
    strata = strata_of_classes(snapshot, "^d/([xy])").astype("<u2").tobytes()
    record = world.metadata.dataset("b")
    stores, options = (world.store, world.metadata, record), (any_chunk, lambda _bytes: None, Proceed())
    report = repack(*stores, snapshot, strata, 1, 3000, time.time_ns, False, *options)
    assert (report.chunks, report.files) == (2, len(FILES))
    world.purge("b")
    assert world.references("b") == [] and world.contents("b") == copied()


def test_fsck_names_both_chunks_of_a_lost_payload(world: World) -> None:
    world.copy("a", b"d/x", "b", b"x")
    ((reference, source),) = world.references("b")
    world.objects.delete(world.id("a"), source)
    checked = call(world.service, "fsck", dataset="b", is_deep=False, is_repair=False)
    texts = [problem.what for problem in checked.problems]
    assert any(chunk_name(source) in text and chunk_name(reference) in text for text in texts)
    with pytest.raises(Damaged, match=f"chunk {chunk_name(reference)}, which refers to chunk "):
        world.contents("b")


def test_a_client_cannot_store_a_reference(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (chunk_id, _), dataset_id = world.chunks("a"), world.id("a")
    preamble = decode_preamble(world.objects.get_range(dataset_id, chunk_id, 0, PREAMBLE_BYTES), "chunk")
    length, digest = preamble.payload_length, preamble.payload_digest
    source = AttachedSource.of_chunk(dataset_id, chunk_id, preamble.payload_start, length, digest)
    builder = ChunkBuilder()
    builder.add_extent(b"stolen", 0o644, 5, length, 0, 0, length, bytes(16))
    made = ChunkIdSource(time.time).next()
    data = b"".join(builder.seal(source=source).encode(made, "b", world.id("b"), 1))
    monkeypatch.setattr(parts_of(world.service, "put_chunk").sources, "roots", None)
    with pytest.raises(AccessDenied, match="only servers make chunks that refer to others"):
        trio.run(
            parts_of(world.service, "put_chunk").put_chunk,
            Call(
                world.service.access,
                TRUSTED,
                "put_chunk",
                thrift.put_chunk_args(dataset="b", chunk_id=made, bulk_length=len(data)),
                data,
            ),
        )
    assert world.chunks("b") == []


class SteppedStore(MemoryStore):
    """Calls `act` once, before the call with this number; `calls` counts them."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        super().__init__()
        self.number, self.act, self.calls = number, act, -1

    def step(self) -> None:
        if self.calls < 0:
            return
        self.calls += 1
        if self.calls == self.number:
            self.calls, act = -(10**6), self.act
            act()
            self.calls = self.number

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in STEPS:

            def stepped(*arguments: Any) -> Any:
                self.step()
                return found(*arguments)

            return stepped
        return found


STEPS = {"put", "get_range", "size", "delete", "list_chunks", "delete_dataset"}
STEPS |= {"put_record", "get_record", "delete_record", "list_records"}


class Killed(BaseException):
    """The process ends just here."""


def steps_of(folder: Path, prepare: Callable[[World], object], run: Callable[[World], object]) -> int:
    with closing(SqliteMetadata(":memory:")) as metadata:
        store = SteppedStore(0, lambda: None)
        world = World(folder, metadata, store)
        prepare(world)
        store.number, store.calls = -1, 0
        run(world)
        return store.calls


def stepped(folder: Path, number: int, prepare: Callable[[World], object]) -> tuple[World, SteppedStore]:
    store = SteppedStore(0, lambda: None)
    world = World(folder, SqliteMetadata(":memory:"), store)
    prepare(world)
    store.number = number
    return world, store


def erase(world: World) -> None:
    """What other servers do: a tag is removed, and the files of it are purged. A loss of metadata has taken the pin of
    the copy.
    """
    for pin in live_pins(world.metadata, world.id("a"), time.time_ns()):
        remove_pin(world.metadata, world.id("a"), pin.holder)
    with suppress(NotFound):
        call(world.service, "delete_tag", dataset="a", tag="t")
    world.purge("a")


def tagged(world: World) -> None:
    call(world.service, "put_tag", dataset="a", tag="t", generation=0)
    world.remove("a")


def copy_tag(world: World) -> None:
    world.copy("a", b"d", "b", b"d", tag="t")


def test_a_purge_at_any_step_of_a_copy_takes_nothing_that_it_has_stored(tmp_path: Path) -> None:
    ends = set()
    for number in range(1, 1 + steps_of(tmp_path, tagged, copy_tag)):
        world, store = stepped(tmp_path, number, tagged)
        store.act = partial(erase, world)
        store.calls = 0
        with suppress(NotFound, Damaged):
            copy_tag(world)
            assert world.contents("b") == copied()
        ends.add(len(world.contents("b")))  # and all of them can be read
        world.metadata.close()
    assert ends == {0, len(FILES)}


def test_a_copy_at_any_step_of_a_purge_or_a_drop_keeps_its_bytes(tmp_path: Path) -> None:
    def drop(world: World) -> None:
        call(world.service, "drop_dataset", name="a", dataset_id=world.id("a"))

    for prepare, run, tag in ((tagged, erase, "t"), (lambda _: None, drop, "")):
        for number in range(1, 1 + steps_of(tmp_path, prepare, run)):
            world, store = stepped(tmp_path, number, prepare)

            def copy(world: World = world, tag: str = tag) -> None:
                with suppress(NotFound, Damaged):
                    world.copy("a", b"d", "b", b"d", tag=tag)

            store.act, store.calls = copy, 0
            run(world)
            assert world.contents("b") in ({}, copied())
            world.metadata.close()


@pytest.mark.parametrize("end", [Killed, Unavailable])
def test_a_copy_that_ends_at_any_step_holds_its_bytes_for_a_day_and_goes_on(
    tmp_path: Path, end: type[BaseException]
) -> None:
    """Also if its store fails for a moment: what it does then takes nothing away that is stored."""

    def die() -> None:
        raise end

    def copy(world: World) -> None:
        world.copy("a", b"d", "b", b"d", is_merged=True)

    for number in range(1, 1 + steps_of(tmp_path, lambda _: None, copy)):
        world, store = stepped(tmp_path, number, lambda _: None)
        store.act, store.calls = die, 0
        with pytest.raises((end, BaseExceptionGroup)):
            copy(world)
        store.calls = -1
        call(world.service, "rebuild", dataset="b", since_s=-1, is_forced=False)
        world.remove("a", b"d/y")
        world.purge("a", 3 * DAY_S)
        found = world.contents("b")
        assert found == {path: FILES[path] for path in found}
        copy(world)
        assert world.contents("b") == found | copied(b"d/x", b"d/x")
        world.metadata.close()


@pytest.mark.parametrize(
    ("extents", "is_whole"),
    [
        ([(0, 4), (4, 6)], True),
        ([(4, 6), (0, 4), (0, 4)], True),
        ([(0, 10), (2, 3)], True),
        ([(1, 9)], False),
        ([(0, 9)], False),
        ([(0, 4), (5, 5)], False),
        ([(0, 2), (0, 3), (4, 6)], False),
    ],
)
def test_whether_extents_cover_a_payload(extents: list[tuple[int, int]], is_whole: bool) -> None:
    columns = np.array(extents, np.int64)
    assert is_covered(columns[:, 0], columns[:, 1], 10) == is_whole


def test_a_copy_refers_to_a_compressed_chunk_and_reads_plain_bytes(world: World) -> None:
    text = {b"t/%d" % number: b"line %d\n" % number * 900 for number in range(3)}
    writer = world.writer("b")
    writer.compress_as(Frames(np.array([1]), np.array([1]), b"", 3, bytes(32)))
    for path, content in text.items():
        writer.builder.add_file(path, content, 0o640, 5)
    writer.write()
    world.store = AttachedStore(CompressedStore(BundledStore(world.objects)), Sources())
    world.copy("b", b"t", "c", b"t")
    ((copied, source),) = world.references("c")
    assert world.contents("c") == text
    assert world.stored_bytes("c") < sum(map(len, text.values()))
    assert open_payload(world.store, world.id("c"), copied, Sources()) is None, (
        "the file of its source has frames"
    )
    whole = read_chunk(world.store, world.id("c"), copied)[2]
    assert bytes(whole) == bytes(read_chunk(world.store, world.id("b"), source)[2])
