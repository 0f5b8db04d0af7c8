"""What datasets and users take: with quotas and traffic, for those who own something, and for the users asked for."""

from dieselfs.net.auth import Key
from dieselfs.records import NoteChange
from dieselfs.rpc.limit_kinds import NO_LIMIT
from dieselfs_server.access.accounts import Accounts, StoredKey, with_key, with_owner, with_quota
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.quotas.usage import Usages
from dieselfs_server.admission.traffic import NOTE, Traffic, Transferred
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.metadata_chunks import NOW_NS, Put, chunk_id, pack


class Rig:
    """Datasets `a` and `b` of ada and `c` of nobody, each with two files; bob has read, and cid has a quota."""

    def __init__(self) -> None:
        self.metadata, self.users = SqliteMetadata(":memory:"), UserStore(MemoryStore())
        self.traffic = Traffic(self.metadata, self.users)
        self.usages = Usages(self.metadata, self.users, self.traffic)
        for number, name in enumerate("abc"):
            dataset_id = bytes([number]) * 16
            self.metadata.create_dataset(name, dataset_id)
            preamble, header = pack([Put(b"x", 1, size=100), Put(b"y", 2, size=50)], chunk_id(number))
            self.metadata.apply(dataset_id, preamble, header, NOW_NS)
            self.stored_bytes = preamble.object_length
        self.users.change(_with_accounts)
        self.traffic.count("bob", "a", Transferred(700, 0))


def _with_accounts(accounts: Accounts) -> Accounts:
    for name in ("ada", "bob", "cid", "dan"):
        key = Key.generate(name)
        accounts = with_key(accounts, name, key.key_id, StoredKey(key.verifier(), 0, 0))
    for dataset in ("a", "b", "gone"):
        accounts = with_owner(accounts, dataset, "ada")
    accounts = with_quota(accounts, "dataset:a", {"stored_bytes": 1000})
    accounts = with_quota(accounts, "user:*", {"files": 9})
    return with_quota(accounts, "user:cid", {"stored_bytes": 5000})


def test_datasets_have_their_owner_quota_and_traffic() -> None:
    rig = Rig()
    a, c = rig.usages.of_datasets(["a", "gone", "c"])
    assert (a.kind, a.name, a.owner, a.files, a.total_bytes) == ("dataset", "a", "ada", 2, 150)
    assert (a.stored_bytes, a.quota_bytes, a.quota_files) == (rig.stored_bytes, 1000, NO_LIMIT)
    assert (a.read_bytes, a.written_bytes) == (700, 0)
    assert (c.owner, c.quota_bytes, c.read_bytes) == ("", NO_LIMIT, 0)


def test_users_have_the_sum_of_their_datasets() -> None:
    rig = Rig()
    ada, bob, cid = rig.usages.of_users()
    assert [one.name for one in (ada, bob, cid)] == ["ada", "bob", "cid"]
    assert (ada.files, ada.total_bytes, ada.stored_bytes) == (4, 300, 2 * rig.stored_bytes)
    assert (ada.quota_bytes, ada.quota_files) == (NO_LIMIT, 9)
    assert (bob.files, bob.read_bytes) == (0, 700)
    assert (cid.quota_bytes, cid.quota_files) == (5000, NO_LIMIT)


def test_a_user_without_anything_has_a_usage_too() -> None:
    (dan,) = Rig().usages.of_users(["dan"])
    assert (dan.name, dan.files, dan.stored_bytes, dan.quota_files) == ("dan", 0, 0, 9)


def test_a_damaged_note_of_traffic_hides_nothing_else() -> None:
    rig = Rig()
    rig.metadata.change_notes(bytes(16), [NoteChange(NOTE, None, b"?")])
    a, b = rig.usages.of_datasets(["a", "b"])
    assert (a.name, a.files, a.read_bytes) == ("a", 2, 0) and b.files == 2
