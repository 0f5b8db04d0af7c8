"""Who may do what: the table, its record in the object store, and how soon a change counts."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound
from dieselfs.rpc.auth import Key
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.users import (
    KEYS_PER_USER_MAX,
    USERS_PREFIX,
    USERS_REFRESH_S,
    VERSIONS_KEPT,
    Caller,
    Right,
    StoredKey,
    User,
    Users,
    UserStore,
    decode_users,
    encode_users,
    with_expiry,
    with_grant,
    with_key,
    without_key,
)

KEY = Key.generate("ada")


def added(users: Users, key: Key, now_s: int = 0, expires_s: int = 0) -> Users:
    return with_key(users, key.user, key.key_id, StoredKey(key.verifier(), now_s, expires_s))


def table(expires_s: int = 0) -> Users:
    users = added({}, KEY, 100, expires_s)
    return with_grant(with_grant(users, "ada", "faces", Right.WRITE), "ada", "*", Right.READ)


def test_rights_are_the_larger_of_the_dataset_and_all() -> None:
    caller = Caller("ada", KEY.key_id)
    assert caller.right_on("faces", table(), 200) is Right.WRITE
    assert caller.right_on("other", table(), 200) is Right.READ
    assert caller.right_on("faces", with_grant(table(), "ada", "faces", Right.NONE), 200) is Right.READ


def test_a_key_that_is_gone_or_expired_gives_no_rights() -> None:
    caller = Caller("ada", KEY.key_id)
    assert caller.right_on("faces", table(expires_s=150), 149) is Right.WRITE
    assert caller.right_on("faces", table(expires_s=150), 150) is Right.NONE
    assert caller.right_on("faces", without_key(table(), "ada", KEY.key_id), 200) is Right.NONE
    assert caller.right_on("faces", without_key(table(), "ada", ""), 200) is Right.NONE
    assert Caller("ada", "other").right_on("faces", table(), 200) is Right.NONE


def test_two_keys_are_valid_at_once() -> None:
    second = Key.generate("ada")
    users = added(table(), second, 300, 0)
    assert set(users["ada"].keys) == {KEY.key_id, second.key_id}
    assert users["ada"].grants == table()["ada"].grants


def test_a_key_is_added_once_and_no_other_takes_its_id() -> None:
    users = table()
    assert added(users, KEY, 300) == users
    with pytest.raises(AlreadyExists):
        added(users, replace(Key.generate("ada"), key_id=KEY.key_id))


def test_an_expired_key_makes_room() -> None:
    users = table(expires_s=150)
    for _ in range(KEYS_PER_USER_MAX):
        users = added(users, Key.generate("ada"), 200)
    assert KEY.key_id not in users["ada"].keys


def test_a_key_expires_earlier_but_never_later() -> None:
    assert with_expiry(table(), "ada", KEY.key_id, 500)["ada"].keys[KEY.key_id].expires_s == 500
    assert with_expiry(table(expires_s=150), "ada", KEY.key_id, 500)["ada"].keys[KEY.key_id].expires_s == 150
    with pytest.raises(NotFound):
        with_expiry(table(), "ada", "nokey", 500)


def test_limits_and_unknown_users() -> None:
    users = table()
    for _ in range(KEYS_PER_USER_MAX - 1):
        users = added(users, Key.generate("ada"), 0, 0)
    with pytest.raises(InvalidInput, match="keys"):
        added(users, Key.generate("ada"), 0, 0)
    with pytest.raises(NotFound):
        with_grant(users, "eve", "*", Right.READ)
    with pytest.raises(NotFound):
        without_key(users, "ada", "nokey")
    with pytest.raises(InvalidInput):
        with_grant(users, "ada", "../x", Right.READ)
    with pytest.raises(InvalidInput):
        Right.parse("root")


def test_the_record_survives_and_damage_is_noticed() -> None:
    record = encode_users(table(expires_s=5))
    assert decode_users(record) == table(expires_s=5)
    assert KEY.secret.hex().encode() not in record
    for content in (b"", b"{}", b"[" * 100_000, record[:-5], record.replace(b'"format": 1', b'"format": 9')):
        with pytest.raises(Damaged):
            decode_users(content)


def test_a_change_at_another_server_counts_within_the_stated_time() -> None:
    now_s = [1000.0]
    store = MemoryStore()
    here, there = (UserStore(store, lambda: now_s[0]) for _ in range(2))
    assert here.verifier("ada", KEY.key_id) is None
    there.change(lambda users: added(users, KEY, 1000, 0))
    assert there.verifier("ada", KEY.key_id) == KEY.verifier()
    now_s[0] += USERS_REFRESH_S
    assert here.verifier("ada", KEY.key_id) == KEY.verifier()
    assert store.list_records(USERS_PREFIX)


def test_no_change_of_two_servers_is_lost() -> None:
    store, per_server, servers = MemoryStore(), 20, 4
    names = [[f"u{server}-{n}" for n in range(per_server)] for server in range(servers)]

    def with_user(name: str, users: Users) -> Users:
        return {**users, name: User()}

    def change(own: list[str]) -> None:
        users = UserStore(store)
        for name in own:
            users.change(partial(with_user, name))

    with ThreadPoolExecutor(servers) as threads:
        list(threads.map(change, names))
    assert set(UserStore(store).current()) == {name for own in names for name in own}
    assert len(store.list_records(USERS_PREFIX)) <= VERSIONS_KEPT + servers
