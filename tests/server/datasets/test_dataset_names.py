"""Records of names: one ID for a name, whatever happens at the same time, and none that is not what it says."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dieselfs.digests import extent_digest_of
from dieselfs.errors import Damaged
from dieselfs.records import DatasetRecord
from dieselfs_server.datasets.commit import catch_up_dataset, commit_chunk
from dieselfs_server.datasets.dataset_names import VERSIONS_KEPT, DatasetNames
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.chunks import CHUNK_ID, sample_builder
from tests.support.own_service import call, own_service

ONE, TWO, THREE = (bytes(range(first, first + 16)) for first in range(3))


def test_a_name_has_the_id_of_the_first_who_claims_it() -> None:
    names = DatasetNames(MemoryStore())
    assert names.find("pets") is None
    assert names.claim("pets", ONE) == ONE
    assert names.claim("pets", TWO) == ONE
    assert names.claim("x" * 255, TWO) == TWO
    assert (names.find("pets"), names.all()) == (ONE, {"pets": ONE, "x" * 255: TWO})


def test_many_who_claim_a_name_at_once_get_one_id() -> None:
    names = DatasetNames(MemoryStore())
    ids = [number.to_bytes(16, "big") for number in range(50)]
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda dataset_id: names.claim("pets", dataset_id), ids))) == 1


def test_a_name_is_released_only_by_its_dataset() -> None:
    names = DatasetNames(MemoryStore())
    names.claim("pets", ONE)
    names.release("pets", TWO)
    assert names.find("pets") == ONE
    names.release("pets", ONE)
    names.release("pets", ONE)
    assert names.find("pets") is None
    assert names.claim("pets", TWO) == TWO


class UnlistedStore(MemoryStore):
    """A list of records takes as long as there are datasets, in a folder."""

    def list_records(self, prefix: str) -> list[str]:
        raise AssertionError("the records are listed")


def test_names_that_were_never_dropped_are_made_and_found_without_a_list_of_records() -> None:
    names = DatasetNames(UnlistedStore())
    assert names.find("pets") is None
    assert names.claim("pets", ONE) == names.claim("pets", TWO) == names.find("pets") == ONE


class PausedStore(MemoryStore):
    """Does `meanwhile` before a change of a record, the first one after `changes`."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] = lambda: None
        self.changes = 0

    def _pause(self) -> None:
        if self.changes:
            self.changes -= 1
            return
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()

    def create_record(self, name: str, content: bytes) -> bool:
        self._pause()
        return super().create_record(name, content)

    def put_record(self, name: str, content: bytes) -> None:
        self._pause()
        super().put_record(name, content)

    def delete_record(self, name: str) -> None:
        self._pause()
        super().delete_record(name)


@pytest.mark.parametrize("changes", [0, 1])
@pytest.mark.parametrize("uses", [1, 2, VERSIONS_KEPT])
def test_a_drop_that_others_have_overtaken_leaves_the_name_of_the_next_dataset(
    uses: int, changes: int
) -> None:
    store = PausedStore()
    names, others = DatasetNames(store), DatasetNames(store)
    names.claim("pets", ONE)

    def overtake() -> None:
        others.release("pets", ONE)
        for _ in range(uses - 1):
            others.claim("pets", THREE)
            others.release("pets", THREE)
        others.claim("pets", TWO)

    store.meanwhile, store.changes = overtake, changes
    names.release("pets", ONE)
    assert (names.find("pets"), names.all()) == (TWO, {"pets": TWO})
    assert len(store.list_records("dataset-")) <= VERSIONS_KEPT + 1


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("changes", [0, 1])
def test_a_drop_that_is_killed_is_completed_by_the_next(changes: int) -> None:
    def die() -> None:
        raise Killed

    store = PausedStore()
    names = DatasetNames(store)
    names.claim("pets", ONE)
    store.meanwhile, store.changes = die, changes
    with pytest.raises(Killed):
        names.release("pets", ONE)
    assert names.find("pets") == ONE
    names.release("pets", ONE)
    assert (names.find("pets"), names.all()) == (None, {})
    assert (names.claim("pets", TWO), names.all()) == (TWO, {"pets": TWO})


def test_a_claim_that_another_has_overtaken_gets_the_id_of_the_other() -> None:
    store = PausedStore()
    names = DatasetNames(store)
    store.meanwhile = lambda: DatasetNames(store).claim("pets", TWO)
    assert names.claim("pets", ONE) == TWO


def test_records_of_earlier_servers_count_until_their_dataset_is_dropped() -> None:
    store = MemoryStore()
    names = DatasetNames(store)
    record = f"dataset-{extent_digest_of(b'pets').hex()}"
    store.put_record(record, f"dieselfs-dataset 1 {ONE.hex()} pets\n".encode())
    assert (names.claim("pets", TWO), names.all()) == (ONE, {"pets": ONE})
    names.release("pets", ONE)
    assert (names.find("pets"), names.all()) == (None, {})
    assert (names.claim("pets", TWO), names.all()) == (TWO, {"pets": TWO})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"dieselfs-dataset 1 00 pets\n",
        b"dieselfs-dataset 2 " + ONE.hex().encode() + b" pets\n",
        b"dieselfs-dataset 1 " + ONE.hex().encode() + b" ../pets\n",
        b"dieselfs-dataset 1 " + ONE.hex().encode() + b" \xff\n",
        b"dieselfs-dataset 1 " + ONE.hex().encode() + b" other\n",
        b"dieselfs-dataset 1 " + ONE.hex().encode() + b" pets\nx",
    ],
)
def test_a_record_that_cannot_be_is_damage_and_hides_no_other(content: bytes) -> None:
    store = MemoryStore()
    names = DatasetNames(store)
    names.claim("pets", ONE)
    (record,) = store.list_records("dataset-")
    names.claim("cars", TWO)
    store.put_record(record, content)
    with pytest.raises(Damaged, match="object store: record 'dataset-"):
        names.find("pets")
    assert names.all() == {"cars": TWO}


def test_a_server_that_catches_up_does_not_take_the_name_of_a_dataset_that_is_dropped_just_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next dataset would get the same ID, and lose its chunks to the end of the drop."""
    store, metadata = MemoryStore(), SqliteMetadata(":memory:")
    service = own_service(tmp_path, store, metadata)
    first = call(service, "create_dataset", name="pets")
    whole, following = metadata.drop_dataset, list[DatasetRecord]()

    def drop(dataset_id: bytes) -> None:
        catch_up_dataset(store, metadata, first, 1)
        whole(dataset_id)
        following.append(call(service, "create_dataset", name="pets"))
        chunk = sample_builder().seal().encode(CHUNK_ID, "pets", following[0].dataset_id, 1)
        commit_chunk(store, metadata, following[0].dataset_id, CHUNK_ID, b"".join(chunk), 1)

    monkeypatch.setattr(metadata, "drop_dataset", drop)
    call(service, "drop_dataset", name="pets", dataset_id=first.dataset_id)
    assert metadata.datasets()[0].files and following[0].dataset_id != first.dataset_id
    assert list(store.list_chunks(following[0].dataset_id)) == [CHUNK_ID]
    assert DatasetNames(store).find("pets") == following[0].dataset_id
