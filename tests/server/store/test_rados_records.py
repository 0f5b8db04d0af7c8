"""Records in a pool: replaced at once, in pieces where they are large, and nothing left behind."""

from collections.abc import Iterator

import pytest

from dieselfs.errors import Damaged
from dieselfs_server.store.rados_pool import RadosPool
from dieselfs_server.store.rados_records import RadosRecords
from tests.support.ceph import USER, RunningCeph, needs_ceph

pytestmark = needs_ceph

PIECE_BYTES = 1000
LARGE = bytes(range(250)) * 10


@pytest.fixture
def pool(ceph: RunningCeph) -> Iterator[RadosPool]:
    pool = RadosPool("data", ceph.conf, USER)
    yield pool
    RadosRecords(pool, PIECE_BYTES).delete("large")
    pool.close()


def objects(ceph: RunningCeph) -> list[str]:
    return [name for name in ceph.object_names("data") if name.startswith("records/large")]


def test_pieces_come_and_go_with_their_content(ceph: RunningCeph, pool: RadosPool) -> None:
    records = RadosRecords(pool, PIECE_BYTES)
    for content, count in ((LARGE, 4), (LARGE[:999], 1), (LARGE[:1000], 2), (LARGE[::-1], 4), (b"", 1)):
        records.put("large", content)
        assert records.get("large") == content
        assert len(objects(ceph)) == count
    records.put("large", LARGE)
    records.delete("large")
    assert objects(ceph) == [] and records.get("large") is None and records.names("large") == []


def test_damage_is_told_from_replacement(ceph: RunningCeph, pool: RadosPool) -> None:
    records = RadosRecords(pool, PIECE_BYTES)
    records.put("large", LARGE)
    pool.replace(objects(ceph)[-1], b"short")
    with pytest.raises(Damaged, match="records/large: 2005 bytes in its pieces, not 2500"):
        records.get("large")
    pool.remove(objects(ceph)[-1])
    with pytest.raises(Damaged, match="records/large: offset 0: pieces are missing"):
        records.get("large")
    pool.replace("records/large", b"\7")
    with pytest.raises(Damaged, match="records/large: offset 0: this is no record"):
        records.get("large")
