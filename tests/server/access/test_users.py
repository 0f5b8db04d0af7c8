"""The table of users in the object store, and how soon a change counts."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from dieselfs_server.access.accounts import Accounts, User
from dieselfs_server.access.accounts_record import USERS_PREFIX
from dieselfs_server.access.users import USERS_REFRESH_S, VERSIONS_KEPT, UserStore
from dieselfs_server.store.memory import MemoryStore
from tests.server.access.test_accounts import KEY, added


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
