"""Users, their keys and their rights. `UserStore` keeps the table of users in the object store.

The table is beside the chunks, not in the metadata store, because metadata can be lost and rebuilt, and users cannot.
"""

import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from threading import Lock

from dieselfs.errors import AccessDenied, AlreadyExists, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.names import check_dataset_name
from dieselfs.rpc.auth import Verifier, check_user_name
from dieselfs_server.store.interface import ObjectStore

USERS_PREFIX = "users-"
"""Of the records of the table, one for each version; the newest counts."""
VERSIONS_KEPT = 64
"""So a change that is as many versions late cannot create a version that was removed."""
CHANGE_TRIES_MAX = 64
"""Tries of a change of the table; with each lost try, another server has made one."""

USERS_REFRESH_S = 5.0
"""All servers refuse a key within this time after one of them has removed it."""

USERS_MAX = 10_000
KEYS_PER_USER_MAX = 8
ALL_DATASETS = "*"

log = logging.getLogger(__name__)


class Right(IntEnum):
    """Each includes the ones before it. ADMIN of a dataset may drop and purge it; of all datasets, manage users."""

    NONE = 0
    READ = 1
    WRITE = 2
    ADMIN = 3

    @classmethod
    def parse(cls, text: str) -> "Right":
        try:
            return cls[text.upper()]
        except KeyError:
            raise InvalidInput(f"right {text[:40]!r} is not one of none, read, write, admin") from None


@dataclass(frozen=True, slots=True)
class StoredKey:
    """Times in seconds since 1970; `expires_s` 0 means never."""

    verifier: Verifier
    created_s: int
    expires_s: int

    def is_valid(self, now_s: float) -> bool:
        return self.expires_s == 0 or now_s < self.expires_s


@dataclass(frozen=True, slots=True)
class User:
    keys: Mapping[str, StoredKey] = field(default_factory=dict)
    grants: Mapping[str, Right] = field(default_factory=dict)

    def right_on(self, dataset: str) -> Right:
        return max(self.grants.get(dataset, Right.NONE), self.grants.get(ALL_DATASETS, Right.NONE))


Users = Mapping[str, User]


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a connection. Trusted: the user that runs the server, on a Unix socket."""

    name: str
    key_id: str
    is_trusted: bool = False

    def right_on(self, dataset: str, users: Users, now_s: float) -> Right:
        """The caller's right on `dataset`; NONE if the key has expired or was removed."""
        if self.is_trusted:
            return Right.ADMIN
        try:
            self.key(users, now_s)
        except AccessDenied:
            return Right.NONE
        return users[self.name].right_on(dataset)

    def key(self, users: Users, now_s: float) -> StoredKey:
        """The key that the caller has proved. Raises AccessDenied if it has expired or was removed since."""
        user = users.get(self.name)
        key = user.keys.get(self.key_id) if user else None
        if key is None or not key.is_valid(now_s):
            raise AccessDenied(f"the key {self.key_id} of user {self.name} was removed or has expired")
        return key


def with_key(users: Users, name: str, key_id: str, key: StoredKey) -> Users:
    """`users` with one more key for the user `name`, which is created if missing; without the expired keys of the user.

    No change if the user has this key. Raises AlreadyExists for another key with this ID, InvalidInput at the limits.
    """
    user = users.get(check_user_name(name), User())
    keys = {old_id: old for old_id, old in user.keys.items() if old.is_valid(key.created_s)}
    if key_id in user.keys:
        if user.keys[key_id].verifier != key.verifier:
            raise AlreadyExists(f"user {name} has another key {key_id}: make a new one")
        return users
    if len(keys) >= KEYS_PER_USER_MAX:
        raise InvalidInput(f"user {name} has {KEYS_PER_USER_MAX} keys; remove one with 'dlcmd user rm --key'")
    if name not in users and len(users) >= USERS_MAX:
        raise InvalidInput(f"cannot add user {name}: the limit of {USERS_MAX} users is reached")
    return {**users, name: replace(user, keys={**keys, key_id: key})}


def with_expiry(users: Users, name: str, key_id: str, expires_s: int) -> Users:
    """`users` with a key that expires at `expires_s`, or earlier if it did already. Raises NotFound."""
    user = _require(users, name)
    if key_id not in user.keys:
        raise NotFound(f"user {name} has no key {key_id}")
    key = user.keys[key_id]
    key = replace(key, expires_s=min(key.expires_s or expires_s, expires_s))
    return {**users, name: replace(user, keys={**user.keys, key_id: key})}


