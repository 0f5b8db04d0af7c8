"""Copies that refer to many chunks: how much they write, and what is left when nothing but the chunks is."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from dieselfs.chunk.bundle import bundle_of, is_bundled, number_of
from dieselfs.chunk.format import ENTRY_BYTES, Preamble
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import Damaged, DieselfsError, StorageFull, Unavailable
from dieselfs_server.access.accounts import with_quota
from dieselfs_server.admission.quotas import Holds
from dieselfs_server.datasets import referring_copy
from dieselfs_server.datasets.commit import catch_up_dataset
from dieselfs_server.datasets.referring_copy import batches
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.attached import AttachedStore, Sources
from dieselfs_server.store.bundled import BundledStore
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.tiered import TieredStore, check_chunk
from tests.support.counted_calls import CountedCalls
from tests.support.own_service import call, own_service
from tests.support.referring_world import World

CHUNKS = 300


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(referring_copy, "REFERENCE_BYTES_MIN", 1)


class ManyWorld(World):
    """Dataset `a` also has CHUNKS chunks of one file each."""

    def __init__(self, folder: Path, metadata: MetadataStore, chunks: int = CHUNKS) -> None:
        self.counted = CountedCalls(MemoryStore())
        super().__init__(folder, metadata, self.counted)
        self.many = {b"m/%03d" % number: os.urandom(20 + number) for number in range(chunks)}
        writer = self.writer("a")
        for path, content in self.many.items():
            writer.builder.add_file(path, content, 0o640, 5)
            writer.write()
        self.counted.writes()

    def copied(self, new: bytes) -> dict[bytes, bytes]:
        return {new + path[1:]: content for path, content in self.many.items()}


def test_a_copy_of_many_chunks_writes_a_few_objects(tmp_path: Path, metadata: MetadataStore) -> None:
    world = ManyWorld(tmp_path, metadata)
    world.copy("a", b"m", "b", b"n")
    assert world.counted.calls["put"] == 2, "the bundle, and a chunk with the folder"
    assert world.counted.writes() <= 5
    assert world.contents("b") == world.copied(b"n")
    bundled = [each for each in world.chunks("b") if is_bundled(each)]
    assert len(bundled) == CHUNKS and len({*map(bundle_of, bundled)}) == 1
    world.counted.calls.clear()
    world.copy("b", b"n", "c", b"o", is_move=True)
    assert world.counted.writes() <= 6
    assert world.contents("c") == world.copied(b"o")
    assert {source for _, source in world.references("c")} == {source for _, source in world.references("b")}
    world.counted.calls.clear()
    assert world.purge("b").chunks_removed == CHUNKS + 1, "with that of the folder"
    assert world.counted.calls["delete"] == 2 and world.counted.writes() <= 8
    assert world.contents("c") == world.copied(b"o")


def test_a_purge_of_some_chunks_of_a_bundle_leaves_the_others(tmp_path: Path) -> None:
    with closing(SqliteMetadata(":memory:")) as metadata:
        world = ManyWorld(tmp_path, metadata, 40)
        world.copy("a", b"m", "b", b"m")
        world.remove("b", b"m/01")
        world.purge("b")
        left = {path: content for path, content in world.many.items() if not path.startswith(b"m/01")}
        assert world.contents("b") == left
        bundled = [each for each in world.chunks("b") if is_bundled(each)]
        assert len(bundled) == len(left) == 30
        checked = call(world.service, "fsck", dataset="b", is_deep=True, is_repair=False)
        assert checked.problems == () and checked.chunks == len(world.chunks("b"))
        world.remove("a")
        world.remove("b")
        for name in "bab":
            world.purge(name)
        assert world.records() == [] and not any(map(is_bundled, world.objects.list_chunks(world.id("b"))))


def test_deleted_chunks_come_back_dead_if_the_records_of_their_deletion_are_lost(tmp_path: Path) -> None:
    with closing(SqliteMetadata(":memory:")) as metadata:
        world = ManyWorld(tmp_path, metadata, 40)
        world.copy("a", b"m", "b", b"m")
        world.remove("b", b"m/01")
        world.purge("b")
        left, chunks = world.contents("b"), world.chunks("b")
        for name in world.objects.list_records("erased-"):
            world.objects.delete_record(name)
        world.store, dataset = AttachedStore(BundledStore(world.objects), Sources()), metadata.dataset("b")
        assert len(world.chunks("b")) == len(chunks) + 10
        assert catch_up_dataset(world.store, metadata, dataset, dataset.updated_ns, 0) == (10, None)
        assert world.contents("b") == left
        assert world.purge("b").chunks_removed == 10
        assert world.contents("b") == left and world.chunks("b") == chunks


@pytest.mark.parametrize("chunks", [1, 20])
def test_a_copy_that_a_quota_refuses_holds_no_chunk(tmp_path: Path, chunks: int) -> None:
    with closing(SqliteMetadata(":memory:")) as metadata:
        world = ManyWorld(tmp_path, metadata, chunks)
        world.service.users.change(lambda accounts: with_quota(accounts, "dataset:b", {"stored_bytes": 1}))
        with pytest.raises(StorageFull, match="over quota"):
            world.copy("a", b"m", "b", b"n")
        assert world.records() == []


@pytest.mark.parametrize("fault", [Unavailable("away"), StorageFull("full")])
@pytest.mark.parametrize("kind", ["put_record", "list_records"])
def test_a_copy_whose_claim_fails_holds_no_chunk_and_no_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, fault: DieselfsError
) -> None:
    """Before the claim, and in the middle of it."""
    with closing(SqliteMetadata(":memory:")) as metadata:
        world = ManyWorld(tmp_path, metadata, 20)
        world.service.users.change(
            lambda accounts: with_quota(accounts, "dataset:b", {"stored_bytes": 10**9})
        )
        call_store = getattr(world.objects, kind)

        def failing(name: str, *rest: Any) -> Any:
            if name.startswith(("refers-", "erasing-")):
                raise fault
            return call_store(name, *rest)

        monkeypatch.setattr(world.objects, kind, failing)
        with pytest.raises(type(fault), match=str(fault)):
            world.copy("a", b"m", "b", b"n")
        assert Holds.decode(metadata.common_note("quota/")).held == ()
        monkeypatch.undo()
        assert world.records() == []


def test_the_last_chunk_of_a_bundle_is_applied_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other servers take the hold of a bundle on a quota for ended when it is applied."""
    monkeypatch.setattr("dieselfs_server.store.ordered_reads.SLOW_READ_S", 0.0)
    with closing(SqliteMetadata(":memory:")) as metadata:
        world, apply = ManyWorld(tmp_path, metadata, 8), metadata.apply
        has_last, applied = Event(), list[int]()

        def slow(dataset_id: bytes, preamble: Preamble, *rest: Any, **options: Any) -> int:
            number = number_of(preamble.chunk_id) if is_bundled(preamble.chunk_id) else 0
            if number == 8:
                has_last.set()
            if number == 7:  # time for the last one to come before it
                has_last.wait(0.2)
            generation = apply(dataset_id, preamble, *rest, **options)
            applied.append(number)
            return generation

        monkeypatch.setattr(metadata, "apply", slow)
        world.copy("a", b"m", "b", b"m")
        in_bundle = [number for number in applied if number]
        assert len(in_bundle) == in_bundle[-1] == 8


