"""References that clients ask for in one dataset: what is refused, and that no purge takes their bytes away."""

import os
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import PREAMBLE_BYTES, decode_preamble, decode_stored
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import Damaged, InvalidInput, NotFound, StorageFull
from dieselfs.records import Extent
from dieselfs.rpc.messages import thrift
from dieselfs_server.access.accounts import with_quota
from dieselfs_server.call import Call
from dieselfs_server.datasets import references
from dieselfs_server.datasets.commit import catch_up_dataset, read_header
from dieselfs_server.datasets.own_reference import read_bytes
from dieselfs_server.maintenance.purge import _covered_bytes
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.memory import MemoryStore
from tests.server.copying.test_by_reference import DAY_S, Killed, stepped, steps_of
from tests.support.own_service import TRUSTED, call, parts_of
from tests.support.referring_world import FILES, World, copied


@pytest.fixture
def world(tmp_path: Path, metadata: MetadataStore) -> World:
    return World(tmp_path, metadata, MemoryStore())


def extent_of(world: World, path: bytes, dataset: str = "a") -> Extent:
    record = world.metadata.lookup(world.id(dataset), path)
    assert record is not None
    return record.extents[0]


def asked(
    world: World, extents: Sequence[tuple[bytes, Extent]], digest: bytes | None = None, dataset: str = "a"
) -> tuple[bytes, bytes]:
    """A chunk that refers to these extents of one chunk, under new paths, as a client makes it, with its ID."""
    builder, chunk_id = ChunkBuilder(), extents[0][1].chunk_id
    start = min(extent.offset for _, extent in extents)
    end = max(extent.offset + extent.length for _, extent in extents)
    for path, extent in extents:
        place = extent.offset - start, extent.length, digest or extent.digest
        builder.add_extent(path, 0o600, 7, extent.length, 0, *place)
    head = decode_preamble(world.objects.get_range(world.id(dataset), chunk_id, 0, PREAMBLE_BYTES), "chunk")
    source = AttachedSource.of_chunk(world.id(dataset), chunk_id, start, end - start, head.payload_digest)
    made, first = (
        ChunkIdSource(time.time).next(),
        world.metadata.reserve_versions(world.id(dataset), 9, time.time_ns()),
    )
    return made, b"".join(builder.seal(source=source).encode(made, dataset, world.id(dataset), first))


def put(world: World, chunk: tuple[bytes, bytes], dataset: str = "a") -> None:
    chunk_id, data = chunk
    handler = parts_of(world.service, "put_chunk").put_chunk
    named = thrift.put_chunk_args(dataset=dataset, chunk_id=chunk_id, bulk_length=len(data))
    trio.run(handler, Call(world.service.access, TRUSTED, "put_chunk", named, data))


def refer(world: World, paths: dict[bytes, bytes], dataset: str = "a") -> None:
    """Store the files `paths` again, under new paths."""
    extents = [(new, extent_of(world, old, dataset)) for old, new in paths.items()]
    put(world, asked(world, extents, dataset=dataset), dataset)


TWO = {b"d/x/f0": b"e/f0", b"d/x/f2": b"e/f2"}


def again(*paths: bytes) -> dict[bytes, bytes]:
    return {new: FILES[old] for old, new in TWO.items() if not paths or new in paths}


def payloads(world: World) -> list[int]:
    """Lengths; without chunks of deletions alone."""
    heads = (read_header(world.store, world.id("a"), each)[0] for each in world.chunks("a"))
    return sorted(head.payload_length for head in heads if head.payload_length)


def test_a_reference_has_a_range_of_a_payload_and_needs_no_attach_roots(world: World) -> None:
    refer(world, TWO)
    assert world.contents("a") == copied() | again()
    ((reference, source),) = world.references("a")
    assert source == extent_of(world, b"d/x/f0").chunk_id != reference
    assert read_header(world.store, world.id("a"), reference)[0].payload_length == 3 * 700
    refer(world, {b"e/f2": b"third"})
    assert {source for _, source in world.references("a")} == {source}, "a read follows one reference"
    assert world.contents("a")[b"third"] == FILES[b"d/x/f2"]
    sizes = sorted(world.objects.size(world.id("a"), each) for each, _ in world.references("a"))
    assert sizes[-1] < 1500
    checked = call(world.service, "fsck", dataset="a", is_deep=True, is_repair=False)
    assert checked.problems == ()


