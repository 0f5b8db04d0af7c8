"""Quotas with several servers over one SQLite file or one Redis: never exceeded, never short, and given back."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import Op, decode_chunk
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, StorageFull, Unavailable
from dieselfs.net.auth import Key
from dieselfs.records import DatasetUsage
from dieselfs.telemetry.registry import Registry
from dieselfs_server.access.accounts import Accounts, StoredKey, with_key, with_owner, with_quota
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.quotas import (
    HOLD_S,
    TABLE_NOTE,
    Amount,
    Hold,
    Holds,
    Limit,
    QuotaExceeded,
    Quotas,
    RoomAwaited,
)
from dieselfs_server.datasets.commit import commit_chunk, read_header
from dieselfs_server.datasets.references import StoreFull
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.maintenance.purge import purge
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.redis.store import RedisMetadata
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.identity import IDENTITY
from tests.support.metadata_chunks import DATASET, DATASET_ID, NOW_NS, Put, chunk_id, delete, encode, pack
from tests.support.redis import RedisProcess, running_redis

OTHER, OTHER_ID = "ants", bytes(16)
CHUNK_BYTES = pack([Put(b"f00001", 1, size=100)], chunk_id(1))[0].object_length


class Server:
    """What a server has of its own: caches and locks. Its clock stands, unless a test moves it."""

    def __init__(self, store: MemoryStore, metadata: MetadataStore) -> None:
        self.store, self.metadata, self.now_s = store, metadata, float(NOW_NS // 10**9)
        self.users = UserStore(store, lambda: self.now_s)
        self.quotas = Quotas(metadata, self.users, Registry(), lambda: self.now_s, self._pause)

    def _pause(self, seconds: float) -> None:
        self.now_s += seconds

    def put(self, number: int, *puts: Put, name: str = DATASET) -> None:
        """Store a chunk; without `puts`, of one file of 100 bytes."""
        dataset, identity = self.metadata.dataset(name), chunk_id(number)
        entries = puts or (Put(b"f%05d" % number, number, size=100),)
        commit_chunk(
            self.store,
            self.metadata,
            dataset.dataset_id,
            identity,
            encode(entries, identity, dataset.dataset_id),
            NOW_NS,
            admitted=lambda preamble, header: self.quotas.admitted(dataset, preamble, header),
        )

    def limit(self, account: str, stored_bytes: int | None = None, files: int | None = None) -> None:
        given = {"stored_bytes": stored_bytes, "files": files}
        quota = {name: limit for name, limit in given.items() if limit is not None}
        self.users.change(lambda accounts: with_quota(accounts, account, quota))

    def usage(self, name: str = DATASET) -> DatasetUsage:
        (found,) = self.metadata.usage([name])
        assert found is not None
        return found


def owned_by_ada(accounts: Accounts) -> Accounts:
    key = Key.generate("ada")
    accounts = with_key(accounts, "ada", key.key_id, StoredKey(key.verifier(), 0, 0))
    return with_owner(with_owner(accounts, DATASET, "ada"), OTHER, "ada")


Make = Callable[[], list[Server]]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Two servers over new stores with each call."""
    with ExitStack() as stack:
        made: list[Path] = []

        def open_metadata(folder: Path) -> MetadataStore:
            if request.param == "sqlite":
                return SqliteMetadata(folder / "metadata.db")
            redis: RedisProcess = request.getfixturevalue("redis_server")
            return RedisMetadata.open(f"redis://127.0.0.1:{redis.port}/0?prefix=test.{folder.name}:")

        def make_servers() -> list[Server]:
            made.append(tmp_path / f"{tmp_path.name}-{len(made)}")
            made[-1].mkdir()
            store, servers = MemoryStore(), []
            for _ in range(2):
                metadata = open_metadata(made[-1])
                stack.callback(metadata.close)
                servers.append(Server(store, metadata))
            servers[0].metadata.create_dataset(DATASET, DATASET_ID)
            servers[0].metadata.create_dataset(OTHER, OTHER_ID)
            servers[0].users.change(owned_by_ada)
            return servers

        yield make_servers


