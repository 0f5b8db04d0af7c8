"""Statements of freshness: their text, their signature, and their age."""

from dataclasses import replace

import pytest

from dieselfs.errors import Damaged, DieselfsError
from dieselfs.snapshot.freshness import CLOCK_SKEW_S, LIFETIME_S, STATEMENT_BYTES_MAX, Statement, is_older
from dieselfs_server.access.identity import Identity
from tests.support.documents import table

SEED = bytes(range(32))
MADE = Statement(
    "pets",
    bytes(range(0xA0, 0xB0)),
    7,
    1_600_000_000_000_000_001,
    bytes(range(0xC0, 0xE0)),
    1_600_000_100,
    LIFETIME_S,
    bytes.fromhex("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"),
)


def signed(statement: Statement) -> Statement:
    return replace(statement, signature=Identity(SEED, statement.signer).sign(statement.message()))


def test_the_vectors() -> None:
    values = [value.strip("`") for _, value in table("reference/snapshot-format.md", "### Vector")]
    statement = signed(MADE)
    assert values == [SEED.hex(), statement.encode().decode().strip()]
    assert Statement.decode(statement.encode(), "here") == statement
    statement.check_signature("here")
    assert len(replace(statement, dataset="x" * 255).encode()) <= STATEMENT_BYTES_MAX


@pytest.mark.parametrize(
    "content",
    [b"", b"x\n", signed(MADE).encode()[:-1], signed(MADE).encode() * 2, b"\xff" + signed(MADE).encode()],
)
def test_other_text_is_refused(content: bytes) -> None:
    with pytest.raises(Damaged, match="here: not a statement"):
        Statement.decode(content, "here")


@pytest.mark.parametrize(
    "forged",
    [
        replace(signed(MADE), generation=8),
        replace(signed(MADE), stated_s=0),
        replace(signed(MADE), lifetime_s=1),
        replace(signed(MADE), dataset="cats"),
        replace(signed(MADE), signer=bytes(32)),
    ],
)
def test_what_was_not_signed_is_refused(forged: Statement) -> None:
    with pytest.raises(Damaged, match="here"):
        forged.check_signature("here")


def test_the_age_has_two_limits_and_clocks_may_differ_a_little() -> None:
    MADE.check_age(MADE.stated_s + 10, 10, "here")
    MADE.check_age(MADE.stated_s - CLOCK_SKEW_S, 10, "here")
    with pytest.raises(
        DieselfsError, match="generation 7 of pets was the newest 11 s ago, and max_age allows 10 s"
    ):
        MADE.check_age(MADE.stated_s + 11, 10, "here")
    with pytest.raises(DieselfsError, match="max_age allows 168 h"):
        MADE.check_age(MADE.stated_s + LIFETIME_S + 1, 10 * LIFETIME_S, "here")
    with pytest.raises(DieselfsError, match="ahead of the clock of this machine: set the clock"):
        MADE.check_age(MADE.stated_s - CLOCK_SKEW_S - 1, 10, "here")


def test_a_smaller_generation_is_older_whatever_its_time() -> None:
    assert is_older(replace(MADE, generation=6, updated_ns=2 * MADE.updated_ns), MADE)
    assert is_older(replace(MADE, updated_ns=MADE.updated_ns - 1), MADE)
    assert not is_older(MADE, MADE) and not is_older(replace(MADE, generation=8), MADE)
