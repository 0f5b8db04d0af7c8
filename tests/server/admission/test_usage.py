"""What datasets and users take: with quotas and traffic, for those who own something, and for the users asked for."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from dieselfs.errors import Damaged, Unavailable
from dieselfs.net.auth import Key
from dieselfs.records import NoteChange
from dieselfs.rpc.limit_kinds import NO_LIMIT
from dieselfs_server.access.accounts import Accounts, StoredKey, with_key, with_owner, with_quota
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.usage import AWAY_MAX, NOTE, Traffic, Transferred, Usages
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.redis.store import RedisMetadata
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.metadata_chunks import DATASET, DATASET_ID, NOW_NS, Put, chunk_id, pack
from tests.support.redis import running_redis


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
        self.traffic.count("bob", bytes(16), Transferred(700, 0))


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


def with_users(accounts: Accounts) -> Accounts:
    for name in ("ada", "bob"):
        key = Key.generate(name)
        accounts = with_key(accounts, name, key.key_id, StoredKey(key.verifier(), 0, 0))
    return accounts


@pytest.fixture(params=["sqlite", "redis"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[MetadataStore, MetadataStore]]:
    with ExitStack() as stack:
        if request.param == "redis":
            redis = stack.enter_context(running_redis(tmp_path))

        def opened() -> MetadataStore:
            if request.param == "redis":
                return RedisMetadata.open(f"redis://127.0.0.1:{redis.port}/0")
            return SqliteMetadata(tmp_path / "metadata.db")

        both = opened(), opened()
        for metadata in both:
            stack.callback(metadata.close)
        both[0].create_dataset(DATASET, DATASET_ID)
        yield both


@pytest.fixture
def users() -> UserStore:
    users = UserStore(MemoryStore())
    users.change(with_users)
    return users


def of(traffic: Traffic, metadata: MetadataStore) -> Transferred:
    return traffic.of_dataset(metadata.dataset(DATASET))


def test_servers_have_one_sum_that_outlives_them(
    stores: tuple[MetadataStore, MetadataStore], users: UserStore
) -> None:
    here, there = (Traffic(metadata, users) for metadata in stores)
    here.count("ada", DATASET_ID, Transferred(5, 100))
    here.count("local", b"", Transferred(3, 0))
    there.count("ada", DATASET_ID, Transferred(7, 0))
    there.count("bob", DATASET_ID, Transferred(1, 0))
    assert of(here, stores[0]) == (5, 100)  # its own, at once
    here.flush()
    there.flush()
    later = Traffic(stores[0], users)
    assert of(later, stores[0]) == of(here, stores[0]) == of(there, stores[1]) == (13, 100)
    assert later.of_users() == {"ada": (12, 100), "bob": (1, 0)}  # not those without a key
    there.flush()
    assert of(later, stores[0]) == (13, 100)


def test_flushes_beside_counts_and_readers_lose_nothing(
    stores: tuple[MetadataStore, MetadataStore], users: UserStore
) -> None:
    servers = [Traffic(metadata, users) for metadata in stores]
    seen: list[int] = []

    def work(number: int) -> None:
        server, metadata = servers[number % 2], stores[number % 2]
        for _ in range(20):
            server.count("ada", DATASET_ID, Transferred(1, 2))
            server.flush()
            if number == 0:
                seen.append(of(server, metadata).read)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    for server in servers:
        server.flush()
    assert of(servers[0], stores[0]) == (80, 160) and servers[1].of_users() == {"ada": (80, 160)}
    assert seen == sorted(seen)


def test_a_dropped_dataset_takes_its_counts_along(
    stores: tuple[MetadataStore, MetadataStore], users: UserStore
) -> None:
    traffic = Traffic(stores[0], users)
    traffic.count("ada", DATASET_ID, Transferred(5, 5))
    traffic.flush()
    traffic.count("ada", DATASET_ID, Transferred(5, 5))
    dropped = stores[0].dataset(DATASET)
    stores[0].drop_dataset(DATASET_ID)
    traffic.flush()
    stores[0].create_dataset(DATASET, bytes(16))
    assert of(traffic, stores[0]) == (0, 0) and traffic.of_dataset(dropped) == (0, 0)
    assert traffic.of_users() == {"ada": (10, 10)}


def test_a_new_dataset_of_the_name_of_a_dropped_one_begins_at_zero(
    stores: tuple[MetadataStore, MetadataStore], users: UserStore
) -> None:
    traffic = Traffic(stores[0], users)
    traffic.count("ada", DATASET_ID, Transferred(5, 5))
    stores[0].drop_dataset(DATASET_ID)
    stores[0].create_dataset(DATASET, bytes(16))
    traffic.flush()
    assert of(traffic, stores[0]) == (0, 0)


def test_a_damaged_note_keeps_no_other_count_from_the_store(
    stores: tuple[MetadataStore, MetadataStore], users: UserStore
) -> None:
    names = [f"set-{number}" for number in range(8)]
    traffic = Traffic(stores[0], users)
    stores[0].change_notes(DATASET_ID, [NoteChange(NOTE, None, b"?")])
    traffic.count("ada", DATASET_ID, Transferred(1, 1))
    for number, name in enumerate(names):
        stores[0].create_dataset(name, bytes([number]) * 16)
        traffic.count("ada", bytes([number]) * 16, Transferred(1, 1))
    with pytest.raises(Damaged):
        traffic.flush()
    later = Traffic(stores[1], users)
    assert [later.of_dataset(stores[1].dataset(name)) for name in names] == [(1, 1)] * 8
    assert later.of_users() == {"ada": (9, 9)}


def test_a_user_that_another_server_has_just_added_is_counted(
    stores: tuple[MetadataStore, MetadataStore],
) -> None:
    table = MemoryStore()
    here, there = (UserStore(table, lambda: 0.0) for _ in stores)
    here.change(lambda accounts: accounts)  # reads the table, which is empty
    there.change(with_users)
    traffic = Traffic(stores[0], here)
    traffic.count("ada", b"", Transferred(5, 0))
    traffic.flush()
    assert traffic.of_users() == {"ada": (5, 0)}


class _Away(SqliteMetadata):
    is_away = False
    tries = 0

    def notes(self, dataset_id: bytes, names: Sequence[str]) -> list[bytes | None]:
        if self.is_away:
            self.tries += 1
            raise Unavailable("the store is away")
        return super().notes(dataset_id, names)


def test_counts_wait_for_a_metadata_store_that_is_away(users: UserStore) -> None:
    metadata = _Away(":memory:")
    metadata.create_dataset(DATASET, DATASET_ID)
    traffic = Traffic(metadata, users)
    traffic.count("ada", DATASET_ID, Transferred(5, 5))
    for number in range(2 * AWAY_MAX):
        traffic.count("ada", bytes([number]) * 16, Transferred(5, 5))
    metadata.is_away = True
    with pytest.raises(Unavailable):
        traffic.flush()
    assert metadata.tries == AWAY_MAX  # each of which may take seconds
    metadata.is_away = False
    traffic.flush()
    assert of(Traffic(metadata, users), metadata) == (5, 5)
    metadata.close()


@pytest.mark.parametrize("note", [b"", b"[", b"[1]", b'{"ada": [1]}', b'{"ada": [1, "x"]}', b'{"ada": 1}'])
def test_a_damaged_note_is_named(note: bytes, users: UserStore) -> None:
    metadata = SqliteMetadata(":memory:")
    metadata.create_dataset(DATASET, DATASET_ID)
    metadata.change_notes(DATASET_ID, [NoteChange(NOTE, None, note)])
    metadata.change_common_note(NoteChange(NOTE, None, note))
    traffic = Traffic(metadata, users)
    with pytest.raises(Damaged, match="a note about traffic is invalid"):
        of(traffic, metadata)
    if note:
        with pytest.raises(Damaged, match="a note about traffic is invalid"):
            traffic.of_users()
    metadata.close()