def test_lost_metadata_is_rebuilt_from_bundles(tmp_path: Path) -> None:
    """Also without the records of references, and of a copy that has applied none of its chunks."""
    with closing(SqliteMetadata(":memory:")) as metadata:
        world = ManyWorld(tmp_path, metadata, 20)
        for target in "bc":
            world.copy("a", b"m", target, b"m")
        names = {world.id(name): name for name in "abc"}
        for name in world.records():
            world.objects.delete_record(name)
        with closing(SqliteMetadata(":memory:")) as empty:
            world.metadata, world.service = empty, own_service(tmp_path / "new", world.objects, empty)
            for dataset_id, name in names.items():
                if name == "c":
                    empty.create_dataset(name, dataset_id)
                    record = empty.dataset(name)
                    assert catch_up_dataset(world.store, empty, record, record.updated_ns, 0) == (21, None)
                else:
                    call(world.service, "rebuild", dataset=name, since_s=-1, is_forced=False)
            call(world.service, "rebuild", dataset="c", since_s=-1, is_forced=False)
            assert world.contents("b") == world.contents("c") == world.many
            world.remove("a")
            assert world.purge("a").chunks_removed == 2, "those that nobody refers to"
            assert world.contents("b") == world.many


def damaged(world: World) -> Callable[[], None]:
    """Damage the one bundle of dataset `b`; returns what brings it back."""
    (bundle_id,) = {bundle_of(each) for each in world.chunks("b") if is_bundled(each)}
    place = world.id("b"), bundle_id
    sound = world.objects.get_range(*place, 0, world.objects.size(*place))

    def replace(content: bytes) -> None:
        world.objects.delete(*place)
        world.objects.put(*place, [content])

    replace(sound[:50] + bytes([sound[50] ^ 1]) + sound[51:])
    return lambda: replace(sound)


