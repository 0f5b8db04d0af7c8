"""Keeps the table of accounts in the object store. This module reads and writes the store.

The table is beside the chunks, not in the metadata store, because metadata can be lost and rebuilt, and users cannot.
"""

import secrets
import time
from collections.abc import Callable
from threading import Lock

from dieselfs.errors import Unavailable
from dieselfs.net.auth import Verifier
from dieselfs_server.access.accounts import Accounts
from dieselfs_server.access.accounts_record import USERS_PREFIX, decode_accounts, encode_accounts
from dieselfs_server.store.interface import ObjectStore

VERSIONS_KEPT = 64
"""So a change that is as many versions late cannot create a version that was removed."""
CHANGE_TRIES_MAX = 64
"""Tries of a change of the table; with each lost try, another server has made one."""

USERS_REFRESH_S = 5.0
"""All servers refuse a key within this time after one of them has removed it."""


def _record_name(number: int) -> str:
    """Names sort by version."""
    return f"{USERS_PREFIX}{number:020}"


class UserStore:
    """The table, read from the object store again after USERS_REFRESH_S. All methods block."""

    def __init__(self, store: ObjectStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._lock = Lock()  # guards changes of the three below, and serializes changes of the table
        self._number = 0
        self._accounts = Accounts()
        self._read_s = float("-inf")
        self.salt = secrets.token_bytes(32)

    def current(self) -> Accounts:
        with self._lock:
            return self._refresh(USERS_REFRESH_S)

    def newest(self) -> Accounts:
        """As `current`, with all changes of other servers."""
        with self._lock:
            return self._refresh(0)

    @property
    def latest(self) -> Accounts:
        """As `current`, but of the last time that anybody asked for that: it never blocks."""
        return self._accounts

    def _refresh(self, age_max_s: float) -> Accounts:
        if not 0 <= self._clock() - self._read_s < age_max_s:
            self._number, self._accounts = self._newest()
            self._read_s = self._clock()
        return self._accounts

    def _newest(self) -> tuple[int, Accounts]:
        """Version and content of the table. Raises Damaged."""
        for _ in range(CHANGE_TRIES_MAX):
            records = self._store.list_records(USERS_PREFIX)
            if not records:
                return 0, Accounts()
            content = self._store.get_record(records[-1])
            if content is not None:  # else it is many versions old by now
                return int(records[-1].removeprefix(USERS_PREFIX)), decode_accounts(content)
        raise Unavailable("the table of users changes too fast to be read; try again")

    def change(self, edit: Callable[[Accounts], Accounts]) -> bool:
        """Replace the table by `edit` of it, unless that is the same; durable when this returns. No change of another
        server is lost: `edit` is repeated if there was one. Returns whether the table is another one now. Raises
        Unavailable if there are too many other changes.
        """
        has_changed = False
        with self._lock:
            for _ in range(CHANGE_TRIES_MAX):
                newest = self._refresh(0)
                accounts = edit(newest)
                if accounts == newest:
                    break
                number = self._number + 1
                if self._store.create_record(_record_name(number), encode_accounts(accounts)):
                    self._number, self._accounts, self._read_s = number, accounts, self._clock()
                    has_changed = True
                    break
            else:
                raise Unavailable("too many servers change the table of users at once; try again")
        for old in self._store.list_records(USERS_PREFIX)[:-VERSIONS_KEPT]:
            self._store.delete_record(old)
        return has_changed

    def verifier(self, name: str, key_id: str) -> Verifier | None:
        """The verifier of a valid key of user `name`, or None."""
        user = self.current().users.get(name)
        key = user.keys.get(key_id) if user else None
        return key.verifier if key and key.is_valid(self._clock()) else None
