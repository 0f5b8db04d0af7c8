"""Leases: what they look like as notes, and who changes them when others do too."""

import pytest

from dieselfs.errors import Unavailable
from dieselfs_server.leases.lease import NOTE_TRIES_MAX, Lease, until_done


def test_a_lease_is_a_note_and_back() -> None:
    lease = Lease(1 << 62, b"\0value")
    assert lease.note() == (1 << 62).to_bytes(8, "little") + b"\0value"
    assert Lease.of(lease.note()) == lease


def test_a_change_is_made_again_until_nobody_is_ahead() -> None:
    outcomes = [True, False, False]
    until_done(outcomes.pop, "a note")
    assert outcomes == []


def test_but_not_for_ever() -> None:
    outcomes = [False] * (NOTE_TRIES_MAX + 1)
    with pytest.raises(Unavailable, match="a note is changed by too many clients"):
        until_done(outcomes.pop, "a note")
    assert len(outcomes) == 1
