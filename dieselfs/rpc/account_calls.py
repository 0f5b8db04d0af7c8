"""The calls for users and groups, their limits, and the server itself. This module opens sockets."""

from collections.abc import Sequence

from dieselfs.errors import InvalidInput, ProtocolError
from dieselfs.net import auth
from dieselfs.rpc.calls import Calls, copied
from dieselfs.rpc.limit_kinds import QuotaRecord, RateRecord, UsageRecord
from dieselfs.rpc.records import (
    CheckRecord,
    GroupRecord,
    KeyRecord,
    PageLink,
    ServerCheck,
    ServerStatus,
    UserRecord,
)

MEMBERS_PER_CALL_MAX = 50
"""A call has 64 values at most."""


class AccountCalls(Calls):
    """A part of `ServerClient`."""

    def add_key(self, user: str, expires_s: int = 0) -> auth.Key:
        """A new key for `user`, a new user if need be. It is made here; the server gets what checks it. Raises
        AlreadyExists if the server has another key with this random ID, InvalidInput at its limits.
        """
        key = self._new_key(user)
        self._value("add_key", user=user, expires_s=expires_s, **_checked_by(key))
        return key

    def add_token(self, datasets: Sequence[str], right: str, expires_s: int) -> auth.Key:
        """A new key of this user, with `right` (`read` or `write`) on these datasets, and no more than the user may. It
        adds no keys. Raises InvalidInput at the limits of the server, AccessDenied if the key of this
        client is such a key.
        """
        own = self._access.current().key
        if own is None:
            raise InvalidInput("a token is of a user: name your key file (--key-file)")
        key = self._new_key(own.user)
        named = {"expires_s": expires_s, "datasets": list(datasets), "right": right}
        self._value("add_token", **named, **_checked_by(key))
        return key

    def _new_key(self, user: str) -> auth.Key:
        # An earlier server names the present one alone.
        named = bytes(self._value("server_pin", with_next=True))
        pin, next_pin = named[: auth.PIN_BYTES], named[auth.PIN_BYTES :]
        own = self._access.current().key
        if own is not None and pin not in own.pins:
            raise ProtocolError("the server names another identity than the key file")
        return auth.Key.generate(user, pin, next_pin)

    def expire_key(self, key_id: str, expires_s: int) -> None:
        """Let a key of this user expire at `expires_s`, or earlier if it did already. Raises NotFound."""
        self._value("expire_key", key_id=key_id, expires_s=expires_s)

    def remove_key(self, user: str, key_id: str = "") -> None:
        """Remove a key, or without `key_id` the user. Users may remove their own keys. Raises NotFound."""
        self._value("remove_key", user=user, key_id=key_id)

    def bar(self, user: str, is_barred: bool) -> None:
        """Refuse all keys of a user, or accept them again. Raises NotFound."""
        self._value("bar_user", user=user, is_barred=is_barred)

    def grant(self, user: str, dataset: str, right: str) -> None:
        """Give `right` (read, write, admin, or none) on a dataset, or on `*`; `user` may be `group:NAME`.

        Raises NotFound, InvalidInput.
        """
        self._value("grant", user=user, dataset=dataset, right=right)

    def users(self) -> list[UserRecord]:
        """All users; only this one unless it is an administrator."""
        return [
            copied(
                UserRecord,
                user,
                keys=tuple(copied(KeyRecord, key) for key in user.keys),
                groups=tuple(user.groups or ()),
            )
            for user in self._value("list_users")
        ]

    def add_members(self, group: str, users: Sequence[str]) -> None:
        """Add users to a group, which is created if it is missing. Raises NotFound, InvalidInput."""
        self._change_members("add_members", group, users)

    def remove_members(self, group: str, users: Sequence[str] = ()) -> None:
        """Remove users from a group or, if none is named, the group. Raises NotFound."""
        self._change_members("remove_members", group, users)

    def _change_members(self, method: str, group: str, users: Sequence[str]) -> None:
        for start in range(0, max(len(users), 1), MEMBERS_PER_CALL_MAX):
            self._value(method, group=group, users=list(users[start : start + MEMBERS_PER_CALL_MAX]))

    def groups(self) -> list[GroupRecord]:
        """By name; `everyone` only if it has a right."""
        return [copied(GroupRecord, info, members=tuple(info.members)) for info in self._value("list_groups")]

    def usage(self, dataset: str = "") -> list[UsageRecord]:
        """What a dataset takes or, without a name, all datasets that this user may read, and this user. Administrators
        get all users who own datasets or have quotas. Raises NotFound.
        """
        return self._records(UsageRecord, "usage", dataset=dataset)

    def set_quota(self, quota: QuotaRecord) -> None:
        """Limit what an account may store; without limits, remove the quota. Raises NotFound, InvalidInput."""
        self._value("set_quota", **quota._asdict())

    def quotas(self) -> list[QuotaRecord]:
        """All quotas, ordered by account."""
        return self._records(QuotaRecord, "list_quotas")

    def set_rate(self, rate: RateRecord) -> None:
        """Limit what each server moves for a user; without limits, remove the rate. Raises NotFound, InvalidInput."""
        self._value("set_rate", **rate._asdict())

    def rates(self) -> list[RateRecord]:
        """All rates, ordered by user."""
        return self._records(RateRecord, "list_rates")

    def set_owner(self, dataset: str, user: str) -> None:
        """Let a dataset count towards the quota of `user`, or, if it is empty, of nobody. Raises NotFound."""
        self._value("set_owner", dataset=dataset, user=user)

    def status(self) -> ServerStatus:
        return self._record(ServerStatus, "status")

    def check_server(self, is_whole: bool) -> ServerCheck:
        """The clock of the server; with `is_whole` also its checks, for which it writes a record of its store, reads it
        and removes it. Raises AccessDenied unless the user is an administrator, who alone may have the checks.
        """
        found = self._value("check_server", is_whole=is_whole)
        return copied(ServerCheck, found, checks=tuple(copied(CheckRecord, check) for check in found.checks))

    def open_page(self, lease_s: int) -> PageLink:
        """A one-time link to the web page of a server. An embedded server serves it for `lease_s` from now.

        Raises Unavailable if there is no page.
        """
        return self._record(PageLink, "open_page", lease_s=lease_s)

    def keep_page(self, lease_s: int) -> None:
        """Let an embedded server serve its page for `lease_s` from now; 0: no longer."""
        self._value("keep_page", lease_s=lease_s)


def _checked_by(key: auth.Key) -> dict[str, object]:
    """What the server gets of a key."""
    known = key.verifier()
    return {"key_id": key.key_id, "verifier": known.verifier, "server_key": known.server_key}