def test_a_damaged_bundle_keeps_the_chunks_that_it_refers_to(tmp_path: Path) -> None:
    """It may be brought back from a copy of the store."""
    with closing(SqliteMetadata(":memory:")) as metadata:
        world = ManyWorld(tmp_path, metadata, 20)
        world.copy("a", b"m", "b", b"m")
        bring_back = damaged(world)
        world.remove("a")
        world.purge("a")
        bring_back()
        assert world.contents("b") == world.many


def test_fsck_forgets_no_chunk_of_a_damaged_bundle(tmp_path: Path) -> None:
    """Nor are they missing: only the bundle, and the files that need it, are told."""
    with closing(SqliteMetadata(":memory:")) as metadata:
        world = ManyWorld(tmp_path, metadata, 20)
        world.copy("a", b"m", "b", b"m")
        world.remove("b", b"m/01")
        known, bring_back = metadata.chunks(world.id("b")), damaged(world)
        report = call(world.service, "fsck", dataset="b", is_deep=False, is_repair=True)
        assert [each.kind for each in report.problems] == ["chunk", *["file"] * 10]
        held = sorted(each.chunk_id for each in known if is_bundled(each.chunk_id))
        assert (
            f"bundle {chunk_name(bundle_of(held[0]))}: offset 40: the index is damaged; it holds 20 chunks, "
            f"{chunk_name(held[0])} to {chunk_name(held[-1])}: bring it back" in report.problems[0].what
        )
        assert metadata.chunks(world.id("b")) == known
        bring_back()
        assert call(world.service, "fsck", dataset="b", is_deep=True, is_repair=False).problems == ()


def test_a_tier_of_fast_disks_takes_bundles_that_are_right(tmp_path: Path) -> None:
    with closing(SqliteMetadata(":memory:")) as metadata:
        world, fast = ManyWorld(tmp_path, metadata, 5), MemoryStore()
        world.copy("a", b"m", "b", b"m")
        (bundle_id,) = {bundle_of(each) for each in world.chunks("b") if is_bundled(each)}
        place = world.id("b"), bundle_id
        content = world.objects.get_range(*place, 0, world.objects.size(*place))
        with closing(TieredStore(fast, MemoryStore(), 10**9)) as tiered:
            tiered.put(*place, [content])
            tiered.wait_until_idle()
            assert fast.size(*place) == len(content)
        with pytest.raises(Damaged, match="digest"):
            check_chunk(*place, content[:-1] + bytes([content[-1] ^ 1]))


def test_bundles_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By chunks, by bytes, and by what is copied between two chances to be cancelled."""
    entry_bytes = ENTRY_BYTES + len(b"m/000")
    limits = {"BUNDLE_CHUNKS_MAX": 5, "BUNDLE_BYTES": 4 * entry_bytes + 1, "REFERENCES_AT_ONCE": 5}
    for name, limit in limits.items():
        with monkeypatch.context() as patch, closing(SqliteMetadata(":memory:")) as metadata:
            world = ManyWorld(tmp_path / name, metadata, 20)
            patch.setattr(referring_copy, name, limit)
            world.copy("a", b"m", "b", b"m")
            assert world.contents("b") == world.many
            bundles = [bundle_of(each) for each in world.chunks("b") if is_bundled(each)]
            assert [bundles.count(each) for each in sorted({*bundles})] == [5, 5, 5, 5]


def test_a_bundle_takes_no_more_of_a_quota_than_is_used(tmp_path: Path, metadata: MetadataStore) -> None:
    """The folder above all files, and a file that spans chunks, count once; the entry of the folder takes one."""
    world = ManyWorld(tmp_path, metadata, 20)
    writer = world.writer("a")
    version = writer.reserve(1)
    for place in range(0, 50, 10):
        writer.builder.add_file(b"m/spans", b"0123456789", 0o640, 5, 50, place, version)
        writer.write()
    world.service.users.change(lambda accounts: with_quota(accounts, "dataset:b", {"files": 23}))
    world.copy("a", b"m", "b", b"n")
    assert world.contents("b") == world.copied(b"n") | {b"n/spans": b"0123456789" * 5}
    with pytest.raises(StorageFull):
        world.copy("a", b"m", "b", b"o")


def test_batches_have_all_spans_within_both_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(referring_copy, "REFERENCES_AT_ONCE", 3)
    monkeypatch.setattr(referring_copy, "EXTENTS_AT_ONCE", 10)
    assert list(batches([0])) == []
    assert list(batches([0, 1, 2, 3, 4, 14, 30, 35, 40, 41])) == [
        [(0, 1), (1, 2), (2, 3)],
        [(3, 4)],
        [(4, 14)],
        [(14, 30)],
        [(30, 35), (35, 40)],
        [(40, 41)],
    ]
