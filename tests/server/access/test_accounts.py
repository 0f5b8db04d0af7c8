"""Who may do what: keys, rights of users and groups, and the record of the table."""

from dataclasses import replace

import pytest

from dieselfs.errors import AccessDenied, AlreadyExists, InvalidInput, NotFound
from dieselfs.net.auth import Key
from dieselfs.rpc.serving.handshake import LOCAL_USER
from dieselfs_server.access.accounts import (
    EVERYONE,
    KEYS_PER_USER_MAX,
    SHARED,
    TOKEN_LIFETIME_S_MAX,
    TOKENS_PER_USER_MAX,
    Accounts,
    Caller,
    Right,
    StoredKey,
    token,
    with_bar,
    with_expiry,
    with_grant,
    with_key,
    with_members,
    without_key,
    without_members,
)

KEY = Key.generate("ada")


def added(accounts: Accounts, key: Key, now_s: int = 0, expires_s: int = 0) -> Accounts:
    return with_key(accounts, key.user, key.key_id, StoredKey(key.verifier(), now_s, expires_s))


def table(expires_s: int = 0) -> Accounts:
    accounts = added(Accounts(), KEY, 100, expires_s)
    return with_grant(with_grant(accounts, "ada", "faces", Right.WRITE), "ada", "*", Right.READ)


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


def test_a_barred_user_keeps_rights_and_keys_that_count_again_later() -> None:
    caller, barred = Caller("ada", KEY.key_id), with_bar(table(), "ada", True)
    assert caller.right_on("faces", barred, 200) is Right.NONE
    with pytest.raises(AccessDenied, match="ada is barred"):
        caller.key(barred, 200)
    assert with_bar(barred, "ada", False) == table()
    with pytest.raises(NotFound):
        with_bar(table(), "bert", True)


def test_two_keys_are_valid_at_once() -> None:
    second = Key.generate("ada")
    accounts = added(table(), second, 300, 0)
    assert set(accounts.users["ada"].keys) == {KEY.key_id, second.key_id}
    assert accounts.users["ada"].grants == table().users["ada"].grants


def test_a_key_is_added_once_and_no_other_takes_its_id() -> None:
    accounts = table()
    assert added(accounts, KEY, 300) == accounts
    with pytest.raises(AlreadyExists):
        added(accounts, replace(Key.generate("ada"), key_id=KEY.key_id))


def test_an_expired_key_makes_room() -> None:
    accounts = table(expires_s=150)
    for _ in range(KEYS_PER_USER_MAX):
        accounts = added(accounts, Key.generate("ada"), 200)
    assert KEY.key_id not in accounts.users["ada"].keys


def test_a_key_expires_earlier_but_never_later() -> None:
    assert with_expiry(table(), "ada", KEY.key_id, 500).users["ada"].keys[KEY.key_id].expires_s == 500
    assert (
        with_expiry(table(expires_s=150), "ada", KEY.key_id, 500).users["ada"].keys[KEY.key_id].expires_s
        == 150
    )
    with pytest.raises(NotFound):
        with_expiry(table(), "ada", "nokey", 500)


def test_limits_and_unknown_users() -> None:
    accounts = table()
    for _ in range(KEYS_PER_USER_MAX - 1):
        accounts = added(accounts, Key.generate("ada"), 0, 0)
    with pytest.raises(InvalidInput, match="keys"):
        added(accounts, Key.generate("ada"), 0, 0)
    with pytest.raises(NotFound):
        with_grant(accounts, "eve", "*", Right.READ)
    with pytest.raises(NotFound):
        without_key(accounts, "ada", "nokey")
    with pytest.raises(InvalidInput):
        with_grant(accounts, "ada", "../x", Right.READ)
    with pytest.raises(InvalidInput):
        Right.parse("root")


def test_a_group_gives_its_rights_to_its_members_alone() -> None:
    caller, eve = Caller("ada", KEY.key_id), Key.generate("eve")
    accounts = with_members(added(table(), eve), "vision", ["ada"])
    accounts = with_grant(accounts, "group:vision", "scans", Right.ADMIN)
    assert caller.right_on("scans", accounts, 200) is Right.ADMIN
    assert caller.right_on("faces", accounts, 200) is Right.WRITE
    assert Caller("eve", eve.key_id).right_on("scans", accounts, 200) is Right.NONE
    assert caller.right_on("scans", without_members(accounts, "vision", ["ada"]), 200) is Right.READ
    assert caller.right_on("scans", without_members(accounts, "vision", []), 200) is Right.READ
    assert (
        caller.right_on("scans", with_grant(accounts, "group:vision", "scans", Right.NONE), 200) is Right.READ
    )


def test_a_removed_user_leaves_the_groups() -> None:
    accounts = with_grant(with_members(table(), "vision", ["ada"]), "group:vision", "scans", Right.WRITE)
    again = added(without_key(accounts, "ada", ""), KEY)
    assert Caller("ada", KEY.key_id).right_on("scans", again, 200) is Right.NONE


