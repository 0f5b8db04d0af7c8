"""Handlers for quotas and rates, and for what datasets and users take."""

from collections.abc import Sequence
from dataclasses import astuple

import trio

from dieselfs.errors import InvalidInput
from dieselfs.rpc.records import NO_LIMIT, QuotaRecord, RateRecord, UsageRecord
from dieselfs_server.accounts import ALL_DATASETS, Quota, Rate, Right, with_owner, with_quota, with_rate
from dieselfs_server.quotas.usage import limits
from dieselfs_server.service import Call


async def usage(call: Call) -> Sequence[UsageRecord]:
    usages = call.service.usages
    if call.arguments.dataset:
        names = [(await call.dataset(Right.READ)).name]
        return await trio.to_thread.run_sync(usages.of_datasets, names)
    datasets = await trio.to_thread.run_sync(call.service.metadata.datasets)
    names = [dataset.name for dataset in datasets if await call.right(dataset.name) >= Right.READ]
    users = None if await call.right(ALL_DATASETS) >= Right.ADMIN else [call.caller.name]
    return await trio.to_thread.run_sync(lambda: [*usages.of_datasets(names), *usages.of_users(users)])


async def set_quota(call: Call) -> None:
    await call.require_admin()
    arguments = call.arguments
    quota = Quota(_limit(arguments.stored_bytes), _limit(arguments.files))
    users = call.service.users
    await trio.to_thread.run_sync(
        users.change, lambda accounts: with_quota(accounts, arguments.account, quota)
    )


def _limit(number: int) -> int | None:
    if number < NO_LIMIT:
        raise InvalidInput(f"a limit of {number} is out of range")
    return None if number == NO_LIMIT else number


async def list_quotas(call: Call) -> Sequence[QuotaRecord]:
    await call.require_admin()
    accounts = await trio.to_thread.run_sync(call.service.users.current)
    return [QuotaRecord(account, *limits(quota)) for account, quota in sorted(accounts.quotas.items())]


async def set_rate(call: Call) -> None:
    await call.require_admin()
    a = call.arguments
    rate = Rate(_limit(a.bytes_per_s), _limit(a.requests_per_s), _limit(a.job_bytes_per_s))
    await trio.to_thread.run_sync(
        call.service.users.change, lambda accounts: with_rate(accounts, a.user, rate)
    )


async def list_rates(call: Call) -> Sequence[RateRecord]:
    await call.require_admin()
    accounts = await trio.to_thread.run_sync(call.service.users.current)
    return [
        RateRecord(user, *(NO_LIMIT if limit is None else limit for limit in astuple(rate)))
        for user, rate in sorted(accounts.rates.items())
    ]


async def set_owner(call: Call) -> None:
    await call.require_admin()
    arguments = call.arguments
    users = call.service.users
    await call.dataset(Right.READ)
    await trio.to_thread.run_sync(
        users.change, lambda accounts: with_owner(accounts, arguments.dataset, arguments.user)
    )
