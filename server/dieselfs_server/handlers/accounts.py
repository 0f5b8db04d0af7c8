"""Handlers for users, keys, groups and rights, for quotas and rates, and for what datasets and users take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import time

import trio

from dieselfs.errors import InvalidInput
from dieselfs.net.auth import check_key_id, check_verifier
from dieselfs.rpc.limit_kinds import (
    QUOTAS,
    RATES,
    QuotaRecord,
    RateRecord,
    UsageRecord,
    limits_of,
    numbers_of,
)
from dieselfs.rpc.records import GroupRecord, KeyRecord, UserRecord
from dieselfs_server.access.accounts import (
    ALL_DATASETS,
    Accounts,
    Grants,
    Right,
    StoredKey,
    check_may_give,
    token,
    token_end_s,
    with_bar,
    with_expiry,
    with_grant,
    with_key,
    with_members,
    with_owner,
    with_quota,
    with_rate,
    without_key,
    without_members,
)
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.quotas import Quotas
from dieselfs_server.admission.usage import Usages, shown_usage
from dieselfs_server.call import Call
from dieselfs_server.metadata.interface import MetadataStore


@dataclass(frozen=True, eq=False)
class AccountCalls:
    metadata: MetadataStore
    users: UserStore
    quotas: Quotas
    usages: Usages

    async def add_key(self, call: Call) -> None:
        """Administrators add keys of all users; others their own, which do not outlive the key that they use."""
        arguments, now_s = call.arguments, int(time())
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
                used = call.caller.key_for_keys(accounts, now_s)
                expires_s = min(expires_s or used.expires_s, used.expires_s or expires_s)
            return with_key(accounts, arguments.user, key_id, StoredKey(verifier, now_s, expires_s))

        await self._change(call, added)

    async def add_token(self, call: Call) -> None:
        """Users add tokens of their own, which do not outlive the key that they use."""
        arguments, caller, now_s = call.arguments, call.caller, int(time())
        if caller.is_trusted:
            raise InvalidInput("a token is of a user: connect with a key")
        verifier = check_verifier(arguments.verifier, arguments.server_key)
        key_id = check_key_id(arguments.key_id)
        grants = dict.fromkeys(arguments.datasets, Right.parse(arguments.right))
        added = token(verifier, now_s, arguments.expires_s, grants)

        def edit(accounts: Accounts) -> Accounts:
            used = caller.key_for_keys(accounts, now_s)
            check_may_give(accounts, caller.name, grants)
            expires_s = token_end_s(caller.name, used, now_s, added.expires_s)
            return with_key(accounts, caller.name, key_id, replace(added, expires_s=expires_s))

        await self._change(call, edit)

    async def expire_key(self, call: Call) -> None:
        arguments, now_s = call.arguments, int(time())
        if arguments.expires_s <= now_s:
            raise InvalidInput(f"a key cannot expire in the past ({arguments.expires_s}): remove it")
        name = call.caller.name

        def expired(accounts: Accounts) -> Accounts:
            call.caller.key_for_keys(accounts, now_s)
            return with_expiry(accounts, name, arguments.key_id, arguments.expires_s)

        await self._change(call, expired)

    async def remove_key(self, call: Call) -> None:
        """Administrators remove users and keys; others their own keys."""
        arguments, caller, now_s = call.arguments, call.caller, time()
        is_user = not arguments.key_id  # its quota and datasets, too, are no longer those of a user
        is_admin = await call.right(ALL_DATASETS) >= Right.ADMIN
        if not is_admin and (is_user or arguments.user != caller.name):
            await call.require_admin()

        def removed(accounts: Accounts) -> Accounts:
            if not is_admin:
                caller.key_for_keys(accounts, now_s)
            return without_key(accounts, arguments.user, arguments.key_id)

        await self._change(call, removed, is_user)

    async def bar_user(self, call: Call) -> None:
        arguments = call.arguments
        await self._change(call, lambda accounts: with_bar(accounts, arguments.user, arguments.is_barred))

    async def grant(self, call: Call) -> None:
        arguments, right = call.arguments, Right.parse(call.arguments.right)
        await self._change(
            call, lambda accounts: with_grant(accounts, arguments.user, arguments.dataset, right)
        )

    async def add_members(self, call: Call) -> None:
        arguments = call.arguments
        await self._change(call, lambda accounts: with_members(accounts, arguments.group, arguments.users))

    async def remove_members(self, call: Call) -> None:
        arguments = call.arguments
        await self._change(call, lambda accounts: without_members(accounts, arguments.group, arguments.users))

    async def list_users(self, call: Call) -> Sequence[UserRecord]:
        """Of callers who are no administrators, only themselves; with a token, only this key."""
        accounts = await trio.to_thread.run_sync(self.users.current)
        users, caller = accounts.users, call.caller
        if await call.right(ALL_DATASETS) < Right.ADMIN:
            used, user = caller.key(accounts, time()), users[caller.name]
            users = {caller.name: replace(user, keys={caller.key_id: used}) if used.grants else user}
        return [
            UserRecord(
                name,
                tuple(
                    KeyRecord(key_id, key.created_s, key.expires_s, _shown(key.grants))
                    for key_id, key in user.keys.items()
                ),
                _shown(user.grants),
                user.is_barred,
                tuple(sorted(user.groups)),
            )
            for name, user in sorted(users.items())
        ]

    async def list_groups(self, call: Call) -> Sequence[GroupRecord]:
        accounts = await trio.to_thread.run_sync(self.users.current)
        return [
            GroupRecord(name, tuple(sorted(group.members)), _shown(group.grants))
            for name, group in sorted(accounts.groups.items())
        ]

    async def usage(self, call: Call) -> Sequence[UsageRecord]:
        usages, named = self.usages, call.arguments.dataset
        users: list[str] | None = []
        if named:
            names = [(await call.dataset(Right.READ)).name]
        else:
            names = [each.name for each in await trio.to_thread.run_sync(self.metadata.datasets)]
            users = None if await call.right(ALL_DATASETS) >= Right.ADMIN else [call.caller.name]
        found = await call.rights(names)
        rights = {name: right for name, right in found.items() if right >= Right.READ}

        def read() -> list[UsageRecord]:
            datasets = [
                shown_usage(one, call.caller.name, rights[one.name]) for one in usages.of_datasets([*rights])
            ]
            return [*datasets, *usages.of_users(users)]

        return await trio.to_thread.run_sync(read)

    async def set_quota(self, call: Call) -> None:
        arguments = call.arguments
        quota = limits_of(QUOTAS, arguments)
        await self._change(call, lambda accounts: with_quota(accounts, arguments.account, quota), True)

    async def list_quotas(self, call: Call) -> Sequence[QuotaRecord]:
        accounts = await trio.to_thread.run_sync(self.users.current)
        return [
            QuotaRecord(account, **numbers_of(QUOTAS, quota))
            for account, quota in sorted(accounts.quotas.items())
        ]

    async def set_rate(self, call: Call) -> None:
        user, rate = call.arguments.user, limits_of(RATES, call.arguments)
        await self._change(call, lambda accounts: with_rate(accounts, user, rate))

    async def list_rates(self, call: Call) -> Sequence[RateRecord]:
        accounts = await trio.to_thread.run_sync(self.users.current)
        return [RateRecord(user, **numbers_of(RATES, rate)) for user, rate in sorted(accounts.rates.items())]

    async def set_owner(self, call: Call) -> None:
        arguments = call.arguments
        await call.dataset(Right.READ)
        await self._change(
            call, lambda accounts: with_owner(accounts, arguments.dataset, arguments.user), True
        )

    async def _change(
        self, call: Call, edit: Callable[[Accounts], Accounts], is_of_quotas: bool = False
    ) -> None:
        """Change the table; `is_of_quotas`: all servers decide by it at once."""

        def checked(accounts: Accounts) -> Accounts:
            """Edit the newest table: a key that was removed a moment ago changes nothing any more."""
            if not call.caller.is_trusted:
                call.caller.key(accounts, time())
            return edit(accounts)

        await trio.to_thread.run_sync(self.users.change, checked)
        if is_of_quotas:
            await trio.to_thread.run_sync(self.quotas.announce)


def _shown(grants: Grants) -> dict[str, str]:
    return {dataset: right.name.lower() for dataset, right in grants.items()}
