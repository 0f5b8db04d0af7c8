"""Which datasets there are: lost metadata is told apart from a dataset that was dropped."""

from collections.abc import Iterator

import pytest

from dieselfs.errors import Unavailable
from dieselfs.limits import METADATA_AWAY_S
from dieselfs.records import DatasetRecord
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.datasets.dataset_names import DatasetNames
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.chunks import CHUNK_ID, DATASET_ID, sample_builder, sample_chunk

NAME = "pets"


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.put(DATASET_ID, CHUNK_ID, [sample_chunk()])
    return store


@pytest.fixture
def metadata() -> Iterator[SqliteMetadata]:
    metadata = SqliteMetadata(":memory:")
    yield metadata
    metadata.close()


def test_a_dataset_of_which_only_chunks_are_left_has_lost_its_metadata(
    store: MemoryStore, metadata: SqliteMetadata
) -> None:
    catalog = Catalog(store, metadata)
    with pytest.raises(Unavailable, match="dlcmd rebuild dl://pets"):
        catalog.dataset(NAME)
    assert catalog.dataset_id(NAME) == DATASET_ID
    assert catalog.dataset("other") is None


def test_a_dataset_that_was_dropped_just_now_is_gone(store: MemoryStore, metadata: SqliteMetadata) -> None:
    metadata.create_dataset(NAME, DATASET_ID)
    catalog = Catalog(store, metadata)
    assert catalog.dataset("other") is None  # the store has been scanned
    assert catalog.dataset(NAME) is not None
    store.delete_dataset(DATASET_ID)
    metadata.drop_dataset(DATASET_ID)
    assert catalog.dataset(NAME) is None
    assert catalog.dataset_id(NAME) is None


def test_a_metadata_store_that_failed_is_asked_now_and_then(
    store: MemoryStore, metadata: SqliteMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, asked_at_s = [0.0], []

    def silent(name: str) -> DatasetRecord:
        asked_at_s.append(now_s[0])
        raise Unavailable("it does not answer")

    metadata.create_dataset(NAME, DATASET_ID)
    catalog = Catalog(store, metadata, lambda: now_s[0])
    assert catalog.dataset_id(NAME) == DATASET_ID
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "dataset", silent)
        for _ in range(5):
            assert catalog.dataset_id(NAME) == DATASET_ID
        assert asked_at_s == [0.0]
        now_s[0] = METADATA_AWAY_S
        for _ in range(5):
            assert catalog.dataset_id(NAME) == DATASET_ID
        assert asked_at_s == [0.0, METADATA_AWAY_S]
        with pytest.raises(Unavailable):
            catalog.dataset(NAME)  # who needs the record itself asks in any case
    store.delete_dataset(DATASET_ID)
    metadata.drop_dataset(DATASET_ID)
    assert catalog.dataset(NAME) is None


FORGER = bytes(16)


def forge(store: MemoryStore) -> None:
    """Another dataset with an older chunk, whose header has the name `pets`."""
    chunk_id = bytes(16)
    store.put(FORGER, chunk_id, sample_builder().seal().encode(chunk_id, NAME, FORGER, 1))


def test_the_record_decides_which_dataset_has_a_name(store: MemoryStore, metadata: SqliteMetadata) -> None:
    DatasetNames(store).claim(NAME, DATASET_ID)
    forge(store)
    catalog = Catalog(store, metadata)
    with pytest.raises(Unavailable, match="dlcmd rebuild dl://pets"):
        catalog.dataset(NAME)
    assert catalog.dataset_id(NAME) == DATASET_ID


def test_a_name_without_a_record_that_two_datasets_have_is_nobodys(
    store: MemoryStore, metadata: SqliteMetadata
) -> None:
    forge(store)
    assert Catalog(store, metadata).dataset_id(NAME) is None


def test_a_dataset_with_a_record_gets_no_other_name(store: MemoryStore, metadata: SqliteMetadata) -> None:
    DatasetNames(store).claim("cars", DATASET_ID)
    catalog = Catalog(store, metadata)
    assert (catalog.dataset_id(NAME), catalog.dataset_id("cars")) == (None, DATASET_ID)


def test_the_next_dataset_of_a_name_is_rebuilt_although_another_one_is_cached(
    store: MemoryStore, metadata: SqliteMetadata
) -> None:
    """Its predecessor was dropped through another server, then all metadata is lost."""
    names, following = DatasetNames(store), bytes(reversed(DATASET_ID))
    names.claim(NAME, DATASET_ID)
    metadata.create_dataset(NAME, DATASET_ID)
    catalog = Catalog(store, metadata)
    assert catalog.dataset_id(NAME) == catalog.owner_id(NAME) == DATASET_ID
    store.delete_dataset(DATASET_ID)
    names.release(NAME, DATASET_ID)
    metadata.drop_dataset(DATASET_ID)
    names.claim(NAME, following)
    store.put(following, CHUNK_ID, [sample_chunk()])
    catalog.note_silence()  # as the first request for another dataset does
    assert catalog.owner_id(NAME) == following
    assert catalog.dataset_id(NAME) == following, "reads use what is known since"
    metadata.create_dataset(NAME, DATASET_ID)  # what a rebuild of earlier versions has made
    assert catalog.owner_id(NAME) == following
    store.put_record(next(iter(store.list_records("dataset-"))), b"damaged")
    assert catalog.owner_id(NAME) == DATASET_ID, "the metadata is what is left"


def test_a_dataset_without_metadata_and_chunks_is_not_rebuilt(
    store: MemoryStore, metadata: SqliteMetadata
) -> None:
    store.delete_dataset(DATASET_ID)
    DatasetNames(store).claim(NAME, DATASET_ID)
    assert Catalog(store, metadata).owner_id(NAME) is None
