"""The table of users in the object store, and how soon a change counts."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from dieselfs.errors import Damaged
from dieselfs_server.access.accounts import (
    Accounts,
    Right,
    User,
    token,
    with_bar,
    with_grant,
    with_key,
    with_members,
)
from dieselfs_server.access.users import (
    USERS_PREFIX,
    USERS_REFRESH_S,
    VERSIONS_KEPT,
    UserStore,
    decode_accounts,
    encode_accounts,
)
from dieselfs_server.store.memory import MemoryStore
from tests.server.access.test_accounts import KEY, added, table


def test_a_change_at_another_server_counts_within_the_stated_time() -> None:
    now_s = [1000.0]
    store = MemoryStore()
    here, there = (UserStore(store, lambda: now_s[0]) for _ in range(2))
    assert here.verifier("ada", KEY.key_id) is None
    there.change(lambda accounts: added(accounts, KEY, 1000, 0))
    assert there.verifier("ada", KEY.key_id) == KEY.verifier()
    now_s[0] += USERS_REFRESH_S
    assert here.verifier("ada", KEY.key_id) == KEY.verifier()
    assert store.list_records(USERS_PREFIX)


def test_no_change_of_two_servers_is_lost() -> None:
    store, per_server, servers = MemoryStore(), 20, 4
    names = [[f"u{server}-{n}" for n in range(per_server)] for server in range(servers)]

    def with_user(name: str, accounts: Accounts) -> Accounts:
        return replace(accounts, users={**accounts.users, name: User()})

    def change(own: list[str]) -> None:
        users = UserStore(store)
        for name in own:
            users.change(partial(with_user, name))

    with ThreadPoolExecutor(servers) as threads:
        list(threads.map(change, names))
    assert set(UserStore(store).current().users) == {name for own in names for name in own}
    assert len(store.list_records(USERS_PREFIX)) <= VERSIONS_KEPT + servers


def test_the_record_survives_and_damage_is_noticed() -> None:
    record = encode_accounts(table(expires_s=5))
    assert decode_accounts(record) == table(expires_s=5)
    assert KEY.secret.hex().encode() not in record
    for content in (
        *(b"", b"{}", b"[" * 100_000, record[:-5]),
        record.replace(b'"format": 1', b'"format": 9'),
        record.replace(b'"expires_s": 5', b'"expires_s": 1e999'),
    ):
        with pytest.raises(Damaged):
            decode_accounts(content)


def test_only_a_table_with_groups_has_the_format_that_older_servers_refuse() -> None:
    assert b'"format": 1' in encode_accounts(added(Accounts(), KEY))
    grouped = with_grant(with_members(table(), "vision", ["ada"]), "group:vision", "scans", Right.WRITE)
    record = encode_accounts(with_grant(grouped, "group:everyone", "public", Right.READ))
    assert b'"format": 2' in record
    assert decode_accounts(record).groups["vision"] == grouped.groups["vision"]


def test_a_table_with_tokens_has_a_format_that_servers_without_them_refuse() -> None:
    made = token(KEY.verifier(), 0, 9, {"faces": Right.READ})
    record = encode_accounts(with_key(table(), KEY.user, "t1", made))
    assert b'"format": 3' in record
    assert decode_accounts(record).users[KEY.user].keys["t1"] == made


def test_a_barred_user_has_no_key_also_at_servers_that_know_no_bars() -> None:
    users = UserStore(MemoryStore())
    users.change(lambda _: with_bar(table(), "ada", True))
    assert users.verifier("ada", KEY.key_id) is None
    record = encode_accounts(users.current())
    assert b'"format": 4' in record and decode_accounts(record) == users.current()
