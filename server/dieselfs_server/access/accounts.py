"""Accounts: users with keys, groups of users, their rights on datasets, quotas and rates. No I/O; `users.py` keeps
the table.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from dieselfs.errors import AccessDenied, AlreadyExists, InvalidInput, NotFound
from dieselfs.names import check_dataset_name
from dieselfs.net.auth import PROVIDER_MARK, Verifier, check_local_name, check_user_name
from dieselfs.rpc.limit_kinds import QUOTAS, RATES, Limits, check_limits
from dieselfs.rpc.serving.handshake import LOCAL_USER

USERS_MAX = 10_000
GROUPS_MAX = 1_000
KEYS_PER_USER_MAX = 8
TOKENS_PER_USER_MAX = 32
TOKEN_LIFETIME_S_MAX = 31 * 86_400
TOKEN_GRANTS_MAX = 16
LOGINS_PER_USER_MAX = 64
"""Keys of a user whom the provider names: one for each machine, and another one while it is renewed."""
PAGE_KEY = "page"
"""Begins the ID of a key that such a user has for a session of the web page."""
PAGE_KEYS_PER_USER_MAX = 16
"""The oldest gives way: most sessions end without a logout, and their keys must not keep the user from other logins."""
LOGIN_TOKEN_LIFETIME_S_MAX = 7 * 86_400
"""Of tokens that such users make. They outlive the login, so that a job can."""
ALL_DATASETS = "*"

GROUP_MARK = "group:"
"""Before the name of a group where a user could be named as well; no user's name has a colon."""

EVERYONE = "everyone"
"""The group of all users; it exists without being made, has no list of members, and may only read."""

SHARED = "shared"
"""The group of users whose key several people have: they cannot add keys of their own, or let keys expire."""


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


Grants = Mapping[str, Right]
"""By name of a dataset, or ALL_DATASETS."""


def _right_of(grants: Grants, dataset: str) -> Right:
    return max(grants.get(dataset, Right.NONE), grants.get(ALL_DATASETS, Right.NONE))


@dataclass(frozen=True, slots=True)
class StoredKey:
    """Times in seconds since 1970; `expires_s` 0 means never. A key with `grants` is a *token*: it has no other rights,
    and none that its user lacks. It expires, and changes no keys.
    """

    verifier: Verifier
    created_s: int
    expires_s: int
    grants: Grants = field(default_factory=dict)

    def is_valid(self, now_s: float) -> bool:
        return self.expires_s == 0 or now_s < self.expires_s

    def right_within(self, right: Right, dataset: str) -> Right:
        """What is left of the right of its user."""
        return min(right, _right_of(self.grants, dataset)) if self.grants else right


@dataclass(frozen=True, slots=True)
class User:
    """`is_barred`: its keys and tokens are refused, and it gets no others. Of a user whom the identity provider names,
    `subject` is the provider's own ID, and `groups` are those of the last login.
    """

    keys: Mapping[str, StoredKey] = field(default_factory=dict)
    grants: Grants = field(default_factory=dict)
    is_barred: bool = False
    subject: str = ""
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Person:
    """A user by the identity provider; see `User`."""

    name: str
    subject: str
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Group:
    members: frozenset[str] = frozenset()
    grants: Grants = field(default_factory=dict)


USER_MARK, DATASET_MARK = "user:", "dataset:"
"""Before the names of users and datasets that have quotas. ALL_USERS: those without a quota of their own."""
ALL_USERS = "*"


def user_account(name: str) -> str:
    return USER_MARK + name


def dataset_account(name: str) -> str:
    return DATASET_MARK + name


