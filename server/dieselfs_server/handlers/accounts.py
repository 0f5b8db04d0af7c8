"""Handlers for users and their keys, for groups, and for their rights."""

from collections.abc import Callable, Sequence

import trio

from dieselfs.errors import InvalidInput
from dieselfs.net.auth import check_key_id, check_verifier
from dieselfs.rpc.records import GroupRecord, KeyRecord, UserRecord
from dieselfs_server.access.accounts import (
    Accounts,
    Grants,
    Right,
    StoredKey,
    with_expiry,
    with_grant,
    with_key,
    with_members,
    without_key,
    without_members,
)
from dieselfs_server.service import Call


async def add_key(call: Call) -> None:
    """Administrators add keys of all users; others their own, which do not outlive the key that they use."""
    arguments, now_s = call.arguments, call.service.now_ns() // 10**9
    is_own = arguments.user == call.caller.name and not call.caller.is_trusted
    if not is_own:
        await call.require_admin()
    if arguments.expires_s and arguments.expires_s <= now_s:
        raise InvalidInput(f"the key would already be expired: {arguments.expires_s} is in the past")
    verifier = check_verifier(arguments.verifier, arguments.server_key)
    key_id = check_key_id(arguments.key_id)

    def added(accounts: Accounts) -> Accounts:
        expires_s = arguments.expires_s
        if is_own:
            used = call.caller.key(accounts, now_s)
            accounts.check_may_change_own_keys(arguments.user)
            expires_s = min(expires_s or used.expires_s, used.expires_s or expires_s)
        return with_key(accounts, arguments.user, key_id, StoredKey(verifier, now_s, expires_s))

    await _change(call, added)


async def expire_key(call: Call) -> None:
    arguments, now_s = call.arguments, call.service.now_ns() // 10**9
    if arguments.expires_s <= now_s:
        raise InvalidInput(f"a key cannot expire in the past ({arguments.expires_s}): remove it")
    name = call.caller.name

    def expired(accounts: Accounts) -> Accounts:
        accounts.check_may_change_own_keys(name)
        return with_expiry(accounts, name, arguments.key_id, arguments.expires_s)

    await _change(call, expired)


async def remove_key(call: Call) -> None:
    arguments, quotas = call.arguments, call.service.quotas
    await _change(call, lambda accounts: without_key(accounts, arguments.user, arguments.key_id))
    if not arguments.key_id:  # its quota and datasets, too, are no longer those of a user
        await trio.to_thread.run_sync(quotas.announce)


async def grant(call: Call) -> None:
    arguments, right = call.arguments, Right.parse(call.arguments.right)
    await _change(call, lambda accounts: with_grant(accounts, arguments.user, arguments.dataset, right))


async def add_members(call: Call) -> None:
    arguments = call.arguments
    await _change(call, lambda accounts: with_members(accounts, arguments.group, arguments.users))


async def remove_members(call: Call) -> None:
    arguments = call.arguments
    await _change(call, lambda accounts: without_members(accounts, arguments.group, arguments.users))


async def _change(call: Call, edit: Callable[[Accounts], Accounts]) -> None:
    def checked(accounts: Accounts) -> Accounts:
        """Of the newest table: a key that was removed a moment ago changes nothing any more."""
        if not call.caller.is_trusted:
            call.caller.key(accounts, call.service.now_ns() / 10**9)
        return edit(accounts)

    await trio.to_thread.run_sync(call.service.users.change, checked)


async def list_users(call: Call) -> Sequence[UserRecord]:
    accounts = await trio.to_thread.run_sync(call.service.users.current)
    return [
        UserRecord(
            name,
            tuple(KeyRecord(key_id, key.created_s, key.expires_s) for key_id, key in user.keys.items()),
            _shown(user.grants),
        )
        for name, user in sorted(accounts.users.items())
    ]


async def list_groups(call: Call) -> Sequence[GroupRecord]:
    accounts = await trio.to_thread.run_sync(call.service.users.current)
    return [
        GroupRecord(name, tuple(sorted(group.members)), _shown(group.grants))
        for name, group in sorted(accounts.groups.items())
    ]


def _shown(grants: Grants) -> dict[str, str]:
    return {dataset: right.name.lower() for dataset, right in grants.items()}
