"""Handlers for quotas and rates, and for what datasets and users take."""

from collections.abc import Callable, Sequence

import trio

from dieselfs.rpc.limit_kinds import (
    QUOTAS,
    RATES,
    QuotaRecord,
    RateRecord,
    UsageRecord,
    limits_of,
    numbers_of,
)
from dieselfs_server.access.accounts import (
    ALL_DATASETS,
    Accounts,
    Right,
    with_owner,
    with_quota,
    with_rate,
)
from dieselfs_server.admission.quotas.usage import shown_usage
from dieselfs_server.service import Call


async def usage(call: Call) -> Sequence[UsageRecord]:
    usages, named = call.service.usages, call.arguments.dataset
    users: list[str] | None = []
    if named:
        names = [(await call.dataset(Right.READ)).name]
    else:
        names = [each.name for each in await trio.to_thread.run_sync(call.service.metadata.datasets)]
        users = None if await call.right(ALL_DATASETS) >= Right.ADMIN else [call.caller.name]
    found = {name: await call.right(name) for name in names}
    rights = {name: right for name, right in found.items() if right >= Right.READ}

    def read() -> list[UsageRecord]:
        datasets = [
            shown_usage(one, call.caller.name, rights[one.name]) for one in usages.of_datasets([*rights])
        ]
        return [*datasets, *usages.of_users(users)]

    return await trio.to_thread.run_sync(read)


async def set_quota(call: Call) -> None:
    arguments = call.arguments
    quota = limits_of(QUOTAS, arguments)
    await _change(call, lambda accounts: with_quota(accounts, arguments.account, quota))


async def list_quotas(call: Call) -> Sequence[QuotaRecord]:
    accounts = await trio.to_thread.run_sync(call.service.users.current)
    return [
        QuotaRecord(account, **numbers_of(QUOTAS, quota))
        for account, quota in sorted(accounts.quotas.items())
    ]


async def set_rate(call: Call) -> None:
    user, rate = call.arguments.user, limits_of(RATES, call.arguments)
    await trio.to_thread.run_sync(call.service.users.change, lambda accounts: with_rate(accounts, user, rate))


async def list_rates(call: Call) -> Sequence[RateRecord]:
    accounts = await trio.to_thread.run_sync(call.service.users.current)
    return [RateRecord(user, **numbers_of(RATES, rate)) for user, rate in sorted(accounts.rates.items())]


async def set_owner(call: Call) -> None:
    arguments = call.arguments
    await call.dataset(Right.READ)
    await _change(call, lambda accounts: with_owner(accounts, arguments.dataset, arguments.user))


async def _change(call: Call, edit: Callable[[Accounts], Accounts]) -> None:
    """Change what decides about quotas, for all servers at once."""
    await trio.to_thread.run_sync(call.service.users.change, edit)
    await trio.to_thread.run_sync(call.service.quotas.announce)
