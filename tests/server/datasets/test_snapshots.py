"""Snapshots on the shelf: built once, kept, built again when the disk has spoilt them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.delta_format import decode_delta
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.admission.room import disk_of
from dieselfs_server.datasets import deltas
from dieselfs_server.datasets import tags as tag_records
from dieselfs_server.datasets.commit import commit_chunk, read_header
from dieselfs_server.datasets.refresh import PAUSE_FACTOR, QUIET_S, STALE_S, Refresh
from dieselfs_server.datasets.snapshots import (
    GENERATIONS_KEPT,
    SnapshotCache,
    signed,
)
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.metadata.interface import Sink
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.identity import IDENTITY, OTHER_IDENTITY
from tests.support.small_disk import small_disk
from tests.support.snapshots import DATASET_ID, SAMPLE, SOURCE, snapshot_bytes, with_delta

DATASET = bytes(range(16))
IDS = ChunkIdSource(clock=lambda: 1_800_000_000, first_counter=1)


class CountingMetadata(SqliteMetadata):
    """Counts how often a snapshot was built from it."""

    tables = 0

    def read_entries(self, dataset_id: bytes, begin: Callable[[], Sink]) -> Sink:
        self.tables += 1
        return super().read_entries(dataset_id, begin)


@pytest.fixture
def metadata() -> CountingMetadata:
    store = CountingMetadata(":memory:")
    store.create_dataset("data", DATASET)
    return store


def write(
    metadata: SqliteMetadata, name: bytes, store: MemoryStore | None = None, content: bytes = b"content"
) -> bytes:
    """Write a file; returns the ID of its chunk."""
    builder = ChunkBuilder()
    builder.add_file(name, content, 0o644, 0)
    chunk_id = IDS.next()
    parts = builder.seal().encode(chunk_id, "data", DATASET, metadata.reserve_versions(DATASET, 1, 1))
    commit_chunk(store or MemoryStore(), metadata, DATASET, chunk_id, b"".join(parts), 10**18)
    return chunk_id


async def test_many_who_ask_at_once_get_one_snapshot(metadata: CountingMetadata, tmp_path: Path) -> None:
    write(metadata, b"file")
    snapshots = SnapshotCache(tmp_path, metadata, IDENTITY)
    got = []

    async def ask() -> None:
        got.append(await snapshots.get(metadata.dataset("data")))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)
    assert metadata.tables == 1
    assert {snapshot.digest for snapshot in got} == {got[0].digest}
    assert got[0].find(b"file") > 0


async def test_of_processes_that_share_a_folder_one_builds(
    metadata: CountingMetadata, tmp_path: Path
) -> None:
    """Each has a cache of its own; the lock is that of the file."""
    caches = [SnapshotCache(tmp_path, metadata, IDENTITY, run=b"run") for _ in range(2)]
    digests: list[bytes] = []

    async def ask(cache: SnapshotCache) -> None:
        digests.append((await cache.get(metadata.dataset("data"))).digest)

    for generation in range(GENERATIONS_KEPT + 2):
        write(metadata, b"file-%d" % generation)
        digests.clear()
        async with trio.open_nursery() as nursery:
            for cache in caches:
                nursery.start_soon(ask, cache)
        assert metadata.tables == generation + 1 and len({*digests}) == 1
    for cache in caches:  # neither keeps what the other has removed, but for the last
        assert len(cache._open) <= GENERATIONS_KEPT + 1


async def test_what_a_process_of_a_run_has_verified_is_not_verified_by_the_others(
    metadata: CountingMetadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []
    monkeypatch.setattr(Snapshot, "verify", lambda snapshot: verified.append(snapshot.source))
    write(metadata, b"file")
    for run in (b"first", b"first", b"second", b"second"):
        await SnapshotCache(tmp_path, metadata, IDENTITY, run=run).get(metadata.dataset("data"))
    assert len(verified) == 1, "once by the second run"
    (noted,) = tmp_path.glob("*.verified")
    noted.write_bytes(noted.read_bytes()[:-1])  # as a power cut may leave it
    await SnapshotCache(tmp_path, metadata, IDENTITY, run=b"second").get(metadata.dataset("data"))
    await SnapshotCache(tmp_path, metadata, IDENTITY).get(metadata.dataset("data"))
    assert len(verified) == 3, "and by a server of one process"
    SnapshotCache(tmp_path, metadata, IDENTITY, run=b"second").drop(DATASET)
    assert not list(tmp_path.iterdir())


async def test_older_generations_are_kept_for_a_while(metadata: CountingMetadata, tmp_path: Path) -> None:
    snapshots = SnapshotCache(tmp_path, metadata, IDENTITY)
    for number in range(1, GENERATIONS_KEPT + 3):
        write(metadata, b"file%d" % number)
        assert (await snapshots.get(metadata.dataset("data"))).generation == number
    newest = metadata.dataset("data")
    assert (await snapshots.get(newest, newest.generation - 1)).generation == newest.generation - 1
    for gone in (1, 999):
        with pytest.raises(NotFound, match="not kept"):
            await snapshots.get(newest, gone)
    for kind in ("snapshot", "chunks"):
        assert len(list(tmp_path.glob(f"*.{kind}"))) == GENERATIONS_KEPT


async def test_a_spoilt_file_is_built_again(metadata: CountingMetadata, tmp_path: Path) -> None:
    write(metadata, b"file")
    digest = (await SnapshotCache(tmp_path, metadata, IDENTITY).get(metadata.dataset("data"))).digest
    (path,) = tmp_path.glob("*.snapshot")
    for position in (0, 20, 100, -1):
        content = bytearray(path.read_bytes())
        content[position] ^= 1
        path.write_bytes(content)
        snapshots = SnapshotCache(tmp_path, metadata, IDENTITY)  # a server that has just started
        assert (await snapshots.get(metadata.dataset("data"))).digest == digest


async def test_a_shelf_that_cannot_be_written_is_named(metadata: CountingMetadata, tmp_path: Path) -> None:
    write(metadata, b"file")
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=os.fspath(tmp_path)):
        await SnapshotCache(tmp_path / "file" / "shelf", metadata, IDENTITY).get(metadata.dataset("data"))


async def test_snapshots_are_private_and_go_with_their_dataset(
    metadata: CountingMetadata, tmp_path: Path
) -> None:
    write(metadata, b"file")
    snapshots = SnapshotCache(tmp_path / "shelf", metadata, IDENTITY)
    await snapshots.get(metadata.dataset("data"))
    for path in (tmp_path / "shelf", *(tmp_path / "shelf").iterdir()):
        assert path.stat().st_mode & 0o077 == 0
    snapshots.drop(DATASET)
    assert not list((tmp_path / "shelf").iterdir())


def names_in(folder: Path) -> list[int]:
    """The generations of the files in a folder."""
    return sorted(Snapshot.open(path).generation for path in folder.glob("*.snapshot"))


async def test_a_delta_is_made_for_those_who_have_a_kept_generation(
    metadata: CountingMetadata, tmp_path: Path
) -> None:
    for number in range(100):
        write(metadata, b"file%d" % number)
    first = await SnapshotCache(tmp_path, metadata, IDENTITY).get(metadata.dataset("data"))
    write(metadata, b"more")
    snapshots = SnapshotCache(tmp_path, metadata, IDENTITY)  # a server that has just started
    second = await snapshots.get(metadata.dataset("data"))
    assert await snapshots.delta(second, [bytes(32)]) is None
    found = await snapshots.delta(second, [bytes(32), first.digest])
    assert found is not None and found[0] == first.digest
    assert with_delta(first, decode_delta(found[1], "delta")) == second.content
    assert await snapshots.delta(second, [first.digest]) == found


async def test_a_delta_that_is_not_worth_it_is_not_sent(metadata: CountingMetadata, tmp_path: Path) -> None:
    snapshots = SnapshotCache(tmp_path, metadata, IDENTITY)
    first = await snapshots.get(metadata.dataset("data"))
    for number in range(100):
        write(metadata, b"file%d" % number)
    second = await snapshots.get(metadata.dataset("data"))
    assert await snapshots.delta(second, [first.digest]) is None


async def test_snapshots_that_nobody_asked_for_take_no_room(
    metadata: CountingMetadata, tmp_path: Path
) -> None:
    snapshots = SnapshotCache(tmp_path, metadata, IDENTITY)
    write(metadata, b"file1")
    await snapshots.get(metadata.dataset("data"))
    for number in range(2, 8):
        write(metadata, b"file%d" % number)
        await snapshots.prepare(metadata.dataset("data"))
        assert names_in(tmp_path) == [1, number]
    tables = metadata.tables
    assert (await snapshots.get(metadata.dataset("data"))).generation == 7
    assert metadata.tables == tables
    write(metadata, b"file8")
    await snapshots.prepare(metadata.dataset("data"))
    assert names_in(tmp_path) == [1, 7, 8]


async def test_what_is_built_ahead_stays_for_a_caller_who_knows_an_older_generation(
    metadata: CountingMetadata, tmp_path: Path
) -> None:
    snapshots = SnapshotCache(tmp_path, metadata, IDENTITY)
    write(metadata, b"file1")
    older = metadata.dataset("data")
    write(metadata, b"file2")
    await snapshots.prepare(metadata.dataset("data"))
    assert (await snapshots.get(older)).generation == 2
    assert names_in(tmp_path) == [2]


async def test_what_is_built_ahead_is_ready_to_send(
    metadata: CountingMetadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    snapshots = SnapshotCache(
        tmp_path, metadata, IDENTITY, lambda dataset, chunk: read_header(store, dataset, chunk)[1]
    )
    for number in range(100):
        write(metadata, b"file%d" % number, store)
    first = await snapshots.get(metadata.dataset("data"))
    monkeypatch.setattr(deltas, "delta_between", None)  # the changes are known, so nothing is compared
    write(metadata, b"more", store)
    await snapshots.prepare(metadata.dataset("data"))
    assert metadata.tables == 1, "made from the last one and the chunk since"
    second = await snapshots.get(metadata.dataset("data"))
    found = await snapshots.delta(second, [first.digest])
    assert found is not None
    assert with_delta(first, decode_delta(found[1], "delta")) == second.content
    second.verify()


async def test_those_who_lack_several_generations_get_a_delta_along_the_steps(
    metadata: CountingMetadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From any process, and where the snapshots between were built ahead and removed. Without a step, all columns are
    compared, if there are not too many.
    """
    store = MemoryStore()

    def started() -> SnapshotCache:
        return SnapshotCache(
            tmp_path, metadata, IDENTITY, lambda dataset, chunk: read_header(store, dataset, chunk)[1]
        )

    for number in range(100):
        write(metadata, b"file%d" % number, store)
    snapshots = started()
    first = await snapshots.get(metadata.dataset("data"))
    monkeypatch.setattr(deltas, "delta_between", lambda base, new: compared.append(base.generation))
    compared: list[int] = []
    for number in range(6):
        write(metadata, b"more%d" % number, store)
        write(metadata, b"file7", store, b"%d" % number)
        await snapshots.prepare(metadata.dataset("data"))
    assert metadata.tables == 1 and names_in(tmp_path) == [100, 112]
    newest = await snapshots.get(metadata.dataset("data"))
    for cache in (snapshots, started()):
        found = await cache.delta(newest, [first.digest])
        assert found is not None
        assert with_delta(first, decode_delta(found[1], "delta")) == newest.content
    assert not compared
    step = sorted(tmp_path.glob("*.delta"))[2]
    step.write_bytes(step.read_bytes()[:-1])  # as a power cut may leave it
    assert await started().delta(newest, [first.digest]) is None
    assert compared == [first.generation]
    monkeypatch.setattr(deltas, "COMPARED_NODES_MAX", 100)
    assert await started().delta(newest, [first.digest]) is None
    assert compared == [first.generation]
    monkeypatch.setattr("dieselfs_server.datasets.snapshots.STEPS_KEPT", 2)
    snapshots.drop(DATASET, GENERATIONS_KEPT)
    assert len(list(tmp_path.glob("*.delta"))) == 2


