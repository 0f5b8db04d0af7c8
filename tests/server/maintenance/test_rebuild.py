"""A rebuild that is interrupted: nothing is given out that is half made, and running it again mends it."""

from collections.abc import Sequence

import pytest

from dieselfs.chunk.format import PREAMBLE_BYTES, ChunkHeader, Preamble
from dieselfs.errors import Damaged, InvalidInput, StorageFull, Unavailable
from dieselfs.limits import REPORT_LINE_BYTES_MAX
from dieselfs.records import NoteChange
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.maintenance.rebuild import rebuild, report_line
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.wrapper import StoreWrapper
from tests.server.maintenance.test_purge import DATASET, NOW_NS, World


class Killed(BaseException):
    """The server ends just here."""


class DyingMetadata(SqliteMetadata):
    """Dies at the N-th chunk that it is to apply."""

    countdown = 0

    def apply(
        self, dataset_id: bytes, preamble: Preamble, header: ChunkHeader, now_ns: int, is_again: bool = False
    ) -> int:
        self.countdown -= 1
        if self.countdown == 0:
            raise Killed
        return super().apply(dataset_id, preamble, header, now_ns, is_again)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_it_is_marked_until_it_has_gone_through(number: int) -> None:
    world = World()
    metadata = DyingMetadata(":memory:")
    metadata.countdown = number
    with pytest.raises(Killed):
        rebuild(world.store, metadata, "data", DATASET, NOW_NS)
    catalog = Catalog(world.store, metadata)
    half = metadata.dataset("data")
    with pytest.raises(Unavailable, match="dlcmd rebuild dl://data"):
        catalog.check_built(half, NOW_NS + 10**18)  # however much later
    assert catalog.lost_datasets() == ["data"]
    report = rebuild(world.store, metadata, "data", DATASET, NOW_NS)
    assert (report.files, report.damaged) == (len(world.files), ()) and catalog.lost_datasets() == []
    catalog.check_built(metadata.dataset("data"), NOW_NS)
    world.metadata = metadata
    assert world.read() == world.files


class FullMetadata(SqliteMetadata):
    """Has no room for a note."""

    def change_notes(self, dataset_id: bytes, changes: Sequence[NoteChange]) -> bool:
        raise StorageFull("metadata store: disk full")


def test_a_dataset_is_marked_from_the_moment_that_it_is_there() -> None:
    world = World()
    metadata = FullMetadata(":memory:")
    with pytest.raises(StorageFull):
        rebuild(world.store, metadata, "data", DATASET, NOW_NS)
    catalog = Catalog(world.store, metadata)
    with pytest.raises(Unavailable, match="dlcmd rebuild dl://data"):
        catalog.check_built(metadata.dataset("data"), NOW_NS)
    assert catalog.lost_datasets() == ["data"], "an administrator hears that a rebuild has not ended"


