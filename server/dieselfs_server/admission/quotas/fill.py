"""How full the quotas of datasets and users are, as metrics. This module calls the metadata store.

`update` is called periodically, so that a request for metrics never waits for a store.
"""

from collections import defaultdict
from collections.abc import Iterator
from heapq import nlargest

from dieselfs.errors import Damaged
from dieselfs.rpc.limit_kinds import QUOTAS, Limits
from dieselfs.telemetry.registry import Registry
from dieselfs_server.access.accounts import DATASET_MARK, Accounts, user_account
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.quotas.holds import Amount
from dieselfs_server.metadata.interface import MetadataStore

FILLS_MAX = 1000
"""Only the fullest have metrics."""

Fill = tuple[str, str]
"""An account, and the value of the label `limit`: `bytes` or `files`."""

_LABELS = {kind.name: kind.field.removeprefix("quota_") for kind in QUOTAS}


def used_shares(quota: Limits, amount: Amount) -> Iterator[tuple[str, float]]:
    """The label and the used share of each limit of a quota; a limit of 0 is always full."""
    for name, most in quota.items():
        yield _LABELS[name], getattr(amount, name) / most if most else 1.0


class QuotaFill:
    """Metrics of the quotas that were there at the last `update`."""

    def __init__(self, metadata: MetadataStore, users: UserStore, metrics: Registry) -> None:
        self._metadata = metadata
        self._users = users
        self._metrics = metrics
        self._shares: dict[Fill, float] = {}
        self._declared: set[Fill] = set()

    def update(self) -> None:
        """Blocks; for one thread at a time. Raises Unavailable; and Damaged, after the update of all other quotas."""
        damages: list[Damaged] = []
        found = self._found(self._users.current(), damages)
        self._shares = dict(nlargest(FILLS_MAX, found, key=lambda each: each[1]))
        for fill in self._shares.keys() - self._declared:
            self._declare(fill)
        for fill in self._declared - self._shares.keys():
            self._metrics.remove("quota.used_share", *fill)
        self._declared = set(self._shares)
        if damages:
            raise damages[0]

    def _found(self, accounts: Accounts, damages: list[Damaged]) -> Iterator[tuple[Fill, float]]:
        """Accounts with damaged metadata are left out, and are added to `damages`."""
        for account, quota, datasets in _limited(accounts):
            try:
                amount = Amount.of_datasets(self._metadata.usage(datasets))
            except Damaged as error:
                damages.append(error)
                continue
            for limit, share in used_shares(quota, amount):
                yield (account, limit), share

    def _declare(self, fill: Fill) -> None:
        (account, limit), metrics = fill, self._metrics
        metrics.gauge(
            "quota.used_share",
            "How full a limit of a quota is, as of the last minute.",
            lambda: self._shares.get(fill),
            account=account,
            limit=limit,
        )


def _limited(accounts: Accounts) -> Iterator[tuple[str, Limits, list[str]]]:
    """Each account with a quota, and its datasets."""
    owned: defaultdict[str, list[str]] = defaultdict(list)
    for dataset, owner in accounts.owners.items():
        owned[owner].append(dataset)
    for account, quota in accounts.quotas.items():
        if account.startswith(DATASET_MARK):
            yield account, quota, [account.removeprefix(DATASET_MARK)]
    for user, datasets in sorted(owned.items()):
        if quota_of_user := accounts.quota_of_user(user):
            yield user_account(user), quota_of_user, datasets