async def test_a_purge_changes_no_digest(metadata: CountingMetadata, tmp_path: Path) -> None:
    """Of two servers, one makes the snapshot before the purge, the other one after it."""
    dead = write(metadata, b"file")
    write(metadata, b"file")
    before = await SnapshotCache(tmp_path / "one", metadata, IDENTITY).get(metadata.dataset("data"))
    metadata.forget_chunk(DATASET, dead)
    after = await SnapshotCache(tmp_path / "other", metadata, IDENTITY).get(metadata.dataset("data"))
    assert before.content == after.content and before.chunk_count == 1


async def test_the_next_generation_is_made_of_the_last_one_after_a_restart(
    metadata: CountingMetadata, tmp_path: Path
) -> None:
    """Dead chunks, and those of folders, are not in the last one, and were applied before it all the same."""
    store = MemoryStore()

    def started() -> SnapshotCache:
        return SnapshotCache(
            tmp_path, metadata, IDENTITY, lambda dataset, chunk: read_header(store, dataset, chunk)[1]
        )

    for number in range(100):
        write(metadata, b"file%d" % number, store)
    for content in (b"first", b"second"):
        write(metadata, b"file7", store, content)
    await started().get(metadata.dataset("data"))
    write(metadata, b"more", store)
    spoilt = next(tmp_path.glob("*.chunks"))
    content = spoilt.read_bytes()
    made = await started().get(metadata.dataset("data"))
    assert metadata.tables == 1
    assert made.digest == Snapshot(build_snapshot(metadata.entry_table(DATASET)), SOURCE).digest
    assert made.chunk_count == 101
    for path in tmp_path.glob("*.chunks"):
        path.write_bytes(content[: len(content) // 2])  # as a power cut may leave it
    write(metadata, b"more still", store)
    assert (await started().get(metadata.dataset("data"))).header.files == 102
    assert metadata.tables == 3, "all entries were read"


class Builds:
    """The builds and their times; each takes `duration_s`."""

    def __init__(self, duration_s: float = 0.0, error: Exception | None = None) -> None:
        self.done: list[tuple[str, float]] = []
        self.duration_s, self.error = duration_s, error

    async def __call__(self, dataset: str) -> None:
        self.done.append((dataset, round(trio.current_time() - self.start_s, 3)))
        await trio.sleep(self.duration_s)
        if self.error is not None:
            raise self.error

    async def after(self, *writes: tuple[float, str], until_s: float = 300) -> list[tuple[str, float]]:
        """The builds after `writes`, at times since the start."""
        self.start_s = trio.current_time()
        refresh = Refresh(self)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh.run)
            for at_s, dataset in writes:
                await trio.sleep_until(self.start_s + at_s)
                refresh.note(dataset)
            await trio.sleep_until(self.start_s + until_s)
            nursery.cancel_scope.cancel()
        return self.done


async def test_one_build_follows_the_last_chunk_of_a_put(autojump_clock: MockClock) -> None:
    writes = [(number * QUIET_S / 2, "a") for number in range(10)]
    assert await Builds().after(*writes) == [("a", 4.5 * QUIET_S + QUIET_S)]


async def test_a_long_put_is_built_at_intervals(autojump_clock: MockClock) -> None:
    writes = [(number * QUIET_S / 2, "a") for number in range(int(4 * STALE_S / QUIET_S) + 6)]
    builds = [at_s for _, at_s in await Builds().after(*writes)]
    assert builds[0] == STALE_S and builds[1] - STALE_S in (STALE_S, STALE_S + QUIET_S / 2)
    assert builds[2:] == [writes[-1][0] + QUIET_S]


async def test_datasets_do_not_wait_for_each_other(autojump_clock: MockClock) -> None:
    assert await Builds().after((0, "a"), (QUIET_S / 2, "b")) == [("a", QUIET_S), ("b", 1.5 * QUIET_S)]


async def test_a_slow_build_is_followed_by_a_pause(autojump_clock: MockClock) -> None:
    slow_s = 5.0
    built = await Builds(slow_s).after((0, "a"), (QUIET_S + slow_s + 0.5, "a"))
    assert built == [("a", QUIET_S), ("a", QUIET_S + slow_s + PAUSE_FACTOR * slow_s)]


async def test_a_chunk_during_a_build_is_in_the_next_one(autojump_clock: MockClock) -> None:
    built = await Builds(1.0).after((0, "a"), (QUIET_S + 0.5, "a"))
    assert [name for name, _ in built] == ["a", "a"]


@pytest.mark.parametrize("error", [Unavailable("no metadata"), OSError("a bug")])
async def test_a_failed_build_is_tried_after_the_next_put(
    error: Exception, autojump_clock: MockClock
) -> None:
    failing = Builds(error=error)
    assert len(await failing.after((0, "a"), (100, "a"))) == 2


def tagged(store: MemoryStore) -> TagStore:
    """A store with two tags."""
    tags = TagStore(store, IDENTITY)
    for name, tree in (("v1", SAMPLE), ("v2", {})):
        tags.add(Snapshot(signed(snapshot_bytes(tree), IDENTITY), SOURCE), name)
    return tags


def test_a_tag_that_stands_in_the_place_of_another_is_damage() -> None:
    store = MemoryStore()
    tags = tagged(store)
    one, two = store.list_records("tag-")
    content = store.get_record(two)
    assert content is not None
    store.put_record(one, content)
    assert tags.get("pets", DATASET_ID, "v2").generation == 7
    with pytest.raises(Damaged, match="tag v1 of pets: "):
        tags.get("pets", DATASET_ID, "v1")


class RacingStore(MemoryStore):
    """Another server makes a tag in the moment after this one has looked for it; its own reply is lost if `is_own`."""

    def __init__(self, is_own: bool) -> None:
        super().__init__()
        self._is_own, self._has_raced = is_own, False

    def create_record(self, name: str, content: bytes) -> bool:
        if not self._has_raced:
            self._has_raced = True
            other = Snapshot(signed(snapshot_bytes({}), IDENTITY), SOURCE)
            if self._is_own:
                super().create_record(name, content)
            else:
                TagStore(self, IDENTITY).add(other, "v1")
        return super().create_record(name, content)


@pytest.mark.parametrize("is_own", [False, True])
def test_a_tag_is_made_once_by_all_servers(is_own: bool) -> None:
    store = RacingStore(is_own)
    tags, mine = TagStore(store, IDENTITY), Snapshot(signed(snapshot_bytes(SAMPLE), IDENTITY), SOURCE)
    if is_own:
        tags.add(mine, "v1")
        assert tags.get("pets", DATASET_ID, "v1").digest == mine.digest
    else:
        with pytest.raises(AlreadyExists, match="already has a tag 'v1'"):
            tags.add(mine, "v1")
        assert tags.get("pets", DATASET_ID, "v1").digest != mine.digest


def test_a_dataset_has_a_bounded_number_of_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take room that no quota counts."""
    tags = tagged(MemoryStore())
    monkeypatch.setattr(tag_records, "TAGS_MAX", 2)
    third = Snapshot(signed(snapshot_bytes({}), IDENTITY), SOURCE)
    with pytest.raises(InvalidInput, match="dlcmd tag rm"):
        tags.add(third, "v3")
    tags.remove("pets", DATASET_ID, "v1")
    tags.add(third, "v3")


def test_any_altered_byte_of_a_tag_is_found() -> None:
    store = MemoryStore()
    tags = tagged(store)
    record = store.list_records("tag-")[0]
    content = store.get_record(record)
    assert content is not None
    for place in range(len(content)):
        altered = bytearray(content)
        altered[place] ^= 1
        store.put_record(record, bytes(altered))
        with pytest.raises(Damaged):
            tags.get("pets", DATASET_ID, "v1")


def test_a_tag_of_other_servers_is_refused() -> None:
    store = MemoryStore()
    tagged(store)
    with pytest.raises(Damaged, match="not signed by the servers of this store"):
        TagStore(store, OTHER_IDENTITY).get("pets", DATASET_ID, "v1")


async def test_without_room_on_its_disk_a_snapshot_is_served_from_memory(
    tmp_path: Path, metadata: CountingMetadata
) -> None:
    with small_disk(tmp_path / "disk", "16k") as disk:
        await _served_from_memory(disk, metadata)  # at its end nothing maps a file of the disk


async def _served_from_memory(disk: Path, metadata: CountingMetadata) -> None:
    cache = SnapshotCache(disk / "snapshots", metadata, IDENTITY)
    write(metadata, b"first")
    await cache.get(metadata.dataset("data"))
    (disk / "ballast").write_bytes(bytes(disk_of(str(disk)).free_bytes))
    write(metadata, b"second")
    await cache.get(metadata.dataset("data"))  # in place of the first one
    (disk / "more").write_bytes(bytes(disk_of(str(disk)).free_bytes))
    write(metadata, b"/".join([b"x" * 200] * 20))  # a snapshot of two pages
    dataset, tables = metadata.dataset("data"), metadata.tables
    built = await cache.get(dataset)
    assert built.generation == dataset.generation and built.header.files == 3
    assert (await cache.get(dataset)).digest == built.digest and metadata.tables == tables + 1
    assert not list(disk.glob("*/*.tmp"))
