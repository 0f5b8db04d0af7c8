"""The records of keys in the object store: made once, replaced as known, and what a server refuses then."""

from collections.abc import Callable

import pytest

from dieselfs.encryption.key_record import KeyRecord, Wrap
from dieselfs.errors import AlreadyExists, InvalidInput
from dieselfs.records import DatasetRecord
from dieselfs_server.datasets.dataset_keys import KNOWN_S, VERSIONS_KEPT, DatasetKeys
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.versions import VersionedRecord

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


class Interrupted(MemoryStore):
    """Another server changes the record when this one has read it for `put`."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] | None = None

    def get_record(self, name: str) -> bytes | None:
        content = super().get_record(name)
        self._interrupt()
        return content

    def list_records(self, prefix: str) -> list[str]:
        names = super().list_records(prefix)
        if not names:
            self._interrupt()
        return names

    def _interrupt(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


def test_of_two_servers_that_make_the_key_one_succeeds() -> None:
    store = Interrupted()
    store.meanwhile = lambda: DatasetKeys(store).put(PETS, FIRST, b"")
    with pytest.raises(AlreadyExists):
        DatasetKeys(store).put(PETS, SECOND, b"")
    assert DatasetKeys(store).get(PETS.dataset_id) == FIRST


def test_of_two_servers_that_change_the_recipients_one_succeeds() -> None:
    store = Interrupted()
    granted, revoked = (record_for("ada", "bert"), record_for())
    DatasetKeys(store).put(PETS, record_for("ada"), b"")
    store.meanwhile = lambda: DatasetKeys(store).put(PETS, revoked, record_for("ada"))
    with pytest.raises(AlreadyExists):
        DatasetKeys(store).put(PETS, granted, record_for("ada"))
    assert DatasetKeys(store).get(PETS.dataset_id) == revoked


def record_for(*names: str) -> bytes:
    wraps = tuple(Wrap("x25519", name, (), (bytes(32), bytes(32), bytes(48))) for name in names)
    return KeyRecord(bytes(16), wraps).encode()


def test_no_key_of_a_former_recipient_stays_in_the_store() -> None:
    store, known = MemoryStore(), b""
    for number in range(2 * VERSIONS_KEPT):
        content = record_for(f"user{number}")
        DatasetKeys(store).put(PETS, content, known)
        known = content
    names = store.list_records("keys-")
    assert len(names) == VERSIONS_KEPT
    assert [store.get_record(name) for name in names] == [b""] * (VERSIONS_KEPT - 1) + [known]
    DatasetKeys(store).drop(PETS.dataset_id)
    assert store.list_records("keys-") == []


def test_what_a_crash_has_left_of_a_change_is_removed_by_the_next() -> None:
    store = MemoryStore()
    contents = [record_for(name) for name in ("ada", "bert", "cleo")]
    DatasetKeys(store).put(PETS, contents[0], b"")
    prefix = store.list_records("keys-")[0][:-20]
    assert store.create_record(f"{prefix}{2:020}", contents[1])
    assert DatasetKeys(store).get(PETS.dataset_id) == contents[1]
    DatasetKeys(store).put(PETS, contents[2], contents[1])
    assert [store.get_record(name) for name in store.list_records("keys-")] == [b"", b"", contents[2]]


def test_a_change_whose_answer_was_lost_is_repeated() -> None:
    store = MemoryStore()
    assert VersionedRecord(store, "keys-", VERSIONS_KEPT).replace(0, FIRST)
    assert VersionedRecord(store, "keys-", VERSIONS_KEPT).replace(0, FIRST)
    assert not VersionedRecord(store, "keys-", VERSIONS_KEPT).replace(0, SECOND)


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


def test_the_record_is_not_read_for_each_chunk() -> None:
    class Counting(MemoryStore):
        def list_records(self, prefix: str) -> list[str]:
            read.append(prefix)
            return super().list_records(prefix)

    read: list[str] = []
    store, now_s = Counting(), 0.0
    keys = DatasetKeys(store, lambda: now_s)
    for dataset, reads in ((PETS, 1), (PETS, 2), (PETS._replace(chunks=1), 3), (PETS._replace(chunks=2), 3)):
        keys.check(dataset, b"")
        assert len(read) == reads
    with pytest.raises(InvalidInput):
        keys.check(PETS._replace(chunks=2), bytes([1] * 16))
    now_s = KNOWN_S
    DatasetKeys(store).put(PETS, FIRST, b"")
    with pytest.raises(InvalidInput):
        keys.check(PETS._replace(chunks=2), b"")
    read.clear()
    for _ in range(3):
        keys.check(PETS._replace(chunks=2), bytes([1] * 16))
    assert not read
    keys.put(PETS, KeyRecord(b"", erased_s=5).encode(), FIRST)
    with pytest.raises(InvalidInput, match="destroyed"):
        keys.check(PETS._replace(chunks=2), bytes([1] * 16))
