"""Keeps the table of accounts in the object store. This module reads and writes the store.

The table is beside the chunks, not in the metadata store, because metadata can be lost and rebuilt, and users cannot.

As bytes, a table without groups, quotas and rates has format 1, which older servers read; they drop owners of datasets
at their next change. With any of these it has format 2, which they refuse. With tokens it has format 3: a server that
does not know them would give them all rights of their users. With barred users, or those of an identity provider, it
has format 4.
"""

import json
import secrets
import time
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, Protocol

from dieselfs.errors import Damaged, Unavailable
from dieselfs.net.auth import Verifier
from dieselfs.rpc.limit_kinds import QUOTAS, RATES, LimitKind, Limits
from dieselfs_server.access.accounts import Accounts, Grants, Group, Right, StoredKey, User
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.versions import VersionedRecord

USERS_PREFIX = "users-"
"""Begins the names of the records of the table, one for each version; the newest counts."""

FORMATS = (1, 2, 3, 4)


def encode_accounts(accounts: Accounts) -> bytes:
    groups = {
        name: {"members": sorted(group.members), "grants": _encode_grants(group.grants)}
        for name, group in accounts.groups.items()
    }
    parts: dict[str, object] = {"groups": groups, "quotas": accounts.quotas, "rates": accounts.rates}
    added = {key: value for key, value in parts.items() if value}
    users = {name: _encode_user(user) for name, user in accounts.users.items()}
    has_tokens = any(key.grants for user in accounts.users.values() for key in user.keys.values())
    has_new = any(user.is_barred or user.subject for user in accounts.users.values())
    number = 4 if has_new else 3 if has_tokens else 2 if added else 1
    record: dict[str, object] = {"format": number, "users": users, **added}
    if accounts.owners:
        record["owners"] = dict(accounts.owners)
    return json.dumps(record, indent=1).encode()


def _encode_user(user: User) -> dict[str, object]:
    keys = {
        key_id: {
            "verifier": key.verifier.verifier.hex(),
            "server_key": key.verifier.server_key.hex(),
            "created_s": key.created_s,
            "expires_s": key.expires_s,
            **({"grants": _encode_grants(key.grants)} if key.grants else {}),
        }
        for key_id, key in user.keys.items()
    }
    parts = {"is_barred": user.is_barred, "subject": user.subject, "groups": sorted(user.groups)}
    return {"keys": keys, "grants": _encode_grants(user.grants)} | {k: v for k, v in parts.items() if v}


def _encode_grants(grants: Grants) -> dict[str, str]:
    return {dataset: right.name.lower() for dataset, right in grants.items()}


def decode_accounts(content: bytes) -> Accounts:
    """Raises Damaged; the server then refuses all users."""
    try:
        record = json.loads(content)
        if record["format"] not in FORMATS:
            raise ValueError(f"format {record['format']}")
        return Accounts(
            {name: _decode_user(fields) for name, fields in record["users"].items()},
            {name: _decode_group(fields) for name, fields in record.get("groups", {}).items()},
            {str(dataset): str(user) for dataset, user in record.get("owners", {}).items()},
            {account: _decode_limits(QUOTAS, fields) for account, fields in record.get("quotas", {}).items()},
            {user: _decode_limits(RATES, fields) for user, fields in record.get("rates", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise Damaged(
            f"the table of users in the object store (records {USERS_PREFIX}*) is invalid: {error!r}"
        ) from None


def _decode_limits(kinds: tuple[LimitKind, ...], fields: Mapping[str, Any]) -> Limits:
    unknown = fields.keys() - {kind.name for kind in kinds}
    if unknown:
        raise ValueError(f"unknown limits {sorted(unknown)}")
    return {name: int(limit) for name, limit in fields.items()}


def _decode_user(fields: Mapping[str, Any]) -> User:
    keys = {
        key_id: StoredKey(
            Verifier(bytes.fromhex(key["verifier"]), bytes.fromhex(key["server_key"])),
            int(key["created_s"]),
            int(key["expires_s"]),
            _decode_grants(key.get("grants", {})),
        )
        for key_id, key in fields["keys"].items()
    }
    return User(
        keys,
        _decode_grants(fields["grants"]),
        bool(fields.get("is_barred")),
        str(fields.get("subject", "")),
        frozenset(map(str, fields.get("groups", ()))),
    )


def _decode_group(fields: Mapping[str, Any]) -> Group:
    return Group(frozenset(map(str, fields["members"])), _decode_grants(fields["grants"]))


def _decode_grants(grants: Mapping[str, Any]) -> Grants:
    return {dataset: Right[str(right).upper()] for dataset, right in grants.items()}


VERSIONS_KEPT = 64
"""So a change that is as many versions late cannot create a version that was removed."""
CHANGE_TRIES_MAX = 64
"""Tries of a change of the table; with each lost try, another server has made one."""

USERS_REFRESH_S = 5.0
"""All servers refuse a key within this time after one of them has removed it."""


class Changes(Protocol):
    """Tells several processes of one server of changes at once."""

    def tell(self) -> None:
        """The table was changed here, and is stored."""
        ...

    def state(self) -> bytes:
        """Another value after each change."""
        ...


class UserStore:
    """The table, read from the object store again after USERS_REFRESH_S, and after `changes` of other processes of this
    server. All methods block.
    """

    def __init__(
        self, store: ObjectStore, clock: Callable[[], float] = time.time, changes: Changes | None = None
    ) -> None:
        self._record = VersionedRecord(store, USERS_PREFIX, VERSIONS_KEPT)
        self._clock = clock
        self._changes = changes  # None: a process knows its own changes
        self._lock = Lock()  # guards changes of the four below, and serializes changes of the table
        self._seen = b""
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
        state = self._changes.state() if self._changes is not None else b""
        if state != self._seen:
            age_max_s = 0
        if not 0 <= self._clock() - self._read_s < age_max_s:
            number, content = self._record.newest()
            self._number, self._accounts = number, decode_accounts(content) if number else Accounts()
            self._read_s, self._seen = self._clock(), state
        return self._accounts

    def change(self, edit: Callable[[Accounts], Accounts]) -> bool:
        """Replace the table by `edit` of it, unless that is the same; durable when this returns. No change of another
        server is lost: `edit` is repeated if there was one. Returns whether the table is another one now. Raises
        Unavailable if there are too many other changes.
        """
        with self._lock:
            for _ in range(CHANGE_TRIES_MAX):
                newest = self._refresh(0)
                accounts = edit(newest)
                if accounts == newest:
                    break
                if self._record.replace(self._number, encode_accounts(accounts)):
                    self._number, self._accounts, self._read_s = self._number + 1, accounts, self._clock()
                    if self._changes is not None:
                        self._changes.tell()
                    return True
            else:
                raise Unavailable("too many servers change the table of users at once; try again")
        return False

    def verifier(self, name: str, key_id: str) -> Verifier | None:
        """The verifier of a valid key of user `name`, or None."""
        user = self.current().users.get(name)
        key = user.keys.get(key_id) if user else None
        is_valid = user and key and key.is_valid(self._clock()) and not user.is_barred
        return key.verifier if key and is_valid else None