def without_key(users: Users, name: str, key_id: str) -> Users:
    """`users` without one key or, with an empty `key_id`, without the user. Raises NotFound."""
    user = _require(users, name)
    if not key_id:
        return {other: value for other, value in users.items() if other != name}
    if key_id not in user.keys:
        raise NotFound(f"user {name} has no key {key_id}")
    return {**users, name: replace(user, keys={k: v for k, v in user.keys.items() if k != key_id})}


def with_grant(users: Users, name: str, dataset: str, right: Right) -> Users:
    """`users` with `right` on `dataset` (or `*`) for one of them; Right.NONE removes it. Raises NotFound."""
    user = _require(users, name)
    if dataset != ALL_DATASETS:
        check_dataset_name(dataset)
    grants = {**user.grants, dataset: right}
    return {**users, name: replace(user, grants={d: r for d, r in grants.items() if r})}


def _require(users: Users, name: str) -> User:
    if name not in users:
        raise NotFound(f"there is no user {name[:70]!r}")
    return users[name]


def encode_users(users: Users) -> bytes:
    table = {
        name: {
            "keys": {
                key_id: {
                    "verifier": key.verifier.verifier.hex(),
                    "server_key": key.verifier.server_key.hex(),
                    "created_s": key.created_s,
                    "expires_s": key.expires_s,
                }
                for key_id, key in user.keys.items()
            },
            "grants": {dataset: right.name.lower() for dataset, right in user.grants.items()},
        }
        for name, user in users.items()
    }
    return json.dumps({"format": 1, "users": table}, indent=1).encode()


def decode_users(content: bytes) -> Users:
    """Raises Damaged; the server then refuses all users."""
    try:
        record = json.loads(content)
        if record["format"] != 1:
            raise ValueError(f"format {record['format']}")
        return {name: _decode_user(fields) for name, fields in record["users"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(
            f"the table of users in the object store (records {USERS_PREFIX}*) is invalid: {error!r}"
        ) from None


def _decode_user(fields: dict[str, dict[str, dict[str, str]]]) -> User:
    return User(
        {
            key_id: StoredKey(
                Verifier(bytes.fromhex(key["verifier"]), bytes.fromhex(key["server_key"])),
                int(key["created_s"]),
                int(key["expires_s"]),
            )
            for key_id, key in fields["keys"].items()
        },
        {dataset: Right[str(right).upper()] for dataset, right in fields["grants"].items()},
    )


def _record_name(number: int) -> str:
    """Names sort by version."""
    return f"{USERS_PREFIX}{number:020}"


class UserStore:
    """The table, read from the object store again after USERS_REFRESH_S. All methods block."""

    def __init__(self, store: ObjectStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._lock = Lock()  # guards the three below, and serializes changes
        self._number = 0
        self._users: Users = {}
        self._read_s = float("-inf")
        self.salt = secrets.token_bytes(32)

    def current(self) -> Users:
        with self._lock:
            return self._refresh(USERS_REFRESH_S)

    def _refresh(self, age_max_s: float) -> Users:
        if not 0 <= self._clock() - self._read_s < age_max_s:
            self._number, self._users = self._newest()
            self._read_s = self._clock()
        return self._users

    def _newest(self) -> tuple[int, Users]:
        """Version and content of the table. Raises Damaged."""
        for _ in range(CHANGE_TRIES_MAX):
            records = self._store.list_records(USERS_PREFIX)
            if not records:
                return 0, {}
            content = self._store.get_record(records[-1])
            if content is not None:  # else it is many versions old by now
                return int(records[-1].removeprefix(USERS_PREFIX)), decode_users(content)
        raise Unavailable("the table of users changes too fast to be read; try again")

    def change(self, edit: Callable[[Users], Users]) -> None:
        """Replace the table by `edit` of it; durable when this returns. No change of another server is lost: `edit` is
        repeated if there was one. Raises Unavailable if there are too many.
        """
        with self._lock:
            for _ in range(CHANGE_TRIES_MAX):
                users = edit(self._refresh(0))
                number = self._number + 1
                if self._store.create_record(_record_name(number), encode_users(users)):
                    self._number, self._users, self._read_s = number, users, self._clock()
                    break
            else:
                raise Unavailable("too many servers change the table of users at once; try again")
        for old in self._store.list_records(USERS_PREFIX)[:-VERSIONS_KEPT]:
            self._store.delete_record(old)

    def verifier(self, name: str, key_id: str) -> Verifier | None:
        """The verifier of a valid key of user `name`, or None."""
        user = self.current().get(name)
        key = user.keys.get(key_id) if user else None
        return key.verifier if key and key.is_valid(self._clock()) else None
