"""What datasets and users take of their quotas, and have read and written. This module calls the metadata store."""

import logging
from collections import defaultdict
from collections.abc import Collection, Sequence

from dieselfs.errors import Damaged
from dieselfs.records import DatasetRecord, DatasetUsage
from dieselfs.rpc.limit_kinds import NO_LIMIT, QUOTAS, Limits, UsageRecord
from dieselfs_server.access.accounts import USER_MARK, Accounts, Right, dataset_account
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.quotas.holds import Amount
from dieselfs_server.admission.traffic import NOTHING, Table, Traffic, Transferred
from dieselfs_server.metadata.interface import MetadataStore

log = logging.getLogger(__name__)


class Usages:
    """Thread-safe. All methods block, and raise Unavailable. The caller decides who may see what they return."""

    def __init__(self, metadata: MetadataStore, users: UserStore, traffic: Traffic) -> None:
        self._metadata = metadata
        self._users = users
        self._traffic = traffic

    def of_datasets(self, names: Sequence[str]) -> list[UsageRecord]:
        """In their order, without those that do not exist."""
        accounts = self._users.current()
        usages = [one for one in self._metadata.usage(names) if one is not None]
        return [
            _record(
                ("dataset", one.record.name, accounts.owners.get(one.record.name, "")),
                [one],
                accounts.quotas.get(dataset_account(one.record.name)),
                self._moved(one.record),
            )
            for one in usages
        ]

    def _moved(self, dataset: DatasetRecord) -> Transferred:
        """Nothing if the note is damaged, which must not hide all other figures."""
        try:
            return self._traffic.of_dataset(dataset)
        except Damaged as error:
            log.warning("the traffic of %s is not shown: %s", dataset.name, error)
            return NOTHING

    def of_users(self, users: Collection[str] | None = None) -> list[UsageRecord]:
        """Ordered by name. None: all who own datasets, have a quota of their own, or have read or written."""
        accounts, traffic = self._users.current(), self._traffic.of_users()
        shown = sorted(_known(accounts, traffic) if users is None else users)
        owned = self._owned(accounts, frozenset(shown))
        return [
            _record(("user", user, ""), owned[user], accounts.quota_of_user(user), traffic.get(user, NOTHING))
            for user in shown
        ]

    def _owned(self, accounts: Accounts, users: Collection[str]) -> defaultdict[str, list[DatasetUsage]]:
        """The datasets of users."""
        names = [dataset for dataset, owner in accounts.owners.items() if owner in users]
        found: defaultdict[str, list[DatasetUsage]] = defaultdict(list)
        for name, usage in zip(names, self._metadata.usage(names), strict=True):
            if usage is not None:
                found[accounts.owners[name]].append(usage)
        return found


def _known(accounts: Accounts, traffic: Table) -> set[str]:
    limited = {name.removeprefix(USER_MARK) for name in accounts.quotas if name.startswith(USER_MARK)}
    return (limited & accounts.users.keys()) | set(accounts.owners.values()) | traffic.keys()


def shown_usage(usage: UsageRecord, user: str, right: Right) -> UsageRecord:
    """The usage of a dataset as a user with this right may see it: readers do not learn the names of other users."""
    return usage if right >= Right.WRITE or usage.owner == user else usage._replace(owner="")


def _record(
    whose: tuple[str, str, str], datasets: Sequence[DatasetUsage], quota: Limits | None, moved: Transferred
) -> UsageRecord:
    """`whose`: kind, name and owner; `datasets`: those that count."""
    numbers = {
        **Amount.of_datasets(datasets)._asdict(),
        **{kind.field: (quota or {}).get(kind.name, NO_LIMIT) for kind in QUOTAS},
    }
    total_bytes = sum(one.record.total_bytes for one in datasets)
    return UsageRecord(
        *whose, total_bytes=total_bytes, read_bytes=moved.read, written_bytes=moved.written, **numbers
    )