def test_a_client_gets_only_extents_that_the_chunk_has_for_files(world: World) -> None:
    extent = extent_of(world, b"d/x/f1")
    half = extent._replace(length=350)
    for wrong, digest in ((half, None), (extent, bytes(16)), (extent_of(world, b"d/y/f1"), extent.digest)):
        with pytest.raises(InvalidInput, match="has not all of its extents"):
            put(world, asked(world, [(b"stolen", wrong)], digest))
    chunk_id, data = asked(world, [(b"stolen", extent)])
    other = asked(world, [(b"stolen", extent_of(world, b"d/y/f1"))])[1]
    world.objects.delete(world.id("a"), extent.chunk_id)
    with pytest.raises(NotFound):
        put(world, (chunk_id, data))
    assert decode_preamble(other[:PREAMBLE_BYTES], "chunk").payload_length == 700
    assert world.records() == [] and len(world.chunks("a")) == 1


def test_wrong_bytes_of_a_part_become_no_reference(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may give them once; the client has the right ones."""
    chunk = asked(world, [(b"new", extent_of(world, b"d/x/f1"))])
    read = world.objects.get_range

    def wrong(dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        content = read(dataset_id, chunk_id, offset, length)
        return bytes(700) if length == 700 else content

    monkeypatch.setattr(world.objects, "get_range", wrong)
    with pytest.raises(Damaged, match="digest of 'new' does not match"):
        put(world, chunk)
    assert world.records() == [] and len(world.chunks("a")) == 2


def test_a_copy_of_a_part_of_a_payload_has_its_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dieselfs_server.datasets.referring_copy.REFERENCE_BYTES_MIN", 1)
    refer(world, {b"d/x/f0": b"e/f0", b"d/x/f1": b"e/f1"})
    world.copy("a", b"e", "b", b"e")
    assert world.references("b") == []
    refer(world, {path: b"g/" + path[-2:] for path in FILES if b"/y/" in path})
    world.copy("a", b"g", "b", b"g")
    assert len(world.references("b")) == 1
    assert world.contents("b") == {
        b"e/f0": FILES[b"d/x/f0"],
        b"e/f1": FILES[b"d/x/f1"],
        **copied(b"g", b"d/y"),
    }


def test_a_part_of_a_chunk_of_another_dataset_is_copied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all of its bytes would stay there for the sake of the part."""
    monkeypatch.setattr("dieselfs_server.datasets.referring_copy.REFERENCE_BYTES_MIN", 1)
    world.copy("a", b"d/x", "b", b"x")
    refer(world, {b"x/f0": b"first"}, "b")
    refer(world, {b"x/f0": b"second", b"x/f2": b"third"}, "b")
    assert len(world.references("b")) == 1
    gap = world.read("b", extent_of(world, b"third", "b").chunk_id, 700, 700)
    assert gap == bytes(700), "what is between belongs to another file, which may be deleted"
    refer(world, {path[2:]: b"e" + path[3:] for path in FILES if b"/x/" in path}, "b")
    assert len(world.references("b")) == 2
    assert world.contents("b") == {
        **copied(b"x", b"d/x"),
        **copied(b"e", b"d/x"),
        b"first": FILES[b"d/x/f0"],
        b"second": FILES[b"d/x/f0"],
        b"third": FILES[b"d/x/f2"],
    }


def test_a_group_stays_while_all_bytes_count_and_is_then_rewritten_as_one(world: World) -> None:
    refer(world, TWO)
    world.remove("a", b"d/x/f0")
    world.remove("a", b"e/f2")
    chunks = world.chunks("a")
    for _ in range(3):
        report = world.purge("a")
        assert (report.chunks_rewritten, report.chunks_waiting, report.chunks_removed) == (0, 0, 0)
    assert world.chunks("a") == chunks
    world.remove("a", b"d/x/f1")
    assert world.purge("a").chunks_rewritten == 2
    for _ in range(3):
        world.purge("a")
    assert world.contents("a") == {
        **copied(b"d/y", b"d/y"),
        **again(b"e/f0"),
        b"d/x/f2": FILES[b"d/x/f2"],
    }
    assert world.references("a") == [] and world.records() == []
    assert payloads(world) == [2 * 700, 3 * 700]


def test_equal_files_share_their_bytes_after_a_purge_too(world: World) -> None:
    refer(world, TWO)
    world.remove("a", b"d/x/f1")
    for _ in range(4):
        world.purge("a")
    assert world.contents("a").items() >= again().items()
    assert payloads(world) == [2 * 700, 3 * 700]


def test_tags_and_copies_hold_a_group(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dieselfs_server.datasets.referring_copy.REFERENCE_BYTES_MIN", 1)
    refer(world, TWO)
    world.copy("a", b"d/x", "b", b"x")
    world.remove("a", b"d/x")
    assert world.purge("a").chunks_rewritten == 0
    world.remove("b")
    world.purge("b")
    call(world.service, "put_tag", dataset="a", tag="t", generation=0)
    assert world.purge("a").chunks_rewritten == 0
    call(world.service, "delete_tag", dataset="a", tag="t")
    assert world.purge("a").chunks_rewritten == 1
    for _ in range(3):
        world.purge("a")
    assert world.contents("a") == copied(b"d/y", b"d/y") | again() and world.references("a") == []


def test_bytes_of_a_foreign_source_are_copied(world: World, tmp_path: Path) -> None:
    content = os.urandom(3000)
    (tmp_path / "source").write_bytes(content)
    handlers = parts_of(world.service, "put_chunk")
    handlers.sources.roots = None
    status = (tmp_path / "source").stat()
    source = AttachedSource(os.fsencode(tmp_path / "source"), 3000, f"mtime_ns={status.st_mtime_ns}", 0)
    builder = ChunkBuilder()
    builder.add_file(b"attached", memoryview(content)[500:1500], 0o600, 7, offset=500)
    made, first = (
        ChunkIdSource(time.time).next(),
        world.metadata.reserve_versions(world.id("a"), 1, time.time_ns()),
    )
    put(world, (made, b"".join(builder.seal(content, source).encode(made, "a", world.id("a"), first))))
    chunk_id, data = asked(world, [(b"own", extent_of(world, b"attached"))])
    chunk = decode_stored(data, "chunk", chunk_id, world.id("a"))
    assert read_bytes(world.store, world.id("a"), *chunk) > 3000, "the first read compares all of the source"
    put(world, (chunk_id, data))
    (tmp_path / "source").unlink()
    assert world.read("a", *extent_of(world, b"own")[1:4]) == content[500:1500]
    assert world.references("a") == []


def test_a_put_that_a_quota_refuses_holds_no_chunk(world: World) -> None:
    world.service.users.change(lambda accounts: with_quota(accounts, "dataset:a", {"stored_bytes": 1}))
    with pytest.raises(StorageFull, match="over quota"):
        refer(world, TWO)
    assert world.records() == []


def test_what_is_read_of_a_target_is_bounded_by_the_references_to_it() -> None:
    chunk_id, target_id, ids = bytes(16), bytes(15) + b"t", ChunkIdSource(lambda: 1_800_000_000)
    made, chunks = [ids.next() for _ in range(3)], 100_000

    class Large(MemoryStore):
        def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
            yield from made[:2]
            for _ in range(chunks):
                yield ids.next()

    store = Large()
    references.References(store).record(target_id, {bytes(16): [(each, chunk_id) for each in made]}, 0)
    tracemalloc.start()
    try:
        assert references.References(store).to(bytes(16), 0) == {chunk_id: {target_id}}
        assert tracemalloc.get_traced_memory()[1] < 10 * chunks
    finally:
        tracemalloc.stop()


def test_many_small_records_become_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "RECORDS_MAX", 4)
    for number in range(6):
        refer(world, {b"d/x/f0": b"e/%d" % number})
    assert len(world.records()) == 6
    world.remove("a", b"d/y")
    world.purge("a")
    assert len(world.records()) == 1
    world.remove("a", b"d/x")
    world.remove("a", b"e/0")
    for _ in range(2):
        world.purge("a")
    assert set(world.contents("a").values()) == {FILES[b"d/x/f0"]}


def test_references_are_rebuilt_from_the_headers(world: World) -> None:
    refer(world, TWO)
    for name in world.records():
        world.objects.delete_record(name)
    call(world.service, "rebuild", dataset="a", since_s=-1, is_forced=False)
    world.remove("a", b"d")
    for _ in range(4):
        world.purge("a")
    assert world.contents("a") == again()


def referred(world: World) -> None:
    """Of a client that has a snapshot from before the files were deleted."""
    put(world, world.chunk)


def dead(world: World) -> None:
    extents = [(new, extent_of(world, old)) for old, new in TWO.items()]
    world.chunk = asked(world, extents)
    world.remove("a")


def test_a_purge_at_any_step_of_a_put_takes_nothing_that_it_has_stored(tmp_path: Path) -> None:
    ends = set()
    for number in range(1, 1 + steps_of(tmp_path, dead, referred)):
        world, store = stepped(tmp_path, number, dead)
        store.act, store.calls = partial(world.purge, "a"), 0
        with suppress(NotFound):
            referred(world)
            assert world.contents("a") == again()
        for _ in range(4):
            world.purge("a")
        ends.add(len(world.contents("a")))  # and all of them can be read
        world.metadata.close()
    assert ends == {0, len(TWO)}


def test_a_put_at_any_step_of_a_purge_keeps_its_bytes(tmp_path: Path) -> None:
    def run(world: World) -> None:
        world.purge("a")

    ends = set()
    for number in range(1, 1 + steps_of(tmp_path, dead, run)):
        world, store = stepped(tmp_path, number, dead)

        def act(world: World = world) -> None:
            with suppress(NotFound):
                referred(world)

        store.act, store.calls = act, 0
        run(world)
        for _ in range(4):
            world.purge("a")
        found = world.contents("a")
        assert found in ({}, again())
        ends.add(len(found))
        world.metadata.close()
    assert ends == {0, len(TWO)}


def test_a_put_killed_at_any_step_is_whole_or_not_there(tmp_path: Path) -> None:
    def die() -> None:
        raise Killed

    for number in range(1, 1 + steps_of(tmp_path, dead, referred)):
        world, store = stepped(tmp_path, number, dead)
        store.act, store.calls = die, 0
        with pytest.raises((Killed, BaseExceptionGroup)):
            referred(world)
        store.calls = -1
        catch_up_dataset(world.store, world.metadata, world.metadata.dataset("a"), time.time_ns(), 0)
        referred(world)
        for _ in range(4):
            world.purge("a", 3 * DAY_S)
        assert world.contents("a") == again()
        world.metadata.close()


def test_a_rewrite_at_any_step_of_which_another_reference_is_put_loses_nothing(tmp_path: Path) -> None:
    def prepare(world: World) -> None:
        refer(world, TWO)
        world.chunk = asked(world, [(b"late", extent_of(world, b"d/x/f2"))])
        world.remove("a", b"d/x")

    def run(world: World) -> None:
        for _ in range(4):
            world.purge("a")

    for number in range(1, 1 + steps_of(tmp_path, prepare, run)):
        world, store = stepped(tmp_path, number, prepare)
        late = dict[bytes, bytes]()

        def act(world: World = world, late: dict[bytes, bytes] = late) -> None:
            with suppress(NotFound):
                referred(world)
                late[b"late"] = FILES[b"d/x/f2"]

        store.act, store.calls = act, 0
        run(world)
        run(world)
        assert world.contents("a") == copied(b"d/y", b"d/y") | again() | late
        world.metadata.close()


def test_records_that_another_purge_merges_meanwhile_still_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Purges of two datasets look after the remains of a third one, which is removed."""
    monkeypatch.setattr("dieselfs_server.datasets.referring_copy.REFERENCE_BYTES_MIN", 1)

    def prepare(world: World) -> None:
        monkeypatch.setattr(references, "RECORDS_MAX", 64)
        world.copy("a", b"d/x", "b", b"x")
        world.copy("a", b"d/y", "b", b"y")
        call(world.service, "drop_dataset", name="a", dataset_id=world.id("a"))
        monkeypatch.setattr(references, "RECORDS_MAX", 1)

    def run(world: World) -> None:
        world.purge("b")

    for number in range(1, 1 + steps_of(tmp_path, prepare, run)):
        world, store = stepped(tmp_path, number, prepare)
        store.act, store.calls = partial(world.purge, "c"), 0
        run(world)
        assert world.contents("b") == copied(b"x", b"d/x") | copied(b"y", b"d/y")
        run(world)
        assert len(world.records()) == 2, "of the references, and of the remains"
        world.metadata.close()


def test_covered_bytes_of_ranges_are_those_of_a_bitmap() -> None:
    source = np.random.default_rng(5)
    for _ in range(200):
        starts = source.integers(0, 50, source.integers(0, 12))
        ends = starts + source.integers(0, 20, len(starts))
        expected = {byte for start, end in zip(starts, ends, strict=True) for byte in range(start, end)}
        assert _covered_bytes(starts, ends) == len(expected)


def test_what_is_read_for_a_reference_is_held_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a whole payload only the header is read; of a part, also its bytes."""
    monkeypatch.setattr("dieselfs_server.call.SMALL_REPLY_BYTES", 0)
    chunk_id = extent_of(world, b"d/x/f0").chunk_id
    header_bytes = read_header(world.store, world.id("a"), chunk_id)[0].header_length
    held = list[int]()

    async def hold(size_bytes: int) -> None:
        held.append(size_bytes)

    for paths in ([b"d/x/f0", b"d/x/f1", b"d/x/f2"], [b"d/x/f1"]):
        made, data = asked(world, [(b"new/" + path, extent_of(world, path)) for path in paths])
        named = thrift.put_chunk_args(dataset="a", chunk_id=made, bulk_length=len(data))
        put_chunk = parts_of(world.service, "put_chunk").put_chunk
        trio.run(put_chunk, Call(world.service.access, TRUSTED, "put_chunk", named, data, hold))
    assert held == [header_bytes, header_bytes + 700]
