"""The store in a Ceph pool keeps the contract of object stores, on a real cluster."""

from collections.abc import Iterator
from typing import cast

import pytest

from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound
from dieselfs_server.store.rados import PIECE_BYTES, RadosStore
from dieselfs_server.store.rados_pool import RadosPool
from lab.ceph import USER, RunningCeph
from tests.conformance.chunk_store_suite import (
    CHUNK_ID,
    DATASET_ID,
    OTHER_ID,
    ChunkStoreSuite,
    ServedStoreSuite,
    chunk_at,
)
from tests.support.ceph import needs_ceph

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


class TestRadosStore(ServedStoreSuite):
    @pytest.fixture
    def store(self, pool: RadosPool) -> RadosStore:
        return RadosStore(pool)


class TestRadosStoreInPieces(ChunkStoreSuite):
    """Nearly every chunk is longer than one object."""

    @pytest.fixture
    def store(self, pool: RadosPool) -> RadosStore:
        return RadosStore(pool, piece_bytes=64 << 10)


class Killed(Exception):
    """Stands for the end of the process."""


class MortalPool:
    """A pool whose user is killed before a change, once it has made `lives` of them."""

    CHANGES = ("create", "replace", "remove", "make_keys", "add_key", "remove_keys")

    def __init__(self, pool: RadosPool, lives: int) -> None:
        self._pool = pool
        self._lives = lives

    def __getattr__(self, name: str) -> object:
        if name in self.CHANGES:
            if not self._lives:
                raise Killed
            self._lives -= 1
        return getattr(self._pool, name)


PIECES = 3
SMALL_PIECE_BYTES = 1000
LONG = bytes(range(250)) * (4 * PIECES) + b"end"


def get(store: RadosStore) -> bytes | None:
    try:
        return store.get_range(DATASET_ID, CHUNK_ID, 0, store.size(DATASET_ID, CHUNK_ID))
    except NotFound:
        return None


def objects_of_dataset(ceph: RunningCeph) -> list[str]:
    return [name for name in ceph.object_names("data") if name.startswith(DATASET_ID.hex())]


@pytest.mark.parametrize("content", [b"short", LONG])
def test_a_put_killed_anywhere_leaves_all_or_nothing(
    ceph: RunningCeph, pool: RadosPool, content: bytes
) -> None:
    store = RadosStore(pool, SMALL_PIECE_BYTES)
    steps = 0
    while True:
        doomed = RadosStore(cast(RadosPool, MortalPool(pool, steps)), SMALL_PIECE_BYTES)
        try:
            doomed.put(DATASET_ID, CHUNK_ID, [content])
            break
        except Killed:
            steps += 1
        assert get(store) is None
        assert list(store.list_chunks(DATASET_ID)) == []
        assert list(store.list_datasets()) == []
        store.delete_dataset(DATASET_ID)  # finds all that was left
        assert objects_of_dataset(ceph) == []
        if steps % 2:  # what is left from the last time may be there, or not
            with pytest.raises(Killed):
                RadosStore(cast(RadosPool, MortalPool(pool, steps - 1)), SMALL_PIECE_BYTES).put(
                    DATASET_ID, CHUNK_ID, [content]
                )
        store.put(DATASET_ID, CHUNK_ID, [content])
        assert get(store) == content and list(store.list_chunks(DATASET_ID)) == [CHUNK_ID]
        store.delete_dataset(DATASET_ID)
        assert objects_of_dataset(ceph) == []
    assert steps >= (6 if content == b"short" else 6 + PIECES)
    assert get(store) == content


