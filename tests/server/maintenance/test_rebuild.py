"""A rebuild that is interrupted: nothing is given out that is half made, and running it again mends it."""

import pytest

from dieselfs.chunk.format import PREAMBLE_BYTES, ChunkHeader, Preamble
from dieselfs.errors import Damaged, Unavailable
from dieselfs.limits import REPORT_LINE_BYTES_MAX
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.maintenance.rebuild import rebuild, report_line
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
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
    report = rebuild(world.store, metadata, "data", DATASET, NOW_NS)
    assert (report.files, report.damaged) == (len(world.files), ())
    catalog.check_built(metadata.dataset("data"), NOW_NS)
    world.metadata = metadata
    assert world.read() == world.files


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
