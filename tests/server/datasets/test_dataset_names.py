"""Records of names: one ID for a name, whatever happens at the same time, and none that is not what it says."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from dieselfs.errors import Damaged
from dieselfs_server.datasets.dataset_names import DatasetNames
from dieselfs_server.store.memory import MemoryStore

ONE, TWO = bytes(range(16)), bytes(range(1, 17))


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
