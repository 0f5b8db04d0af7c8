"""The table of accounts as bytes: a record of the object store. No I/O.

A table without groups, quotas and rates has format 1, which older servers read; they drop owners of datasets at their
next change. With any of these it has format 2, which they refuse.
"""

import json
from collections.abc import Mapping
from typing import Any

from dieselfs.errors import Damaged
from dieselfs.net.auth import Verifier
from dieselfs.rpc.limit_kinds import QUOTAS, RATES, LimitKind, Limits
from dieselfs_server.access.accounts import Accounts, Grants, Group, Right, StoredKey, User

USERS_PREFIX = "users-"
"""Begins the names of the records of the table, one for each version; the newest counts."""

FORMATS = (1, 2)


def encode_accounts(accounts: Accounts) -> bytes:
    groups = {
        name: {"members": sorted(group.members), "grants": _encode_grants(group.grants)}
        for name, group in accounts.groups.items()
    }
    parts: dict[str, object] = {"groups": groups, "quotas": accounts.quotas, "rates": accounts.rates}
    added = {key: value for key, value in parts.items() if value}
    users = {name: _encode_user(user) for name, user in accounts.users.items()}
    record: dict[str, object] = {"format": 2 if added else 1, "users": users, **added}
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
        }
        for key_id, key in user.keys.items()
    }
    return {"keys": keys, "grants": _encode_grants(user.grants)}


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
        )
        for key_id, key in fields["keys"].items()
    }
    return User(keys, _decode_grants(fields["grants"]))


def _decode_group(fields: Mapping[str, Any]) -> Group:
    return Group(frozenset(map(str, fields["members"])), _decode_grants(fields["grants"]))


def _decode_grants(grants: Mapping[str, Any]) -> Grants:
    return {dataset: Right[str(right).upper()] for dataset, right in grants.items()}