def test_everyone_may_read_what_is_public_and_no_more() -> None:
    eve = Key.generate("eve")
    accounts = with_grant(added(table(), eve), f"group:{EVERYONE}", "public", Right.READ)
    caller = Caller("eve", eve.key_id)
    assert caller.right_on("public", accounts, 200) is Right.READ
    assert caller.right_on("faces", accounts, 200) is Right.NONE
    assert Caller("stranger", "key").right_on("public", accounts, 200) is Right.NONE
    for right in (Right.WRITE, Right.ADMIN):
        with pytest.raises(InvalidInput, match="everyone may read"):
            with_grant(accounts, f"group:{EVERYONE}", "public", right)
    with pytest.raises(InvalidInput, match="all users"):
        with_members(accounts, EVERYONE, ["eve"])


def test_groups_have_known_members_only() -> None:
    with pytest.raises(NotFound, match="eve"):
        with_members(table(), "vision", ["ada", "eve"])
    with pytest.raises(NotFound, match="no group"):
        with_grant(table(), "group:vision", "faces", Right.READ)
    accounts = with_members(table(), "vision", ["ada"])
    with pytest.raises(NotFound, match="not in group"):
        without_members(accounts, "vision", ["eve"])
    with pytest.raises(InvalidInput):
        with_members(table(), "group:vision", ["ada"])


def test_a_user_whose_key_is_shared_cannot_change_its_keys() -> None:
    table().check_may_change_own_keys("ada")
    accounts = with_members(table(), SHARED, ["ada"])
    with pytest.raises(AccessDenied, match="administrator"):
        accounts.check_may_change_own_keys("ada")


def test_nobody_takes_the_name_of_trusted_callers() -> None:
    with pytest.raises(InvalidInput, match="take another"):
        added(Accounts(), Key.generate(LOCAL_USER))


TOKEN = Key.generate("ada")


def with_token(accounts: Accounts, now_s: int = 200, lifetime_s: int = 100, **grants: Right) -> Accounts:
    made = token(TOKEN.verifier(), now_s, now_s + lifetime_s, grants)
    return with_key(accounts, "ada", TOKEN.key_id, made)


def test_a_token_has_what_it_names_and_its_user_has() -> None:
    caller = Caller("ada", TOKEN.key_id)
    accounts = with_token(table(), faces=Right.READ, other=Right.WRITE)
    rights = {name: caller.right_on(name, accounts, 250) for name in ("faces", "other", "third", "*")}
    assert rights == {"faces": Right.READ, "other": Right.READ, "third": Right.NONE, "*": Right.NONE}
    assert caller.has_right(accounts, 250)
    assert caller.right_on("faces", accounts, 300) is Right.NONE
    for name in ("faces", "*"):
        accounts = with_grant(accounts, "ada", name, Right.NONE)
    assert caller.right_on("faces", accounts, 250) is Right.NONE and not caller.has_right(accounts, 250)
    assert Caller("ada", KEY.key_id).right_on("faces", table(), 250) is Right.WRITE


def test_a_token_of_an_administrator_manages_nothing() -> None:
    accounts = with_grant(with_token(table(), faces=Right.WRITE), "ada", "*", Right.ADMIN)
    caller = Caller("ada", TOKEN.key_id)
    assert caller.right_on("*", accounts, 250) is Right.NONE
    assert caller.right_on("faces", accounts, 250) is Right.WRITE
    with pytest.raises(AccessDenied, match="is a token of user ada, and changes no keys"):
        caller.key_for_keys(accounts, 250)
    assert Caller("ada", KEY.key_id).key_for_keys(accounts, 250) == accounts.users["ada"].keys[KEY.key_id]


@pytest.mark.parametrize(
    ("lifetime_s", "grants", "reason"),
    [
        (0, {"x": Right.READ}, "for a second to 31 days"),
        (TOKEN_LIFETIME_S_MAX + 1, {"x": Right.READ}, "for a second to 31 days"),
        (1, {}, "for 1 to 16 datasets, not 0"),
        (1, {f"x{number}": Right.READ for number in range(17)}, "not 17"),
        (1, {"x": Right.ADMIN}, "may read or write a dataset, not admin it"),
        (1, {"x": Right.NONE}, "not none it"),
        (1, {"*": Right.READ}, "dataset name"),
    ],
)
def test_what_a_token_cannot_be(lifetime_s: int, grants: dict[str, Right], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        with_token(table(), 200, lifetime_s, **grants)


def test_tokens_take_no_room_of_keys() -> None:
    accounts = table()
    for _ in range(TOKENS_PER_USER_MAX):
        key = Key.generate("ada")
        made = token(key.verifier(), 200, 300, {"faces": Right.READ})
        accounts = with_key(accounts, "ada", key.key_id, made)
    with pytest.raises(InvalidInput, match="32 tokens"):
        with_token(accounts, faces=Right.READ)
    assert KEY.key_id in with_token(accounts, now_s=301, faces=Right.READ).users["ada"].keys
    added(accounts, Key.generate("ada"), 200)
