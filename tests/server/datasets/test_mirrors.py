"""Mirrors: a crash at each step, two rounds at a time, and a promotion that is interrupted."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, cast

import pytest

from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import InvalidInput, Unavailable
from dieselfs.records import DatasetRecord
from dieselfs.rpc.records import MirrorRecord
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.datasets.commit import catch_up_dataset, commit_chunk, read_chunk
from dieselfs_server.datasets.mirrors import Mirrors, unapplied
from dieselfs_server.datasets.snapshots import signed
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.leases.lease import LEASE_S
from dieselfs_server.maintenance.purge import purge
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.memory import MemoryStore
from tests.support.identity import IDENTITY, OTHER_IDENTITY

NAME, DATASET, ORIGIN = "data", bytes(range(16)), "site:data"
NOW_S = 1_800_000_000
CHANGES = ("put_record", "create_record", "delete_record", "apply", "forget_chunk", "change_notes")


class Crash(BaseException):
    """The process has ended."""


class Watched:
    """A store that calls `before` with the name of each method that is called."""

    def __init__(self, inner: object, before: Callable[[str], None]) -> None:
        self._inner, self._before = inner, before

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            self._before(name)
            return getattr(self._inner, name)(*arguments, **options)

        return called


class Site:
    """The stores of a site with the dataset."""

    def __init__(self, first_counter: int = 1) -> None:
        self.store, self.metadata = MemoryStore(), SqliteMetadata(":memory:")
        self.metadata.create_dataset(NAME, DATASET)
        self.ids = ChunkIdSource(clock=lambda: NOW_S, first_counter=first_counter)

    @property
    def dataset(self) -> DatasetRecord:
        return self.metadata.dataset(NAME)

    def write(self, path: bytes, deleted: Iterable[bytes] = ()) -> Snapshot:
        """Write a file, and delete others; returns the new generation."""
        builder, chunk_id = ChunkBuilder(), self.ids.next()
        builder.add_file(path, path * 100, 0o644, 0)
        for each in deleted:
            builder.add_delete(each)
        version = self.metadata.reserve_versions(DATASET, 10, NOW_S * 10**9)
        self.put(self.metadata, builder.seal(), chunk_id, version)
        content = signed(build_snapshot(self.metadata.entry_table(DATASET)), OTHER_IDENTITY)
        return Snapshot(content, "the origin")

    def put(self, metadata: MetadataStore, sealed: SealedChunk, chunk_id: bytes, version: int = 1) -> None:
        data = b"".join(sealed.encode(chunk_id, NAME, DATASET, version))
        commit_chunk(self.store, metadata, DATASET, chunk_id, data, NOW_S * 10**9)

    def bring(self, origin: "Site", snapshot: Snapshot) -> None:
        """Store the chunks of a generation of the origin."""
        for chunk_id in map(snapshot.chunk_id, range(snapshot.chunk_count)):
            payload = bytes(read_chunk(origin.store, DATASET, chunk_id)[2])
            self.put(self.metadata, SealedChunk((), b"", payload), chunk_id)

    def mirrors(self, before: Callable[[str], None] = lambda _: None) -> Mirrors:
        store = cast(ObjectStore, Watched(self.store, before))
        return Mirrors(store, cast(MetadataStore, Watched(self.metadata, before)), TagStore(store, IDENTITY))

    def round(self, mirrors: Mirrors, snapshot: Snapshot, now_s: int = NOW_S) -> MirrorRecord:
        mirrors.note_seen(self.dataset, ORIGIN, snapshot.generation, now_s)
        content = bytes(snapshot.content)
        mirrors.keep_part(self.dataset, 0, content[:1000])
        return mirrors.show(self.dataset, 1, content[1000:], now_s * 10**9)


def pair() -> tuple[Site, Site]:
    """An origin, and its mirror."""
    origin, here = Site(), Site(1000)
    here.mirrors().note_seen(here.dataset, ORIGIN, 1, NOW_S)
    return origin, here


def shown(site: Site) -> bytes:
    """The digest of what a server that starts now shows."""
    found = site.mirrors().snapshot(site.dataset)
    assert found is not None
    found.verify()
    return found.digest


def test_a_crash_at_each_step_shows_a_whole_generation() -> None:
    for steps in count():
        origin, here = pair()
        first = origin.write(b"a")
        here.bring(origin, first)
        here.round(here.mirrors(), first)
        second = origin.write(b"b", deleted=[b"a"])
        here.bring(origin, second)
        left = [steps]

        def before(name: str, left: list[int] = left) -> None:
            if name in CHANGES:
                if not left[0]:
                    raise Crash
                left[0] -= 1

        try:
            done = here.round(here.mirrors(before), second)
        except Crash:
            assert shown(here) in (first.digest, second.digest)
            done = here.round(here.mirrors(), second, NOW_S + LEASE_S + 1)
        assert (
            done.generation
            == done.newest
            == second.generation
            == here.mirrors().shown(here.dataset).generation
        )
        assert shown(here) == second.digest
        end_ns = (NOW_S + 2 * LEASE_S) * 10**9
        purge(here.store, here.metadata, here.dataset, TagStore(here.store, IDENTITY), end_ns, 0, False)
        assert list(here.store.list_chunks(DATASET)) == [second.chunk_id(0)]
        assert not here.store.list_records("mirrored-")
        if left[0]:
            break
    assert steps > 8


def test_of_two_rounds_at_a_time_one_is_refused() -> None:
    origin, here = pair()
    first, second = origin.write(b"a"), origin.write(b"b")
    here.bring(origin, second)
    refusals: list[str] = []

    def other(snapshot: Snapshot) -> None:
        try:
            here.round(here.mirrors(), snapshot)
        except Unavailable as error:
            refusals.append(str(error))

    busy = here.mirrors(lambda name: other(second) if name == "put_record" else None)
    busy.note_seen(here.dataset, ORIGIN, first.generation, NOW_S)
    assert len(refusals) == 1 and "a change of the mirror data" in refusals[0]
    here.round(here.mirrors(), first)
    waiting = [second]
    late = here.mirrors(lambda name: other(waiting.pop()) if name == "get_range" and waiting else None)
    third = origin.write(b"c")
    here.bring(origin, third)
    with pytest.raises(Unavailable, match="another round of the mirror data"):
        here.round(late, third)
    assert shown(here) == second.digest
    with pytest.raises(InvalidInput, match="is older than"):
        here.round(here.mirrors(), first)
    here.round(here.mirrors(), third)
    assert shown(here) == third.digest


def test_nothing_is_applied_before_the_end_of_a_promotion() -> None:
    origin, here = pair()
    first = origin.write(b"a")
    here.bring(origin, first)
    here.round(mirrors := here.mirrors(), first)
    found, snapshot = mirrors.begin_promotion(here.dataset, NOW_S)
    assert snapshot is not None and snapshot.digest == found.digest == first.digest
    builder = ChunkBuilder()
    builder.add_file(b"a", b"1", 0o644, 0)
    here.put(unapplied(here.metadata), builder.seal(), here.ids.next())
    started = here.store, here.metadata, here.dataset, NOW_S * 10**9, 0
    assert catch_up_dataset(*started) == (0, None)
    assert shown(here) == first.digest
    with pytest.raises(InvalidInput, match="is being promoted"):
        here.round(here.mirrors(), first)
    with pytest.raises(InvalidInput, match="is being promoted"):
        mirrors.check_settled(DATASET, NAME)
    mirrors.end_promotion(here.dataset)
    assert catch_up_dataset(*started) == (1, None)
    assert not mirrors.is_mirror(here.dataset) and here.dataset.files == 1
