"""Handlers for quotas and rates, and for what datasets and users take."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple

import trio

from dieselfs.errors import InvalidInput
from dieselfs.rpc.records import QuotaRecord, RateRecord, UsageRecord
from dieselfs_server.accounts import (
    ALL_DATASETS,
    USER_MARK,
    Accounts,
    Quota,
    Rate,
    Right,
    dataset_account,
    with_owner,
    with_quota,
    with_rate,
)
from dieselfs_server.quotas.admission import used
from dieselfs_server.service import Call
from dieselfs_server.traffic import NOTHING, Table

NO_LIMIT = -1


async def usage(call: Call) -> Sequence[UsageRecord]:
    accounts = await trio.to_thread.run_sync(call.service.users.current)
    if call.arguments.dataset:
        names = [(await call.dataset(Right.READ)).name]
        return await trio.to_thread.run_sync(_of_datasets, call, accounts, names)
    datasets = await trio.to_thread.run_sync(call.service.metadata.datasets)
    names = [dataset.name for dataset in datasets if await call.right(dataset.name) >= Right.READ]
    is_admin = await call.right(ALL_DATASETS) >= Right.ADMIN

    def found() -> list[UsageRecord]:
        traffic = call.service.traffic.of_users()
        users = _users(accounts, traffic) if is_admin else [call.caller.name]
        return [*_of_datasets(call, accounts, names), *_of_users(call, accounts, users, traffic)]

    return await trio.to_thread.run_sync(found)


def _users(accounts: Accounts, traffic: Table) -> list[str]:
    """Those who own datasets, have a quota of their own, or have read or written."""
    limited = {
        account.removeprefix(USER_MARK) for account in accounts.quotas if account.startswith(USER_MARK)
    }
    return sorted((limited & accounts.users.keys()) | set(accounts.owners.values()) | traffic.keys())


def _of_datasets(call: Call, accounts: Accounts, names: Sequence[str]) -> list[UsageRecord]:
    usages = [one for one in call.service.metadata.usage(names) if one is not None]  # None: dropped meanwhile
    traffic = call.service.traffic.of_datasets([one.record for one in usages])
    return [
        UsageRecord(
            "dataset",
            one.record.name,
            accounts.owners.get(one.record.name, ""),
            one.record.files,
            one.record.total_bytes,
            one.stored_bytes,
            *_limits(accounts.quotas.get(dataset_account(one.record.name))),
            *moved,
        )
        for one, moved in zip(usages, traffic, strict=True)
    ]


def _of_users(call: Call, accounts: Accounts, users: Sequence[str], traffic: Table) -> Iterator[UsageRecord]:
    for user in users:
        owned = call.service.metadata.usage(accounts.datasets_of(user))
        total_bytes, amount = sum(one.record.total_bytes for one in owned if one), used(owned)
        limits, moved = _limits(accounts.quota_of_user(user)), traffic.get(user, NOTHING)
        yield UsageRecord("user", user, "", amount.files, total_bytes, amount.stored_bytes, *limits, *moved)


def _limits(quota: Quota | None) -> tuple[int, int]:
    quota = quota or Quota()
    return (
        NO_LIMIT if quota.stored_bytes is None else quota.stored_bytes,
        NO_LIMIT if quota.files is None else quota.files,
    )


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
    return [QuotaRecord(account, *_limits(quota)) for account, quota in sorted(accounts.quotas.items())]


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
