"""Ceph as sites have it: chunks in an erasure-coded pool, a namespace of a shared pool, keys with just those rights."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput, Unavailable
from dieselfs_server.store.opening import open_store
from dieselfs_server.store.rados import RadosStore
from dieselfs_server.store.rados_pool import RadosPool
from lab.ceph import CEPHX, RunningCeph, running_ceph
from tests.conformance.chunk_store_suite import CHUNK_ID, DATASET_ID, OTHER_ID, ServedStoreSuite
from tests.support.ceph import needs_ceph
from tests.support.documents import REPOSITORY

pytestmark = needs_ceph

USER, NAMESPACE, KEYS, CODED = "client.dieselfs-site", "team", "shared", "coded"
PIECE_BYTES = 64 << 10


def documented_rights() -> str:
    """Of the guide, with the names of this test."""
    text = (REPOSITORY / "docs/guide/object-stores.md").read_text(encoding="utf-8")
    (rights,) = re.findall(r"osd '(allow rw pool=dieselfs-keys .*?)'", text)
    return str(rights).replace("dieselfs-keys", KEYS).replace("dieselfs-chunks", CODED)


@pytest.fixture(scope="module")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCeph]:
    folder = tmp_path_factory.mktemp("sites")
    with running_ceph(folder, CEPHX, osds=3, rights={USER: documented_rights()}) as running:
        running.make_pool(KEYS)
        running.make_erasure_coded_pool(CODED)
        yield running


def url(ceph: RunningCeph, **options: str) -> str:
    more = "".join(f"&{name}={value}" for name, value in options.items())
    return ceph.url(KEYS, USER) + more


@pytest.fixture(scope="module")
def pools(ceph: RunningCeph) -> Iterator[list[RadosPool]]:
    pools = [RadosPool(name, ceph.conf, USER, NAMESPACE) for name in (KEYS, CODED)]
    yield pools
    for pool in pools:
        pool.close()


class TestRadosStoreOverTwoPools(ServedStoreSuite):
    """Nearly every chunk is longer than one object."""

    @pytest.fixture
    def store(self, pools: list[RadosPool]) -> RadosStore:
        store = RadosStore(pools[0], PIECE_BYTES, pools[1])
        for dataset_id in (DATASET_ID, OTHER_ID):
            store.delete_dataset(dataset_id)
        for name in store.list_records(""):
            store.delete_record(name)
        return store


def test_each_pool_has_its_part_in_the_namespace(ceph: RunningCeph) -> None:
    place = url(ceph, chunks=CODED, namespace=NAMESPACE)
    with closing(open_store(place, is_new=True)) as store:
        store.put(DATASET_ID, CHUNK_ID, [b"content"])
    with closing(open_store(place, is_new=False)) as store:
        assert list(store.list_chunks(DATASET_ID)) == [CHUNK_ID]
        assert store.get_range(DATASET_ID, CHUNK_ID, 0, 7) == b"content"
    assert ceph.object_names(KEYS) == [] == ceph.object_names(CODED)  # in the default namespace
    chunks = ceph.object_names(CODED, NAMESPACE)
    assert chunks and all("/chunks/" in name for name in chunks)
    assert not any("/chunks/" in name for name in ceph.object_names(KEYS, NAMESPACE))


def test_another_pool_for_the_chunks_is_refused(ceph: RunningCeph) -> None:
    place = {"namespace": NAMESPACE}
    open_store(url(ceph, chunks=CODED, **place), is_new=True).close()
    for is_new in (False, True):
        with pytest.raises(
            InvalidInput, match=f"its chunks are in the pool {CODED}, not in {KEYS}; give the"
        ):
            open_store(url(ceph, **place), is_new)


def test_rights_end_at_the_namespace(ceph: RunningCeph) -> None:
    with pytest.raises(Unavailable, match="Operation not permitted"):
        open_store(url(ceph, chunks=CODED, namespace="other"), is_new=True)


def test_an_erasure_coded_pool_alone_names_what_is_needed(ceph: RunningCeph) -> None:
    alone = f"{ceph.url(CODED, USER)}&namespace={NAMESPACE}"
    with pytest.raises(InvalidInput, match=rf"erasure-coded; name a replicated pool .*\?chunks={CODED}"):
        open_store(alone, is_new=True)


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="name a pool, and conf, user, chunks or namespace"):
        open_store("rados://pool?name=x", is_new=True)