@dataclass(frozen=True, slots=True)
class Accounts:
    """The table: users and groups by name, owners by dataset, quotas by account, rates by user. Edits are functions
    that return another table.

    The owner of a dataset is the user who pays for it: it counts towards the quota of that user. It gives no right.
    """

    users: Mapping[str, User] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    quotas: Mapping[str, Limits] = field(default_factory=dict)
    rates: Mapping[str, Limits] = field(default_factory=dict)

    def quota_of_user(self, user: str) -> Limits | None:
        return self.quotas.get(user_account(user)) or self.quotas.get(user_account(ALL_USERS))

    def rate_of(self, user: str) -> Limits | None:
        return self.rates.get(user) or self.rates.get(ALL_USERS)

    def datasets_of(self, owner: str) -> list[str]:
        return [dataset for dataset, user in self.owners.items() if user == owner]

    def right_of(self, user: str, dataset: str) -> Right:
        """The largest right of a user that exists: its own, those of its groups, and that of everyone."""
        return max(_right_of(grants, dataset) for grants in self._grants_of(user))

    def has_right(self, user: str) -> bool:
        """Whether a user that exists has a right on any dataset, also as a member of groups."""
        return any(self._grants_of(user))

    def _grants_of(self, user: str) -> Iterator[Grants]:
        """Its own, and those of its groups."""
        yield self.users[user].grants
        for name, group in self.groups.items():
            if name == EVERYONE or self.is_member(user, name):
                yield group.grants

    def is_member(self, user: str, group: str) -> bool:
        """Of a group with a list of members, here or at the identity provider."""
        return group in self.groups and (
            user in self.groups[group].members or group in self.users[user].groups
        )

    def check_may_change_own_keys(self, user: str) -> None:
        """Raise AccessDenied for a user whose key is shared."""
        if user in self.users and self.is_member(user, SHARED):
            raise AccessDenied(
                f"user {user} is in the group {SHARED!r}, so only an administrator can change the keys of {user}"
            )


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a connection. Trusted: the user that runs the server, on a Unix socket."""

    name: str
    key_id: str
    is_trusted: bool = False

    def right_on(self, dataset: str, accounts: Accounts, now_s: float) -> Right:
        """The caller's right on `dataset`; NONE if the key has expired or was removed."""
        if self.is_trusted:
            return Right.ADMIN
        try:
            key = self.key(accounts, now_s)
        except AccessDenied:
            return Right.NONE
        return key.right_within(accounts.right_of(self.name, dataset), dataset)

    def has_right(self, accounts: Accounts, now_s: float) -> bool:
        """Whether the caller has a right on any dataset. Raises AccessDenied if the key has expired or was removed."""
        key = self.key(accounts, now_s)
        if key.grants:
            return any(self.right_on(dataset, accounts, now_s) for dataset in key.grants)
        return accounts.has_right(self.name)

    def key(self, accounts: Accounts, now_s: float) -> StoredKey:
        """The key that the caller has proved. Raises AccessDenied if it has expired or was removed since."""
        user = accounts.users.get(self.name)
        key = user.keys.get(self.key_id) if user else None
        if user is None or key is None or not key.is_valid(now_s):
            raise AccessDenied(f"the key {self.key_id} of user {self.name} was removed or has expired")
        if user.is_barred:
            raise AccessDenied(f"user {self.name} is barred by an administrator")
        return key

    def has_token(self, accounts: Accounts) -> bool:
        """Whether the key is a token, for messages; False if it is gone."""
        user = accounts.users.get(self.name)
        key = user.keys.get(self.key_id) if user else None
        return bool(key and key.grants)

    def key_for_keys(self, accounts: Accounts, now_s: float) -> StoredKey:
        """As `key`, to add or remove keys of its user. Raises AccessDenied also for a token, or a shared key."""
        key = self.key(accounts, now_s)
        if key.grants:
            raise AccessDenied(f"the key {self.key_id} is a token of user {self.name}, and changes no keys")
        accounts.check_may_change_own_keys(self.name)
        return key


# -- users ---------------------------------------------------------------------------------------------


def with_key(accounts: Accounts, name: str, key_id: str, key: StoredKey) -> Accounts:
    """`accounts` with one more key for the user `name`, which is created if missing; without its expired keys.

    No change if the user has this key. Raises AlreadyExists for another key with this ID, InvalidInput at the limits
    and for the name of trusted callers.
    """
    if not key.grants:
        check_local_name(name)
    return _with_added(accounts, name, key_id, key, KEYS_PER_USER_MAX)


def with_login(accounts: Accounts, person: Person, key_id: str, key: StoredKey) -> Accounts:
    """`accounts` with one more key for a user whom the provider names, who is created if missing. Raises AccessDenied
    if the user is barred, or the name was that of another person; as `with_key`. A key of the page takes the place of
    the oldest one.
    """
    user = accounts.users.get(person.name, User(subject=person.subject))
    if user.is_barred:
        raise AccessDenied(f"user {person.name} is barred by an administrator")
    if user.subject != person.subject:
        raise AccessDenied(
            f"user {person.name} is another person at the identity provider: an administrator removes the former one "
            "with 'dlcmd user rm'"
        )
    keys = dict(user.keys)
    of_page = [old_id for old_id in keys if old_id.startswith(PAGE_KEY)]
    if key_id.startswith(PAGE_KEY) and key_id not in keys and len(of_page) >= PAGE_KEYS_PER_USER_MAX:
        del keys[min(of_page, key=lambda old_id: keys[old_id].created_s)]
    named = _with_user(accounts, person.name, replace(user, keys=keys, groups=person.groups))
    return _with_added(named, person.name, key_id, key, LOGINS_PER_USER_MAX)


