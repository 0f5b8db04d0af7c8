"""The records of keys in the object store: made once, replaced as known, and what a server refuses then."""

import pytest

from dieselfs.encryption.key_record import KeyRecord
from dieselfs.errors import AlreadyExists, InvalidInput
from dieselfs.records import DatasetRecord
from dieselfs_server.datasets.dataset_keys import PLAIN_S, DatasetKeys
from dieselfs_server.store.memory import MemoryStore

PETS = DatasetRecord(bytes(16), "pets", 1, 1, 0, 0, 0)
FIRST, SECOND = (KeyRecord(bytes([number] * 16)).encode() for number in (1, 2))


def test_a_key_is_made_once_and_stays() -> None:
    keys = DatasetKeys(MemoryStore())
    keys.check(PETS, b"")
    with pytest.raises(InvalidInput, match="not encrypted"):
        keys.check(PETS, bytes([1] * 16))
    with pytest.raises(InvalidInput, match="has files that are not encrypted"):
        keys.put(PETS._replace(chunks=1), FIRST, b"")
    with pytest.raises(InvalidInput):
        keys.put(PETS, b"no record", b"")
    keys.put(PETS, FIRST, b"")
    for content, known in ((SECOND, b""), (FIRST, SECOND)):
        with pytest.raises(AlreadyExists):
            keys.put(PETS, content, known)
    with pytest.raises(InvalidInput, match="keeps it"):
        keys.put(PETS, SECOND, FIRST)
    assert keys.get(PETS.dataset_id) == FIRST


def test_another_server_has_made_the_key_first() -> None:
    store = MemoryStore()
    first, second = DatasetKeys(store), DatasetKeys(store)
    second.get = lambda dataset_id: b""  # type: ignore[method-assign]  # it looked before
    first.put(PETS, FIRST, b"")
    with pytest.raises(AlreadyExists):
        second.put(PETS, SECOND, b"")


def test_only_what_is_encrypted_with_the_key_is_stored() -> None:
    keys = DatasetKeys(MemoryStore())
    keys.put(PETS, FIRST, b"")
    keys.check(PETS, bytes([1] * 16))
    for key_id in (b"", bytes([2] * 16)):
        with pytest.raises(InvalidInput, match="is encrypted"):
            keys.check(PETS, key_id)
    with pytest.raises(InvalidInput, match="cannot copy"):
        keys.check_plain(PETS, "they cannot copy its files")
    erased = KeyRecord(b"", erased_s=5).encode()
    keys.put(PETS, erased, FIRST)
    for key_id in (b"", bytes([1] * 16)):
        with pytest.raises(InvalidInput, match="destroyed"):
            keys.check(PETS, key_id)
    keys.drop(PETS.dataset_id)
    keys.check(PETS, b"")


def test_the_record_of_a_plain_dataset_is_not_read_for_each_chunk() -> None:
    class Counting(MemoryStore):
        def get_record(self, name: str) -> bytes | None:
            read.append(name)
            return super().get_record(name)

    read: list[str] = []
    store, now_s = Counting(), 0.0
    keys = DatasetKeys(store, lambda: now_s)
    for dataset, reads in ((PETS, 1), (PETS, 2), (PETS._replace(chunks=1), 3), (PETS._replace(chunks=2), 3)):
        keys.check(dataset, b"")
        assert len(read) == reads
    with pytest.raises(InvalidInput):
        keys.check(PETS._replace(chunks=2), bytes([1] * 16))
    now_s = PLAIN_S
    DatasetKeys(store).put(PETS, FIRST, b"")
    with pytest.raises(InvalidInput):
        keys.check(PETS._replace(chunks=2), b"")
