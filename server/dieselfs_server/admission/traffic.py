"""Traffic: the bytes that clients have read from servers and written to them, by dataset and by user.

This module calls the metadata store. A server counts in memory, and adds its counts to notes of the metadata store
each minute and at its end. So all servers have one sum, and a restart keeps it. A killed server loses the counts since
its last flush, and lost metadata loses all. If a reply of the metadata store is lost, one flush may count twice.

The bytes are all that follow calls and replies: chunks, parts of chunks, snapshots, and the small lists of members of
jobs and of checksums. Bytes within messages, such as those of small files, do not count.
"""

import json
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import NamedTuple

from dieselfs.errors import Damaged, DieselfsError, NotFound, Unavailable
from dieselfs.records import DatasetRecord, NoteChange
from dieselfs_server.access.accounts import Accounts
from dieselfs_server.access.users import UserStore
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


@dataclass(eq=False, slots=True)
class _Recent:
    """What this server has counted since its last flush. Thread-safe; no method waits for a store."""

    _lock: Lock = field(default_factory=Lock)
    _counts: Table = field(default_factory=dict)

    def add(self, name: str, more: Transferred) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, NOTHING).plus(more)

    def subtract(self, name: str, stored: Transferred) -> None:
        with self._lock:
            left = self._counts.pop(name).minus(stored)
            if left != NOTHING:
                self._counts[name] = left

    def forget(self, name: str) -> None:
        with self._lock:
            self._counts.pop(name, None)

    def get(self, name: str) -> Transferred:
        with self._lock:
            return self._counts.get(name, NOTHING)

    def copy(self) -> Table:
        with self._lock:
            return self._counts.copy()


class Traffic:
    """Thread-safe. All methods but `count` block."""

    def __init__(self, metadata: MetadataStore, users: UserStore) -> None:
        self._metadata = metadata
        self._users = users
        self._of_datasets, self._of_users = _Recent(), _Recent()
        self._lock = Lock()  # held while counts move to the store, so that a reader gets each of them once

    def count(self, user: str, dataset: str, more: Transferred) -> None:
        """`dataset` is empty for a call that names none."""
        self._of_users.add(user, more)
        if dataset:
            self._of_datasets.add(dataset, more)

    def forget(self, dataset: str) -> None:
        """A dataset was dropped: a new one of its name begins at zero."""
        with self._lock:
            self._of_datasets.forget(dataset)

    def of_dataset(self, dataset: DatasetRecord) -> Transferred:
        """Raises Damaged, Unavailable."""
        stored = NOTHING
        with self._lock:
            with suppress(NotFound):  # dropped meanwhile
                stored = self._stored(dataset.dataset_id)[1]
            return stored.plus(self._of_datasets.get(dataset.name))

    def of_users(self) -> Table:
        """Of the users with traffic, ordered by name. Raises Unavailable."""
        with self._lock:
            note, accounts = self._metadata.common_note(NOTE), self._users.current()
            return _of_users(accounts, note, self._of_users.copy())

    def flush(self) -> None:
        """Raises the first of the errors, after all that can be stored; the other counts stay for the next flush."""
        names = [*self._of_datasets.copy()]
        random.shuffle(names)  # so that after AWAY_MAX it is not always the same ones that wait
        failures: list[DieselfsError] = []
        parts: list[Callable[[], None]] = [
            self._flush_users,
            *(partial(self._flush_dataset, name) for name in names),
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

    def _flush_dataset(self, name: str) -> None:
        counted = self._of_datasets.get(name)
        if counted == NOTHING:  # another flush was faster
            return
        with suppress(NotFound):  # dropped; its counts end with it
            dataset_id = self._metadata.dataset(name).dataset_id

            def attempt() -> bool:
                note, stored = self._stored(dataset_id)
                change = NoteChange(NOTE, note, stored.plus(counted).note())
                return self._metadata.change_notes(dataset_id, [change])

            until_done(attempt, f"the traffic of {name}")
        self._of_datasets.subtract(name, counted)

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