def _with_added(accounts: Accounts, name: str, key_id: str, key: StoredKey, keys_max: int) -> Accounts:
    users = accounts.users
    user = users.get(check_user_name(name), User())
    keys = {old_id: old for old_id, old in user.keys.items() if old.is_valid(key.created_s)}
    if key_id in user.keys:
        if user.keys[key_id].verifier != key.verifier:
            raise AlreadyExists(f"user {name} has another key {key_id}: make a new one")
        return accounts
    if name == LOCAL_USER:
        raise InvalidInput(f"user name {name} is that of the server's own user: take another")
    present = sum(bool(old.grants) == bool(key.grants) for old in keys.values())
    kind, limit = ("tokens", TOKENS_PER_USER_MAX) if key.grants else ("keys", keys_max)
    if present >= limit:
        raise InvalidInput(f"user {name} has {limit} {kind}; remove one with 'dlcmd user rm {name} --key ID'")
    if name not in users and len(users) >= USERS_MAX:
        raise InvalidInput(f"cannot add user {name}: the limit of {USERS_MAX} users is reached")
    return _with_user(accounts, name, replace(user, keys={**keys, key_id: key}))


def token(verifier: Verifier, now_s: int, expires_s: int, grants: Grants) -> StoredKey:
    """A key with these rights at most. Raises InvalidInput."""
    if not now_s < expires_s <= now_s + TOKEN_LIFETIME_S_MAX:
        raise InvalidInput(f"a token is valid for a second to {TOKEN_LIFETIME_S_MAX // 86_400} days")
    if not 0 < len(grants) <= TOKEN_GRANTS_MAX:
        raise InvalidInput(f"a token is for 1 to {TOKEN_GRANTS_MAX} datasets, not {len(grants)}")
    for dataset, right in grants.items():
        check_dataset_name(dataset)
        if right not in (Right.READ, Right.WRITE):
            raise InvalidInput(f"a token may read or write a dataset, not {right.name.lower()} it")
    return StoredKey(verifier, now_s, expires_s, grants)


def token_end_s(user: str, used: StoredKey, now_s: int, expires_s: int) -> int:
    """When a token ends that was asked for until `expires_s`: with the key that makes it, but tokens of users of the
    provider count longer than their logins.
    """
    if user.startswith(PROVIDER_MARK):
        return min(expires_s, now_s + LOGIN_TOKEN_LIFETIME_S_MAX)
    return min(expires_s, used.expires_s or expires_s)


def check_may_give(accounts: Accounts, user: str, grants: Grants) -> None:
    """Raise AccessDenied unless a user that exists has these rights."""
    for dataset, right in grants.items():
        if accounts.right_of(user, dataset) < right:
            raise AccessDenied(f"user {user} may not {right.name.lower()} dataset {dataset!r}")


def with_expiry(accounts: Accounts, name: str, key_id: str, expires_s: int) -> Accounts:
    """`accounts` with a key that expires at `expires_s`, or earlier if it did already. Raises NotFound."""
    user = _require_key(accounts, name, key_id)
    key = user.keys[key_id]
    key = replace(key, expires_s=min(key.expires_s or expires_s, expires_s))
    return _with_user(accounts, name, replace(user, keys={**user.keys, key_id: key}))


def with_bar(accounts: Accounts, name: str, is_barred: bool) -> Accounts:
    """`accounts` with a user whose keys are refused, or accepted again. Raises NotFound."""
    return _with_user(accounts, name, replace(_require(accounts, name), is_barred=is_barred))


def without_key(accounts: Accounts, name: str, key_id: str) -> Accounts:
    """`accounts` without one key or, with an empty `key_id`, without the user. Raises NotFound."""
    if key_id:
        user = _require_key(accounts, name, key_id)
        return _with_user(
            accounts, name, replace(user, keys={k: v for k, v in user.keys.items() if k != key_id})
        )
    _require(accounts, name)
    groups = {key: replace(group, members=group.members - {name}) for key, group in accounts.groups.items()}
    return replace(
        accounts,
        users={k: v for k, v in accounts.users.items() if k != name},
        groups=groups,
        owners={dataset: user for dataset, user in accounts.owners.items() if user != name},
        quotas={k: v for k, v in accounts.quotas.items() if k != user_account(name)},
        rates={user: rate for user, rate in accounts.rates.items() if user != name},
    )