def test_writers_of_two_servers_take_all_of_a_quota_and_no_more(make: Make) -> None:
    servers, chunks, room = make(), 24, 10
    for server in servers:
        server.limit(f"dataset:{DATASET}", room * CHUNK_BYTES + CHUNK_BYTES - 1)
        server.quotas = Quotas(server.metadata, server.users, Registry())  # which waits for the other one

    def put(number: int) -> bool:
        try:
            servers[number % 2].put(number)
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        stored = list(threads.map(put, range(1, chunks + 1)))
    assert sum(stored) == room
    assert servers[0].usage().stored_bytes == room * CHUNK_BYTES
    assert len(list(servers[0].store.list_chunks(DATASET_ID))) == room  # a refused chunk leaves nothing


def test_a_user_has_one_quota_for_all_datasets_that_it_owns(make: Make) -> None:
    here, there = make()
    here.limit("user:ada", files=3)
    here.put(1)
    there.put(2, name=OTHER)
    there.put(3)
    with pytest.raises(QuotaExceeded, match="user ada has 3 of 3 files"):
        here.put(4, name=OTHER)
    here.users.change(lambda accounts: with_owner(accounts, OTHER, ""))
    here.put(5)  # what ada does not own does not count
    here.put(6, name=OTHER)


def test_the_quota_of_all_users_is_for_those_without_one(make: Make) -> None:
    here, _ = make()
    here.limit("user:*", files=0)
    with pytest.raises(QuotaExceeded):
        here.put(1)
    here.limit("user:ada", files=1)
    here.put(1)


def test_a_refused_chunk_gives_back_what_it_held(make: Make) -> None:
    here, there = make()
    here.limit(f"dataset:{DATASET}", CHUNK_BYTES)
    identity = chunk_id(1)
    preamble, header = pack([Put(b"a", 1, size=100)], identity)
    for error in (Damaged, InvalidInput, StoreFull):
        with pytest.raises(error), here.quotas.admitted(here.metadata.dataset(DATASET), preamble, header):
            raise error("not stored")
    there.put(2)


def test_a_chunk_that_may_yet_be_applied_keeps_its_room_until_it_is_put_again_or_expires(make: Make) -> None:
    here, there = make()
    here.limit(f"dataset:{DATASET}", CHUNK_BYTES)
    dataset, identity = here.metadata.dataset(DATASET), chunk_id(1)
    preamble, header = pack([Put(b"f00001", 1, size=100)], identity)
    with pytest.raises(Unavailable), here.quotas.admitted(dataset, preamble, header):
        raise Unavailable("stored, but not applied")
    with pytest.raises(QuotaExceeded):
        there.put(2)
    there.put(1)  # by another server, as a client repeats it
    there.put(1)
    assert here.usage().stored_bytes == CHUNK_BYTES
    here.limit(f"dataset:{DATASET}", 2 * CHUNK_BYTES)
    third = pack([Put(b"f00003", 3, size=100)], chunk_id(3))
    with suppress(Unavailable), here.quotas.admitted(dataset, *third):
        raise Unavailable("the server dies")
    with pytest.raises(QuotaExceeded):
        there.put(2)
    there.now_s += HOLD_S
    there.put(2)


def test_a_bundle_is_held_for_longer_than_a_chunk(make: Make) -> None:
    here = make()[0]
    here.limit(f"dataset:{DATASET}", 10**9)
    *others, last = [
        pack([Put(b"f%05d" % number, number, size=100)], chunk_id(number)) for number in (1, 2, 3)
    ]
    with here.quotas.admitted(here.metadata.dataset(DATASET), *last, others=others):
        (held,) = Holds.decode(here.metadata.common_note("quota/ada")).held
    assert held.amount == Amount(3 * CHUNK_BYTES, 3) and held.expires_s == int(here.now_s) + HOLD_S + 2


def test_deletes_fit_always_and_a_purge_gives_back(make: Make) -> None:
    here, there = make()
    here.put(1, Put(b"f00001", 1, size=5000))
    here.limit(f"dataset:{DATASET}", 5400)
    with pytest.raises(StorageFull, match="delete files and purge"):
        there.put(2)
    there.put(3, delete(b"f00001", 9))
    with pytest.raises(QuotaExceeded):
        there.put(4)
    tags, dataset = TagStore(here.store, IDENTITY), here.metadata.dataset(DATASET)
    purge(here.store, here.metadata, dataset, tags, NOW_NS + 10**9, 0, False)
    there.put(5)


