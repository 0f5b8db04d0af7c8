"""The states of `docs/internals/durability.md` that concern both stores: what a crash leaves, and what completes it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.errors import NotFound
from dieselfs_server.datasets.commit import commit_chunk
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.posix import PosixStore
from tests.conformance.metadata_suite import check_against_model
from tests.support.catch_up import catch_up
from tests.support.metadata_chunks import DATASET, DATASET_ID, NOW_NS, Put, chunk_id, delete, encode, pack

PUTS = {
    chunk_id(1): [Put(b"a/b", 1, size=5), Put(b"c", 2, size=3)],
    chunk_id(2): [Put(b"c", 3, size=4), delete(b"a/b", 4)],
    chunk_id(3): [Put(b"d", 5, size=9, length=5)],
    chunk_id(4): [Put(b"d", 5, size=9, place=5, length=4)],
}
HEADERS = {identity: pack(puts, identity)[1] for identity, puts in PUTS.items()}


class Server:
    """Both stores in a folder. `restart` is what the next server finds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._start()

    def _start(self) -> None:
        self.store = PosixStore(self._folder / "store")
        self.metadata = SqliteMetadata(self._folder / "metadata.db")

    def restart(self, is_metadata_lost: bool = False) -> int:
        """Returns how many chunks were caught up with."""
        self.metadata.close()
        if is_metadata_lost:
            for path in self._folder.glob("metadata.db*"):
                path.unlink()
        self._start()
        if is_metadata_lost:
            self.metadata.create_dataset(DATASET, DATASET_ID)
        return catch_up(self.store, self.metadata, NOW_NS)

    def commit(self, identity: bytes) -> int:
        data = encode(PUTS[identity], identity)
        return commit_chunk(self.store, self.metadata, DATASET_ID, identity, data, NOW_NS)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.metadata.create_dataset(DATASET, DATASET_ID)
    yield server
    server.metadata.close()


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (4, 3, 2, 1), (3, 1, 4, 2)])
def test_stored_but_not_applied_counts_after_the_next_start(server: Server, order: tuple[int, ...]) -> None:
    applied = {}
    for number in order:
        identity = chunk_id(number)
        server.store.put(DATASET_ID, identity, [encode(PUTS[identity], identity)])  # and here it is killed
        assert server.restart() == 1
        applied[identity] = HEADERS[identity]
        check_against_model(server.metadata, applied)


def test_applied_but_not_acknowledged_may_be_sent_again(server: Server) -> None:
    for identity in PUTS:
        server.commit(identity)
        assert server.restart() == 0
        server.commit(identity)
    check_against_model(server.metadata, HEADERS)


def test_lost_metadata_comes_back_with_its_deletions(server: Server) -> None:
    for identity in PUTS:
        server.commit(identity)
    assert server.restart(is_metadata_lost=True) == len(PUTS)
    check_against_model(server.metadata, HEADERS)
    assert server.metadata.reserve_versions(DATASET_ID, 1, 0) == 6


def test_a_removed_chunk_whose_record_is_left_is_completed(server: Server) -> None:
    for number in (1, 2):
        server.commit(chunk_id(number))
    server.store.delete(DATASET_ID, chunk_id(1))  # and here it is killed
    assert server.restart() == 0
    assert [chunk.deleted_entries for chunk in server.metadata.chunks(DATASET_ID)] == [2, 0]
    server.store.delete(DATASET_ID, chunk_id(1))
    server.metadata.forget_chunk(DATASET_ID, chunk_id(1))
    assert [chunk.chunk_id for chunk in server.metadata.chunks(DATASET_ID)] == [chunk_id(2)]
    assert server.metadata.lookup(DATASET_ID, b"a/b") is None


def test_a_dataset_whose_chunks_are_gone_is_listed_and_can_be_dropped(server: Server) -> None:
    server.commit(chunk_id(1))
    server.store.delete_dataset(DATASET_ID)  # and here it is killed
    assert server.restart() == 0
    assert [dataset.name for dataset in server.metadata.datasets()] == [DATASET]
    with pytest.raises(NotFound):
        server.store.get_range(DATASET_ID, chunk_id(1), 0, 1)
    server.store.delete_dataset(DATASET_ID)
    server.metadata.drop_dataset(DATASET_ID)
    assert server.metadata.datasets() == []
    assert list(server.store.list_datasets()) == []


def test_a_put_under_way_leaves_nothing_of_a_dropped_dataset(server: Server) -> None:
    server.metadata.drop_dataset(DATASET_ID)
    with pytest.raises(NotFound):
        server.commit(chunk_id(1))
    assert list(server.store.list_datasets()) == []


def test_the_root_is_empty_once_all_is_dropped(server: Server, tmp_path: Path) -> None:
    server.commit(chunk_id(1))
    server.store.delete_dataset(DATASET_ID)
    assert list((tmp_path / "store").iterdir()) == []


def test_one_process_drops_what_another_fills(server: Server, tmp_path: Path) -> None:
    """The put that comes too late fails, and the one that came before is gone."""
    with closing(SqliteMetadata(tmp_path / "metadata.db")) as metadata:
        store = PosixStore(tmp_path / "store")
        server.commit(chunk_id(1))
        store.delete_dataset(DATASET_ID)
        server.commit(chunk_id(2))  # between the two steps of the drop
        metadata.drop_dataset(DATASET_ID)
        store.delete_dataset(DATASET_ID)
        with pytest.raises(NotFound):
            server.commit(chunk_id(3))
        assert list(store.list_datasets()) == []
