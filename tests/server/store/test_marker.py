"""The marker: a store that is away raises Unavailable, and is never taken for an empty one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dieselfs.errors import Damaged, NotFound, Unavailable
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.marker import MARKER_RECORD, MarkedStore, open_marked, read_marker
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.opening import open_store
from dieselfs_server.store.posix import PosixStore
from tests.conformance.chunk_store_suite import CHUNK_ID, DATASET_ID, ChunkStoreSuite

OTHER_ID = bytes(15) + b"\1"

CALLS: list[Callable[[ObjectStore], object]] = [
    lambda store: store.put(DATASET_ID, OTHER_ID, [b"x"]),
    lambda store: store.get_range(DATASET_ID, CHUNK_ID, 0, 1),
    lambda store: store.open_chunk(DATASET_ID, CHUNK_ID),
    lambda store: store.size(DATASET_ID, CHUNK_ID),
    lambda store: store.delete(DATASET_ID, CHUNK_ID),
    lambda store: list(store.list_chunks(DATASET_ID)),
    lambda store: list(store.list_datasets()),
    lambda store: store.delete_dataset(DATASET_ID),
    lambda store: store.put_record("users", b"x"),
    lambda store: store.create_record("identity", b"x"),
    lambda store: store.get_record("users"),
    lambda store: store.list_records(""),
    lambda store: store.delete_record("users"),
]


class TestMarkedStore(ChunkStoreSuite):
    def make_store(self, folder: Path) -> ObjectStore:
        return open_marked(PosixStore(str(folder)), "marked", is_new=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "chunks"


@pytest.fixture
def store(root: Path) -> ObjectStore:
    """With one chunk and one record."""
    opened = open_store(f"posix://{root}", is_new=True)
    opened.put(DATASET_ID, CHUNK_ID, [b"content"])
    opened.put_record("users", b"all")
    return opened


@pytest.mark.parametrize("is_empty_folder", [False, True])
def test_every_call_on_a_store_that_is_away_is_unavailable(
    store: ObjectStore, root: Path, is_empty_folder: bool
) -> None:
    root.rename(root.with_name("away"))
    if is_empty_folder:  # the mount point of a file system that is not mounted
        root.mkdir()
    for call in CALLS:
        with pytest.raises(Unavailable, match="away"):
            call(store)
    assert not root.exists() or not list(root.iterdir())
    if is_empty_folder:
        root.rmdir()
    root.with_name("away").rename(root)
    assert store.get_range(DATASET_ID, CHUNK_ID, 0, 7) == b"content"
    assert store.get_record("users") == b"all" and list(store.list_datasets()) == [DATASET_ID]


def test_a_listing_that_loses_its_store_raises_at_its_end(store: ObjectStore, root: Path) -> None:
    listing = store.list_chunks(DATASET_ID)
    assert next(listing) == CHUNK_ID
    root.rename(root.with_name("away"))
    with pytest.raises(Unavailable, match="away"):
        next(listing)


def test_another_store_in_the_same_place_is_refused(store: ObjectStore, root: Path) -> None:
    root.rename(root.with_name("away"))
    open_store(f"posix://{root}", is_new=True).close()
    with pytest.raises(Unavailable, match="was replaced"):
        store.put(DATASET_ID, CHUNK_ID, [b"content"])


@pytest.mark.parametrize("exists", [False, True])
def test_a_store_without_a_marker_opens_only_as_a_new_one(root: Path, exists: bool) -> None:
    if exists:
        root.mkdir()
    with pytest.raises(Unavailable, match="--init"):
        open_store(f"posix://{root}", is_new=False)
    assert not exists or not list(root.iterdir())
    assert root.exists() == exists
    open_store(f"posix://{root}", is_new=True).close()
    open_store(f"posix://{root}", is_new=False).close()


def test_a_marker_is_made_once(root: Path) -> None:
    for _ in range(2):
        open_store(f"posix://{root}", is_new=True).close()
        content = PosixStore(str(root)).get_record(MARKER_RECORD)
        assert content == (root / "records" / MARKER_RECORD).read_bytes()
    assert len(read_marker(PosixStore(str(root))) or "") == 32


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"format": 2, "id": "x"}', b'{"format": 1, "id": 7}']
)
def test_an_invalid_marker_is_damage(content: bytes) -> None:
    store = MemoryStore()
    store.put_record(MARKER_RECORD, content)
    with pytest.raises(Damaged, match="marker"):
        open_marked(store, "memory:", is_new=True)


def test_the_slow_tier_decides_and_a_lost_fast_tier_costs_nothing(tmp_path: Path) -> None:
    url = f"tiered:fast=posix://{tmp_path}/fast,slow=posix://{tmp_path}/slow,size=1GiB"
    with pytest.raises(Unavailable, match="--init"):
        open_store(url, is_new=False)
    tiered = open_store(url, is_new=True)
    tiered.put(DATASET_ID, CHUNK_ID, [b"content"])
    (tmp_path / "fast").rename(tmp_path / "fast-away")
    (tmp_path / "fast").mkdir()
    tiered.put(DATASET_ID, OTHER_ID, [b"other"])
    assert tiered.get_range(DATASET_ID, CHUNK_ID, 0, 7) == b"content"
    tiered.close()
    assert not list((tmp_path / "fast").iterdir())
    open_store(url, is_new=False).close()
    (tmp_path / "slow").rename(tmp_path / "slow-away")
    with pytest.raises(Unavailable, match="slow"):
        open_store(url, is_new=False)


def test_what_is_missing_in_a_store_that_is_there_is_not_found(store: ObjectStore) -> None:
    with pytest.raises(NotFound):
        store.size(DATASET_ID, OTHER_ID)
    assert store.get_record("none") is None and not list(store.list_chunks(bytes(16)))


def test_a_store_in_memory_needs_no_option() -> None:
    store = open_store("memory:", is_new=False)
    assert isinstance(store, MarkedStore)
    store.put_record("users", b"x")