def test_what_only_looks_like_deletes_counts(make: Make) -> None:
    here, _ = make()
    here.put(1)
    here.limit(f"dataset:{DATASET}", CHUNK_BYTES)
    dataset, payload = here.metadata.dataset(DATASET), bytes(10_000)
    paths = [Put(b"f00001", 9, Op.DELETE)], [Put(b"none", 9, Op.DELETE)] * 3
    for number, (puts, content) in enumerate([([], payload), (paths[0], payload), (paths[1], b"")]):
        builder, identity = ChunkBuilder(), chunk_id(2 + number)
        for put in puts:
            builder.add_delete(put.path, put.version)
        parts = builder.seal(content).encode(identity, DATASET, DATASET_ID, first_version=1)
        preamble, header, _ = decode_chunk(b"".join(parts), "chunk", identity, DATASET_ID)
        with pytest.raises(QuotaExceeded), here.quotas.admitted(dataset, preamble, header):
            pass


def test_deletes_that_delete_nothing_count(make: Make) -> None:
    """An old version deletes nothing, so the same delete could be put for ever, in chunks of new IDs."""
    here, there = make()
    here.put(1, Put(b"f00001", 100, size=100))
    here.limit(f"dataset:{DATASET}", here.usage().stored_bytes)
    for number in range(2, 5):
        with pytest.raises(QuotaExceeded):
            there.put(number, delete(b"f00001", number))
    there.put(5, delete(b"f00001", 101))
    with pytest.raises(QuotaExceeded):
        there.put(6, delete(b"f00001", 102))


def test_two_chunks_of_one_id_have_two_holds(make: Make) -> None:
    here, there = make()
    dataset = here.metadata.dataset(DATASET)
    large, small = pack([Put(b"a", 1, size=5000)], chunk_id(1)), pack([Put(b"b", 1)], chunk_id(1))
    rest = pack([Put(b"c", 2, size=100)], chunk_id(2))
    here.limit(f"dataset:{DATASET}", large[0].object_length + small[0].object_length)
    with here.quotas.admitted(dataset, *large):
        with suppress(AlreadyExists), there.quotas.admitted(dataset, *small):
            with pytest.raises(RoomAwaited), there.quotas.admitted(dataset, *rest, wait_s=0):
                pass
            raise AlreadyExists("as the object store says")
        with pytest.raises(RoomAwaited), there.quotas.admitted(dataset, *rest, wait_s=0):
            pass


def test_a_server_knows_new_datasets_of_a_user_at_once(make: Make) -> None:
    """Else a user could make datasets at one server, and fill them at others, which take them for nobody's."""
    here, there = make()
    here.users.change(lambda accounts: with_owner(accounts, OTHER, ""))
    here.limit("user:ada", CHUNK_BYTES)
    there.users.current()
    here.users.change(lambda accounts: with_owner(accounts, OTHER, "ada"))
    here.quotas.announce()
    there.put(1, name=OTHER)
    with pytest.raises(QuotaExceeded):
        there.put(2, name=OTHER)
    with pytest.raises(QuotaExceeded):
        there.put(3)
    here.limit("user:ada", 2 * CHUNK_BYTES)
    here.quotas.announce()
    there.put(4)


