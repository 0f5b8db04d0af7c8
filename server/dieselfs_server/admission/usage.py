"""What datasets and users take of their quotas, and have read and written: the traffic of clients. This module calls
the metadata store.

A server counts traffic in memory, and adds its counts to notes of the metadata store each minute and at its end. So all
servers have one sum, and a restart keeps it. A killed server loses the counts since its last flush, and lost metadata
loses all. If a reply of the metadata store is lost, one flush may count twice.

The bytes are all that follow calls and replies: chunks, parts of chunks, snapshots, and the small lists of members of
jobs and of checksums. Bytes within messages, such as those of small files, do not count.
"""

import json
import logging
import random
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

from dieselfs.errors import Damaged, DieselfsError, NotFound, Unavailable
from dieselfs.records import DatasetRecord, DatasetUsage, NoteChange
from dieselfs.rpc.limit_kinds import NO_LIMIT, QUOTAS, Limits, UsageRecord
from dieselfs.telemetry.registry import Registry
from dieselfs_server.access.accounts import (
    DATASET_MARK,
    USER_MARK,
    Accounts,
    Right,
    dataset_account,
    user_account,
)
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.quotas import Amount
from dieselfs_server.leases.lease import until_done
from dieselfs_server.metadata.interface import MetadataStore

NOTE = "traffic"
"""The note of a dataset, and the common note of all users."""

AWAY_MAX = 3
"""A flush ends when this many notes could not be reached: each of them takes seconds."""

_TOTAL = struct.Struct("<qq")
_INVALID = "metadata store: a note about traffic is invalid"


class Transferred(NamedTuple):
    """Bytes."""

    read: int = 0
    written: int = 0

    def plus(self, more: "Transferred") -> "Transferred":
        return Transferred(self.read + more.read, self.written + more.written)

    def minus(self, less: "Transferred") -> "Transferred":
        return Transferred(self.read - less.read, self.written - less.written)

    def note(self) -> bytes:
        return _TOTAL.pack(*self)

    @classmethod
    def of(cls, note: bytes | None) -> "Transferred":
        """Raises Damaged."""
        if note is None:
            return cls()
        try:
            return cls(*_TOTAL.unpack(note))
        except struct.error:
            raise Damaged(f"{_INVALID}: {len(note)} bytes") from None


NOTHING = Transferred()

Table = dict[str, Transferred]
"""By name."""


def table_note(table: Table) -> bytes:
    return json.dumps(table, separators=(",", ":")).encode()


def table_of(note: bytes | None) -> Table:
    """Raises Damaged."""
    try:
        rows = json.loads(note or b"{}").items()
        return {name: Transferred(int(read), int(written)) for name, (read, written) in rows}
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise Damaged(f"{_INVALID}: {error!r}") from None


Counted = TypeVar("Counted", str, bytes)
"""The name of a user, or the ID of a dataset: another dataset of its name has counts of its own."""


@dataclass(eq=False, slots=True)
class _Recent(Generic[Counted]):
    """What this server has counted since its last flush. Thread-safe; no method waits for a store."""

    _lock: Lock = field(default_factory=Lock)
    _counts: dict[Counted, Transferred] = field(default_factory=dict)

    def add(self, counted: Counted, more: Transferred) -> None:
        with self._lock:
            self._counts[counted] = self._counts.get(counted, NOTHING).plus(more)

    def subtract(self, counted: Counted, stored: Transferred) -> None:
        with self._lock:
            left = self._counts.pop(counted).minus(stored)
            if left != NOTHING:
                self._counts[counted] = left

    def get(self, counted: Counted) -> Transferred:
        with self._lock:
            return self._counts.get(counted, NOTHING)

    def copy(self) -> dict[Counted, Transferred]:
        with self._lock:
            return self._counts.copy()


class Traffic:
    """Thread-safe. All methods but `count` block."""

    def __init__(self, metadata: MetadataStore, users: UserStore) -> None:
        self._metadata = metadata
        self._users = users
        self._of_datasets, self._of_users = _Recent[bytes](), _Recent[str]()
        self._lock = Lock()  # held while counts move to the store, so that a reader gets each of them once

    def count(self, user: str, dataset_id: bytes, more: Transferred) -> None:
        """`dataset_id` is empty for a call that names no dataset."""
        self._of_users.add(user, more)
        if dataset_id:
            self._of_datasets.add(dataset_id, more)

    def of_dataset(self, dataset: DatasetRecord) -> Transferred:
        """Raises Damaged, Unavailable."""
        stored = NOTHING
        with self._lock:
            with suppress(NotFound):  # dropped meanwhile
                stored = self._stored(dataset.dataset_id)[1]
            return stored.plus(self._of_datasets.get(dataset.dataset_id))

    def of_users(self) -> Table:
        """Of the users with traffic, ordered by name. Raises Unavailable."""
        with self._lock:
            note, accounts = self._metadata.common_note(NOTE), self._users.current()
            return _of_users(accounts, note, self._of_users.copy())

    def flush(self) -> None:
        """Raises the first of the errors, after all that can be stored; the other counts stay for the next flush."""
        dataset_ids = [*self._of_datasets.copy()]
        random.shuffle(dataset_ids)  # so that after AWAY_MAX it is not always the same ones that wait
        failures: list[DieselfsError] = []
        parts: list[Callable[[], None]] = [
            self._flush_users,
            *(partial(self._flush_dataset, dataset_id) for dataset_id in dataset_ids),
        ]
        for part in parts:
            try:
                with self._lock:
                    part()
            except DieselfsError as error:
                failures.append(error)
                if sum(isinstance(each, Unavailable) for each in failures) == AWAY_MAX:
                    break
        if failures:
            raise failures[0]

    def _flush_dataset(self, dataset_id: bytes) -> None:
        counted = self._of_datasets.get(dataset_id)
        if counted == NOTHING:  # another flush was faster
            return

        def attempt() -> bool:
            note, stored = self._stored(dataset_id)
            change = NoteChange(NOTE, note, stored.plus(counted).note())
            return self._metadata.change_notes(dataset_id, [change])

        with suppress(NotFound):  # dropped; its counts end with it
            until_done(attempt, f"the traffic of dataset {dataset_id.hex()}")
        self._of_datasets.subtract(dataset_id, counted)

    def _flush_users(self) -> None:
        counted = self._of_users.copy()
        if not counted:
            return
        accounts = self._users.newest()  # the counts of a user that is not there end here

        def attempt() -> bool:
            note = self._metadata.common_note(NOTE)
            return self._metadata.change_common_note(
                NoteChange(NOTE, note, table_note(_of_users(accounts, note, counted)))
            )

        until_done(attempt, "the traffic of users")
        for name, stored in counted.items():
            self._of_users.subtract(name, stored)

    def _stored(self, dataset_id: bytes) -> tuple[bytes | None, Transferred]:
        (note,) = self._metadata.notes(dataset_id, [NOTE])
        return note, Transferred.of(note)


def _of_users(accounts: Accounts, note: bytes | None, counted: Table) -> Table:
    """The table in a note with what was counted since, of users that exist."""
    stored = table_of(note)
    names = accounts.users.keys() & (stored.keys() | counted.keys())
    return {name: stored.get(name, NOTHING).plus(counted.get(name, NOTHING)) for name in sorted(names)}


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

    def fullest(self) -> list[tuple[Fill, float]]:
        """The quotas of now, with the share that is used, the fullest first. Blocks. Raises Unavailable."""
        return sorted(self._found(self._users.current(), []), key=lambda each: -each[1])

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
