"""The record of the table of accounts."""

import pytest

from dieselfs.errors import Damaged
from dieselfs_server.access.accounts import Accounts, Right, with_grant, with_members
from dieselfs_server.access.accounts_record import decode_accounts, encode_accounts
from tests.server.access.test_accounts import KEY, added, table


def test_the_record_survives_and_damage_is_noticed() -> None:
    record = encode_accounts(table(expires_s=5))
    assert decode_accounts(record) == table(expires_s=5)
    assert KEY.secret.hex().encode() not in record
    for content in (
        *(b"", b"{}", b"[" * 100_000, record[:-5]),
        record.replace(b'"format": 1', b'"format": 9'),
        record.replace(b'"expires_s": 5', b'"expires_s": 1e999'),
    ):
        with pytest.raises(Damaged):
            decode_accounts(content)


def test_only_a_table_with_groups_has_the_format_that_older_servers_refuse() -> None:
    assert b'"format": 1' in encode_accounts(added(Accounts(), KEY))
    grouped = with_grant(with_members(table(), "vision", ["ada"]), "group:vision", "scans", Right.WRITE)
    record = encode_accounts(with_grant(grouped, "group:everyone", "public", Right.READ))
    assert b'"format": 2' in record
    assert decode_accounts(record).groups["vision"] == grouped.groups["vision"]