def with_grant(accounts: Accounts, name: str, dataset: str, right: Right) -> Accounts:
    """`accounts` with `right` on `dataset` (or `*`) for a user, or for a group (`group:NAME`); Right.NONE removes it.

    Raises NotFound, InvalidInput.
    """
    if dataset != ALL_DATASETS:
        check_dataset_name(dataset)
    if name.startswith(GROUP_MARK):
        group_name = name.removeprefix(GROUP_MARK)
        if group_name == EVERYONE and right > Right.READ:
            raise InvalidInput(
                f"everyone may read a dataset, not {right.name.lower()} it: make a group of users"
            )
        group = accounts.groups.get(EVERYONE, Group()) if group_name == EVERYONE else None
        group = group or _require_group(accounts, group_name)
        return _with_group(
            accounts, group_name, replace(group, grants=_granted(group.grants, dataset, right))
        )
    user = _require(accounts, name)
    return _with_user(accounts, name, replace(user, grants=_granted(user.grants, dataset, right)))


def _granted(grants: Grants, dataset: str, right: Right) -> Grants:
    return {d: r for d, r in {**grants, dataset: right}.items() if r}


# -- groups --------------------------------------------------------------------------------------------


def with_members(accounts: Accounts, name: str, users: Iterable[str]) -> Accounts:
    """`accounts` with these users in the group `name`, which is created if missing. Raises NotFound, InvalidInput."""
    if check_local_name(name) == EVERYONE:
        raise InvalidInput("the group 'everyone' has all users, and cannot be changed")
    if name not in accounts.groups and len(accounts.groups) >= GROUPS_MAX:
        raise InvalidInput(f"cannot add group {name}: the limit of {GROUPS_MAX} groups is reached")
    added = frozenset(users)
    for user in sorted(added):
        _require(accounts, user)
    group = accounts.groups.get(name, Group())
    return _with_group(accounts, name, replace(group, members=group.members | added))


def without_members(accounts: Accounts, name: str, users: Iterable[str]) -> Accounts:
    """`accounts` without these users in the group or, if none is named, without the group. Raises NotFound."""
    group, removed = _require_group(accounts, name), frozenset(users)
    if not removed:
        return replace(accounts, groups={k: v for k, v in accounts.groups.items() if k != name})
    for user in sorted(removed - group.members):
        raise NotFound(f"user {user[:70]!r} is not in group {name}")
    return _with_group(accounts, name, replace(group, members=group.members - removed))


# -- quotas --------------------------------------------------------------------------------------------


def with_owner(accounts: Accounts, dataset: str, user: str) -> Accounts:
    """`accounts` with the owner of a dataset; without one if `user` is empty. Raises NotFound, InvalidInput."""
    owners = {k: v for k, v in accounts.owners.items() if k != check_dataset_name(dataset)}
    if user:
        _require(accounts, user)
        owners[dataset] = user
    return replace(accounts, owners=owners)


def with_quota(accounts: Accounts, account: str, quota: Limits) -> Accounts:
    """`accounts` with a quota (`user:NAME`, `user:*`, `dataset:NAME`); one without limits removes it.

    Raises NotFound, InvalidInput.
    """
    if account.startswith(DATASET_MARK):
        check_dataset_name(account.removeprefix(DATASET_MARK))
    elif not account.startswith(USER_MARK):
        raise InvalidInput(f"{account[:70]!r} is no account: user:NAME, user:* or dataset:NAME")
    elif account != user_account(ALL_USERS):
        _require(accounts, account.removeprefix(USER_MARK))
    check_limits(QUOTAS, quota)
    return replace(accounts, quotas=_limited(accounts.quotas, account, quota))


def with_rate(accounts: Accounts, user: str, rate: Limits) -> Accounts:
    """`accounts` with the rate of a user, or of all users without one (`*`); one without limits removes it.

    Raises NotFound, InvalidInput.
    """
    if user != ALL_USERS:
        _require(accounts, user)
    check_limits(RATES, rate)
    return replace(accounts, rates=_limited(accounts.rates, user, rate))


def _limited(known: Mapping[str, Limits], name: str, limits: Limits) -> dict[str, Limits]:
    """`known` with these limits in place of those that `name` had."""
    others = {k: v for k, v in known.items() if k != name}
    return {**others, name: limits} if limits else others


def _with_user(accounts: Accounts, name: str, user: User) -> Accounts:
    return replace(accounts, users={**accounts.users, name: user})


def _with_group(accounts: Accounts, name: str, group: Group) -> Accounts:
    return replace(accounts, groups={**accounts.groups, name: group})


def _require(accounts: Accounts, name: str) -> User:
    if name not in accounts.users:
        raise NotFound(f"there is no user {name[:70]!r}")
    return accounts.users[name]


def _require_key(accounts: Accounts, name: str, key_id: str) -> User:
    user = _require(accounts, name)
    if key_id not in user.keys:
        raise NotFound(f"user {name} has no key {key_id}")
    return user


def _require_group(accounts: Accounts, name: str) -> Group:
    if name not in accounts.groups:
        raise NotFound(f"there is no group {name[:70]!r}; 'dlcmd group ls' lists them")
    return accounts.groups[name]
