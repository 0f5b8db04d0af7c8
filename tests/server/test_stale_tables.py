"""What another server has just changed in the table of users decides, although this one has an older copy of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from dieselfs.errors import AccessDenied, AlreadyExists, NotFound
from dieselfs.net.auth import Key
from dieselfs.rpc.messages import thrift
from dieselfs_server.access.accounts import (
    SHARED,
    Accounts,
    Caller,
    Right,
    StoredKey,
    with_grant,
    with_key,
    with_members,
    with_quota,
    without_key,
)
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.quotas import TABLE_NOTE
from dieselfs_server.call import Call
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.service import Service
from dieselfs_server.store.memory import MemoryStore
from tests.support.own_service import call, own_service, parts_of

KEY, NEW = Key.generate("bob"), Key.generate("bob")
BOB = Caller("bob", KEY.key_id)


def with_bob(accounts: Accounts) -> Accounts:
    accounts = with_key(accounts, "bob", KEY.key_id, StoredKey(KEY.verifier(), 0, 0))
    return with_grant(accounts, "bob", "pets", Right.ADMIN)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = own_service(tmp_path, MemoryStore(), SqliteMetadata(":memory:"))
    made.users.change(with_bob)
    return made


def elsewhere(service: Service, edit: Callable[[Accounts], Accounts]) -> None:
    """A change by another server."""
    service.users.current()
    UserStore(parts_of(service, "drop_dataset").store).change(edit)


def by_bob(service: Service, method: str, **arguments: object) -> None:
    struct = getattr(thrift, f"{method}_args")(**arguments)
    trio.run(service.handlers[method], Call(service.access, BOB, method, struct))


def new_key(service: Service) -> None:
    verifier = NEW.verifier()
    by_bob(
        service,
        "add_key",
        user="bob",
        key_id=NEW.key_id,
        verifier=verifier.verifier,
        server_key=verifier.server_key,
        expires_s=0,
    )


def owners(service: Service) -> dict[str, str]:
    return dict(UserStore(parts_of(service, "drop_dataset").store).current().owners)


def test_a_removed_user_does_not_come_back_with_a_key_of_its_own(service: Service) -> None:
    elsewhere(service, lambda accounts: without_key(accounts, "bob", ""))
    with pytest.raises(AccessDenied):
        new_key(service)
    assert "bob" not in UserStore(parts_of(service, "drop_dataset").store).current().users


def test_a_removed_key_or_a_shared_one_neither_adds_nor_expires_keys(service: Service) -> None:
    new_key(service)
    elsewhere(service, lambda accounts: with_members(accounts, SHARED, ["bob"]))
    with pytest.raises(AccessDenied, match="in the group 'shared'"):
        by_bob(service, "expire_key", key_id=NEW.key_id, expires_s=1 << 31)
    elsewhere(service, lambda accounts: without_key(accounts, "bob", KEY.key_id))
    with pytest.raises(AccessDenied, match="was removed"):
        by_bob(service, "expire_key", key_id=NEW.key_id, expires_s=1 << 31)


def test_a_lost_race_for_a_name_leaves_the_owner_of_the_winner(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_bob(service, "create_dataset", name="pets")
    assert owners(service) == {"pets": "bob"}
    other = Caller("eve", "k")
    monkeypatch.setattr(service.access.catalog, "dataset", lambda _name: None)  # as a moment before
    monkeypatch.setattr(Caller, "right_on", lambda *_: Right.ADMIN)
    struct = thrift.create_dataset_args(name="pets")
    with pytest.raises(AlreadyExists):
        trio.run(service.handlers["create_dataset"], Call(service.access, other, "create_dataset", struct))
    assert owners(service) == {"pets": "bob"}


def test_the_owner_ends_before_the_name_can_be_taken(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_bob(service, "create_dataset", name="pets")
    seen: list[dict[str, str]] = []
    names = parts_of(service, "drop_dataset").names
    release = names.release

    def released(name: str, dataset_id: bytes) -> None:
        seen.append(owners(service))
        release(name, dataset_id)

    monkeypatch.setattr(names, "release", released)
    by_bob(service, "drop_dataset", name="pets")
    assert seen == [{}]


def test_a_drop_that_another_one_has_overtaken_leaves_the_next_dataset_of_the_name_its_owner(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_bob(service, "create_dataset", name="pets")
    store = parts_of(service, "drop_dataset").store
    delete = store.delete_dataset

    def delete_late(dataset_id: bytes) -> None:
        monkeypatch.setattr(store, "delete_dataset", delete)
        by_bob(service, "drop_dataset", name="pets")
        by_bob(service, "create_dataset", name="pets")
        delete(dataset_id)

    monkeypatch.setattr(store, "delete_dataset", delete_late)
    with pytest.raises(NotFound):
        by_bob(service, "drop_dataset", name="pets")
    assert owners(service) == {"pets": "bob"}
    assert service.access.catalog.dataset("pets") is not None


def test_a_creation_that_a_drop_has_overtaken_leaves_the_next_dataset_of_the_name_its_owner(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = parts_of(service, "create_dataset").metadata
    create = metadata.create_dataset

    def create_late(name: str, dataset_id: bytes) -> object:
        monkeypatch.setattr(metadata, "create_dataset", create)
        made = create(name, dataset_id)
        call(service, "drop_dataset", name="pets")
        by_bob(service, "create_dataset", name="pets")
        return made

    monkeypatch.setattr(metadata, "create_dataset", create_late)
    service.users.change(lambda accounts: with_key(accounts, "eve", "k", StoredKey(KEY.verifier(), 0, 0)))
    monkeypatch.setattr(Caller, "right_on", lambda *_: Right.ADMIN)
    struct = thrift.create_dataset_args(name="pets")
    eve = Caller("eve", "k")
    trio.run(service.handlers["create_dataset"], Call(service.access, eve, "create_dataset", struct))
    assert owners(service) == {"pets": "bob"}


def table_note(service: Service) -> bytes | None:
    return service.metadata.common_note(TABLE_NOTE)


def test_other_servers_learn_at_once_that_a_user_is_gone(service: Service) -> None:
    """Its datasets have no owner then, whose quota would count."""
    service.users.change(lambda accounts: with_quota(accounts, "user:*", {"stored_bytes": 1000}))
    before = table_note(service)
    call(service, "remove_key", user="bob", key_id=KEY.key_id)
    assert table_note(service) == before
    call(service, "remove_key", user="bob", key_id="")
    assert table_note(service) != before


def test_a_dataset_without_an_owner_changes_no_table(service: Service) -> None:
    service.users.change(lambda accounts: with_quota(accounts, "user:*", {"stored_bytes": 1000}))
    call(service, "create_dataset", name="ants")
    call(service, "drop_dataset", name="ants")
    assert table_note(service) is None
    by_bob(service, "create_dataset", name="pets")
    assert table_note(service) is not None