def test_a_thread_that_another_one_overtakes_uses_the_newer_table(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = make()
    here.limit(f"dataset:{DATASET}", 10 * CHUNK_BYTES)
    there.users.current()
    overtaken: list[str] = []
    read = there.metadata.common_note

    def common_note(name: str) -> bytes | None:
        if name == TABLE_NOTE and not overtaken:
            overtaken.append(name)
            here.limit(f"dataset:{DATASET}", CHUNK_BYTES)
            here.quotas.announce()
            there.put(1)  # by another thread, after this one has its copy of the table
        return read(name)

    monkeypatch.setattr(there.metadata, "common_note", common_note)
    with pytest.raises(QuotaExceeded):
        there.put(2)


def test_without_a_wait_the_caller_waits_for_the_room_of_others(make: Make) -> None:
    here, there = make()
    here.limit(f"dataset:{DATASET}", CHUNK_BYTES)
    dataset, before_s = here.metadata.dataset(DATASET), there.now_s
    first, second = (pack([Put(b"f%05d" % n, n, size=100)], chunk_id(n)) for n in (1, 2))
    with here.quotas.admitted(dataset, *first):
        with pytest.raises(RoomAwaited), there.quotas.admitted(dataset, *second, wait_s=0):
            pass
        assert there.now_s == before_s
    with there.quotas.admitted(dataset, *second, wait_s=0):
        pass


def test_a_server_that_dies_after_it_has_applied_a_chunk_takes_no_room_along(make: Make) -> None:
    here, there = make()
    here.limit(f"dataset:{DATASET}", 2 * CHUNK_BYTES)
    first = pack([Put(b"f00001", 1, size=100)], chunk_id(1))
    with suppress(KeyboardInterrupt), here.quotas.admitted(here.metadata.dataset(DATASET), *first):
        here.metadata.apply(DATASET_ID, *first, NOW_NS)
        raise KeyboardInterrupt  # the hold stays, as after a kill
    there.put(2)
    with pytest.raises(QuotaExceeded):
        there.put(3)


def test_a_dropped_dataset_gives_back(make: Make) -> None:
    here, there = make()
    here.limit("user:ada", CHUNK_BYTES)
    here.put(1)
    with pytest.raises(QuotaExceeded):
        there.put(2, name=OTHER)
    here.metadata.drop_dataset(DATASET_ID)
    there.put(2, name=OTHER)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_writers_stay_within_both_quotas(make: Make, data: st.DataObject) -> None:
    servers = make()
    sizes = data.draw(st.lists(st.integers(0, 3000), min_size=1, max_size=12), "sizes")
    of_dataset, of_user = data.draw(st.tuples(st.integers(0, 9000), st.integers(0, 12000)), "quotas")
    servers[0].limit(f"dataset:{DATASET}", of_dataset)
    servers[0].limit("user:ada", of_user)

    def put(number: int) -> None:
        name = (DATASET, OTHER)[number % 3 == 0]
        with suppress(QuotaExceeded):
            servers[number % 2].put(
                number + 1, Put(b"f%d" % number, number + 1, size=sizes[number]), name=name
            )

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(put, range(len(sizes))))
    taken = servers[0].usage().stored_bytes
    assert taken <= of_dataset
    assert taken + servers[0].usage(OTHER).stored_bytes <= of_user


def hold(chunk: str, size: int, files: int = 1, dataset: str = "pets", expires_s: int = 100) -> Hold:
    return Hold(dataset, chunk, Amount(size, files), expires_s)


def test_holds_of_other_chunks_add_up_by_dataset_until_they_expire() -> None:
    holds = Holds().with_hold(hold("a", 10), 0).with_hold(hold("b", 5, 2, "ants", 50), 0)
    assert holds.amount("new", 0) == Amount(15, 3)
    assert holds.amount("new", 0, "pets") == Amount(10, 1)
    assert holds.amount("a", 0) == Amount(5, 2)
    assert holds.amount("new", 50) == Amount(10, 1)
    assert holds.without("a", 60).held == ()


def test_a_chunk_is_held_once() -> None:
    holds = Holds().with_hold(hold("a", 10), 0).with_hold(hold("a", 10), 1)
    assert holds.amount("new", 2) == Amount(10, 1)


def test_no_content_of_a_note_comes_back() -> None:
    holds = Holds().with_hold(hold("a", 10), 0)
    again = holds.with_hold(hold("b", 1), 0).without("b", 0)
    assert again.held == holds.held and again.encode() != holds.encode()


