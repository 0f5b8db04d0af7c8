"""Records in a pool: replaced at once, in pieces where they are large, and nothing left behind."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dieselfs.errors import Damaged, Unavailable
from dieselfs_server.store.rados import RadosStore, Stripes, just_before, pieces_of_key
from dieselfs_server.store.rados_pool import ANSWER_TIMEOUT_S, AWAY_TIMEOUT_S, RadosPool
from lab.ceph import USER, RunningCeph
from tests.support.ceph import needs_ceph

PIECE_BYTES = 1000
READERS = 12
LARGE = bytes(range(250)) * 10


@pytest.fixture
def pool(ceph: RunningCeph) -> Iterator[RadosPool]:
    pool = RadosPool("data", ceph.conf, USER)
    yield pool
    RadosStore(pool, PIECE_BYTES).delete_record("large")
    pool.close()


def objects(ceph: RunningCeph) -> list[str]:
    return [name for name in ceph.object_names("data") if name.startswith("records/large")]


@needs_ceph
def test_pieces_come_and_go_with_their_content(ceph: RunningCeph, pool: RadosPool) -> None:
    records = RadosStore(pool, PIECE_BYTES)
    for content, count in ((LARGE, 4), (LARGE[:999], 1), (LARGE[:1000], 2), (LARGE[::-1], 4), (b"", 1)):
        records.put_record("large", content)
        assert records.get_record("large") == content
        assert len(objects(ceph)) == count
    records.put_record("large", LARGE)
    records.delete_record("large")
    assert objects(ceph) == [] and records.get_record("large") is None and records.list_records("large") == []


@needs_ceph
def test_damage_is_told_from_replacement(ceph: RunningCeph, pool: RadosPool) -> None:
    records = RadosStore(pool, PIECE_BYTES)
    records.put_record("large", LARGE)
    pool.replace(objects(ceph)[-1], b"short")
    with pytest.raises(Damaged, match="records/large: 2005 bytes in its pieces, 2500 expected"):
        records.get_record("large")
    pool.remove(objects(ceph)[-1])
    with pytest.raises(Damaged, match="records/large: offset 0: some of its pieces are missing"):
        records.get_record("large")
    pool.replace("records/large", b"\7")
    with pytest.raises(Damaged, match="records/large: offset 0: not a record"):
        records.get_record("large")


@needs_ceph
def test_records_that_are_read_at_once_do_not_wait_for_each_other(ceph: RunningCeph, pool: RadosPool) -> None:
    """librados lets reads through by the lengths that are asked for; a hung OSD would cost each its own timeout."""
    records = RadosStore(pool)
    records.put_record("large", b"content")

    def read(_: int) -> None:
        with pytest.raises(Unavailable, match="timed out"):
            records.get_record("large")

    with ceph.hung(), ThreadPoolExecutor(READERS) as readers:
        started_s = time.monotonic()
        list(readers.map(read, range(READERS)))
        assert time.monotonic() - started_s < ANSWER_TIMEOUT_S + READERS * AWAY_TIMEOUT_S / 2
    assert records.get_record("large") == b"content"


def test_pieces_are_found_again() -> None:
    pieces = Stripes.new(length=2500, count=3)
    assert Stripes.decode(pieces.encode()) == pieces
    assert pieces.objects("place") == [f"place.{pieces.nonce}.{number}" for number in (1, 2, 3)]
    assert pieces_of_key(pieces.key("name")).objects("place") == pieces.objects("place")
    assert Stripes.new(2500, 3).nonce != pieces.nonce


@pytest.mark.parametrize("value", [b"", b"a b c", b"a 1", b"a 1 2 3", b"\xff 1 2"])
def test_what_says_nothing_of_pieces_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError):
        Stripes.decode(value)


def test_a_listing_begins_where_it_should() -> None:
    keys = sorted(["", "-", "-a", "0", "0-", "0z", "1", "A", "Az", "Azzz", "B", "Z_", "z", "zz"])
    for key in keys[1:]:
        behind = [other for other in keys if other > just_before(key)]
        assert behind == [other for other in keys if other >= key]
