"""The store in a Ceph pool keeps the contract of object stores, on a real cluster."""

from collections.abc import Iterator

import pytest

from dieselfs_server.store.rados import RadosStore
from dieselfs_server.store.rados_pool import RadosPool
from tests.conformance.chunk_store_suite import DATASET_ID, OTHER_ID, ChunkStoreSuite
from tests.support.ceph import USER, RunningCeph, needs_ceph

pytestmark = needs_ceph


@pytest.fixture(scope="module")
def connection(ceph: RunningCeph) -> Iterator[RadosPool]:
    pool = RadosPool("data", ceph.conf, USER)
    yield pool
    pool.close()


@pytest.fixture
def pool(connection: RadosPool) -> RadosPool:
    """A pool that looks empty."""
    store = RadosStore(connection)
    for dataset_id in (DATASET_ID, OTHER_ID):
        store.delete_dataset(dataset_id)
    for name in store.list_records(""):
        store.delete_record(name)
    return connection


class TestRadosStore(ChunkStoreSuite):
    @pytest.fixture
    def store(self, pool: RadosPool) -> RadosStore:
        return RadosStore(pool)


class TestRadosStoreInPieces(ChunkStoreSuite):
    """Nearly every chunk is longer than one object."""

    @pytest.fixture
    def store(self, pool: RadosPool) -> RadosStore:
        return RadosStore(pool, piece_bytes=64 << 10)