def test_lines_of_reports_are_cut_between_characters() -> None:
    assert report_line("short") == "short"
    assert report_line("ü" * 5000) == "ü" * (REPORT_LINE_BYTES_MAX // 2)


def test_what_cannot_be_read_is_named_and_the_rest_is_there() -> None:
    world = World()
    chunk_ids = list(world.store.list_chunks(DATASET))
    data = bytearray(world.store.get_range(DATASET, chunk_ids[0], 0, world.store.size(DATASET, chunk_ids[0])))
    data[PREAMBLE_BYTES + 18] ^= 1
    world.store.delete(DATASET, chunk_ids[0])
    world.store.put(DATASET, chunk_ids[0], [data])
    metadata = SqliteMetadata(":memory:")
    report = rebuild(world.store, metadata, "data", DATASET, NOW_NS)
    assert len(report.damaged) == 1 and "digest of the header" in report.damaged[0]
    assert 0 < report.files < len(world.files)


class OnceWrong(StoreWrapper):
    """Gives a wrong byte in the first read of each range, and in all reads of some chunks."""

    def __init__(self, store: ObjectStore, always: frozenset[bytes] = frozenset()) -> None:
        super().__init__(store)
        self._always, self._read = always, set[tuple[bytes, int]]()

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        content = super().get_range(dataset_id, chunk_id, offset, length)
        is_wrong = chunk_id in self._always or (chunk_id, offset) not in self._read
        self._read.add((chunk_id, offset))
        return bytes([content[0] ^ 1]) + content[1:] if is_wrong and offset == 0 else content


def test_bytes_that_are_wrong_once_lose_no_file() -> None:
    world = World()
    report = rebuild(OnceWrong(world.store), world.metadata, "data", DATASET, NOW_NS)
    assert (report.files, report.damaged) == (len(world.files), ())


def test_chunks_that_are_damaged_are_not_forgotten_unless_forced() -> None:
    world = World()
    chunk_ids = list(world.store.list_chunks(DATASET))
    store = OnceWrong(world.store, frozenset(chunk_ids[:1]))
    with pytest.raises(Damaged, match=rf"1 of {len(chunk_ids)} chunks with files of data are damaged"):
        rebuild(store, world.metadata, "data", DATASET, NOW_NS)
    assert world.metadata.dataset("data").files == len(world.files)
    report = rebuild(store, world.metadata, "data", DATASET, NOW_NS, is_forced=True)
    assert report.chunks == len(chunk_ids) - 1 and len(report.damaged) == 1


@pytest.mark.parametrize("kept", [0, 1])
def test_chunks_that_are_missing_are_not_forgotten_unless_forced(kept: int) -> None:
    world = World()
    read, chunk_ids = world.read(), list(world.store.list_chunks(DATASET))
    for chunk_id in chunk_ids[kept:]:
        world.store.delete(DATASET, chunk_id)
    with pytest.raises(Damaged, match="dlcmd rebuild --force dl://data"):
        rebuild(world.store, world.metadata, "data", DATASET, NOW_NS)
    assert world.metadata.dataset("data").files == len(read)
    report = rebuild(world.store, world.metadata, "data", DATASET, NOW_NS, is_forced=True)
    assert report.chunks == kept and report.files < len(read)


OTHER = bytes(reversed(DATASET))


def test_a_dataset_that_has_the_name_in_the_metadata_alone_gives_way() -> None:
    world, metadata = World(), SqliteMetadata(":memory:")
    metadata.create_dataset("data", OTHER)
    report = rebuild(world.store, metadata, "data", DATASET, NOW_NS)
    assert (report.files, metadata.dataset("data").dataset_id) == (len(world.files), DATASET)
    world.metadata = metadata
    assert world.read() == world.files


def test_a_dataset_with_chunks_gives_way_only_when_it_is_dropped() -> None:
    world, metadata = World(), SqliteMetadata(":memory:")
    metadata.create_dataset("data", OTHER)
    world.store.put(OTHER, bytes(16), [b"what users have written meanwhile"])
    with pytest.raises(InvalidInput, match=r"rb dl://data\), then rebuild .*: dlcmd rebuild dl://data$"):
        rebuild(world.store, metadata, "data", DATASET, NOW_NS, is_forced=True)
    assert metadata.dataset("data").dataset_id == OTHER
    world.store.delete_dataset(OTHER)
    metadata.drop_dataset(OTHER)
    assert rebuild(world.store, metadata, "data", DATASET, NOW_NS).files == len(world.files)


@pytest.mark.parametrize("is_begun", [False, True])
def test_lost_metadata_is_rebuilt_whole_whatever_time_is_asked_for(is_begun: bool) -> None:
    world, metadata = World(), DyingMetadata(":memory:")
    if is_begun:
        metadata.countdown = 2
        with pytest.raises(Killed):
            rebuild(world.store, metadata, "data", DATASET, NOW_NS)
    report = rebuild(world.store, metadata, "data", DATASET, NOW_NS, since_s=0xFFFF_FFFF)
    assert report.files == metadata.dataset("data").files == len(world.files)