def test_a_note_keeps_all_and_damage_is_noticed() -> None:
    holds = Holds().with_hold(hold("a", 10), 0).with_hold(hold("b", 5, 2, "ants", 50), 0)
    assert Holds.decode(holds.encode()) == holds
    assert Holds.decode(None) == Holds()
    truncated = b'[1, [["ants", "c", 5, 60]]]'  # one amount: it must not count as no files
    for content in (b"", b"{}", b"[1, [[]]]", b"[1e999, []]", b'["x", []]', b"[" * 100_000, truncated):
        with pytest.raises(Damaged):
            Holds.decode(content)


def test_a_limit_is_reached_with_the_last_byte_and_the_last_file() -> None:
    limit = Limit(
        "dataset pets", "dl://pets", {"stored_bytes": 100, "files": 10}, Amount(60, 5), Amount(30, 4)
    )
    assert limit.excess(Amount(10, 1)) is None
    bytes_reason, files_reason = limit.excess(Amount(11, 0)), limit.excess(Amount(0, 2))
    assert bytes_reason is not None and "90 B of 100 B, and 11 B more" in bytes_reason
    assert "dlcmd quota set dl://pets --size" in bytes_reason
    assert files_reason is not None and "9 of 10 files, and 2 more" in files_reason
    assert limit.stored_only().excess(Amount(40, 5)) is None
    assert Limit("dataset pets", "dl://pets", {}, Amount(60, 5), Amount()).excess(Amount(9, 9)) is None


FOLDERS_AND_LINKS = {
    "folders": [Put(b"d%d" % number, 1, Op.DIRECTORY) for number in range(11)],
    "links": [Put(b"l%d" % number, 1, Op.SYMLINK, target=b"x") for number in range(11)],
    "folders that only paths name": [Put(b"a/b/c/d/e/f/g/h/i/j/k", 1, size=1)],
    "folders of links": [Put(b"a/b/c%d/l" % number, 1, Op.SYMLINK, target=b"x") for number in range(9)],
}


@pytest.mark.parametrize("puts", FOLDERS_AND_LINKS.values(), ids=FOLDERS_AND_LINKS)
def test_folders_and_links_count_as_files(make: Make, puts: list[Put]) -> None:
    server = make()[0]
    server.limit(f"dataset:{DATASET}", files=10)
    with pytest.raises(QuotaExceeded):
        server.put(1, *puts)
    server.limit(f"dataset:{DATASET}", files=11)
    server.put(1, *puts)
    with pytest.raises(QuotaExceeded):
        server.put(2)


def test_a_file_in_folders_that_exist_counts_once(make: Make) -> None:
    server = make()[0]
    server.limit(f"dataset:{DATASET}", files=4)
    server.put(1, Put(b"a/b/one", 1, size=1))
    server.put(2, Put(b"a/b/two", 2, size=1))
    with pytest.raises(QuotaExceeded):
        server.put(3, Put(b"a/b/three", 3, size=1))
    server.put(4, delete(b"a/b/one", 4), delete(b"a/b/two", 4))
    assert server.usage().paths == 0
    server.put(5, Put(b"x/y/z/one", 5, size=1))


def test_paths_are_counted_through_a_rebuild(make: Make) -> None:
    server = make()[0]
    server.put(1, Put(b"a/b/f", 1, size=1), Put(b"a", 1, Op.DIRECTORY), Put(b"l", 1, Op.SYMLINK, target=b"a"))
    server.put(2, Put(b"a/c/g", 2, size=5, length=3))  # not whole yet
    server.put(3, Put(b"a/c/g", 2, size=5, place=3, length=2), Put(b"e", 3, Op.DIRECTORY))
    entries, folders = [b"a/b/f", b"a", b"l", b"a/c/g", b"e"], [b"a", b"a/b", b"a/c"]
    assert server.usage().paths == max(len(entries), 2 + len(folders)) == 5
    copy_id = server.metadata.begin_rebuild(DATASET_ID)
    for identity in server.store.list_chunks(DATASET_ID):
        server.metadata.apply(
            copy_id, *read_header(server.store, DATASET_ID, identity), NOW_NS, is_again=True
        )
    server.metadata.finish_rebuild(DATASET_ID, copy_id, NOW_NS)
    assert server.usage().paths == 5
    server.put(4, delete(b"a/b/f", 9), delete(b"e", 9))
    assert server.usage().paths == 3