@pytest.mark.parametrize("content", [b"short", LONG])
@pytest.mark.parametrize("removal", ["delete", "delete_dataset"])
def test_a_removal_killed_anywhere_is_completed_by_the_next(
    ceph: RunningCeph, pool: RadosPool, content: bytes, removal: str
) -> None:
    store = RadosStore(pool, SMALL_PIECE_BYTES)
    arguments = [DATASET_ID, CHUNK_ID] if removal == "delete" else [DATASET_ID]
    for steps in range(20):
        store.put(DATASET_ID, CHUNK_ID, [content])
        doomed = RadosStore(cast(RadosPool, MortalPool(pool, steps)), SMALL_PIECE_BYTES)
        try:
            getattr(doomed, removal)(*arguments)
            break
        except Killed:
            assert get(store) in (None, content)
        getattr(store, removal)(*arguments)
        assert get(store) is None
        assert not [name for name in objects_of_dataset(ceph) if "/chunks/" in name]
    assert steps >= 2


def test_a_missing_piece_is_damage(ceph: RunningCeph, pool: RadosPool) -> None:
    store = RadosStore(pool, SMALL_PIECE_BYTES)
    store.put(DATASET_ID, CHUNK_ID, [LONG])
    (piece,) = [name for name in objects_of_dataset(ceph) if name.endswith(".2")]
    pool.remove(piece)
    assert store.get_range(DATASET_ID, CHUNK_ID, 500, 1000) == LONG[500:1500]
    with pytest.raises(Damaged, match=chunk_name(CHUNK_ID)):
        store.get_range(DATASET_ID, CHUNK_ID, 0, len(LONG))


def test_a_truncated_piece_is_damage(ceph: RunningCeph, pool: RadosPool) -> None:
    store = RadosStore(pool, SMALL_PIECE_BYTES)
    store.put(DATASET_ID, CHUNK_ID, [LONG])
    (piece,) = [name for name in objects_of_dataset(ceph) if name.endswith(".1")]
    pool.replace(piece, b"short")
    with pytest.raises(Damaged, match=f"{chunk_name(CHUNK_ID)}: offset 0: .* ends at 1005"):
        store.get_range(DATASET_ID, CHUNK_ID, 0, len(LONG))


def test_the_largest_chunk_fits(pool: RadosPool) -> None:
    store = RadosStore(pool)
    content = bytes(PIECE_BYTES) + b"the rest"
    store.put(DATASET_ID, CHUNK_ID, [content])
    assert store.size(DATASET_ID, CHUNK_ID) == len(content)
    assert store.get_range(DATASET_ID, CHUNK_ID, PIECE_BYTES - 4, 8) == content[-12:-4]


def test_listing_since_then_reads_no_earlier_keys(pool: RadosPool) -> None:
    store = RadosStore(pool)
    for time_s in range(0, 5000, 50):
        store.put(DATASET_ID, chunk_at(time_s), [b"x"])
    read: list[str] = []

    class WatchedPool(MortalPool):
        def keys(self, name: str, after: str = "") -> Iterator[str]:
            for key in pool.keys(name, after):
                read.append(key)
                yield key

    watched = RadosStore(cast(RadosPool, WatchedPool(pool, 0)))
    assert list(watched.list_chunks(DATASET_ID, 4900)) == [chunk_at(4900), chunk_at(4950)]
    assert len(read) <= 5


def test_ids_and_names_are_checked(pool: RadosPool) -> None:
    store = RadosStore(pool)
    with pytest.raises(InvalidInput):
        store.put(b"short", CHUNK_ID, [b""])
    for name in ("", "a/b", "Users", "a.b"):
        with pytest.raises(InvalidInput):
            store.put_record(name, b"")


def test_who_comes_second_leaves_no_pieces(ceph: RunningCeph, pool: RadosPool) -> None:
    store = RadosStore(pool, SMALL_PIECE_BYTES)
    store.put(DATASET_ID, CHUNK_ID, [LONG])
    before = objects_of_dataset(ceph)
    with pytest.raises(AlreadyExists):
        store.put(DATASET_ID, CHUNK_ID, [LONG[::-1]])
    assert objects_of_dataset(ceph) == before
    assert get(store) == LONG
