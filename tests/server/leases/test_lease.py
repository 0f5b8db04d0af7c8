"""Leases: what they look like as notes, and who changes them when others do too."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from dieselfs.errors import InvalidInput, NotFound, Unavailable
from dieselfs.records import NoteChange
from dieselfs_server.leases.lease import (
    NOTE_TRIES_MAX,
    PINS_PER_USER_MAX,
    PROGRESS_NODES_MAX,
    PROGRESS_S,
    Lease,
    Pin,
    live_pins,
    progress_of,
    put_pin,
    put_pin_of,
    put_progress,
    remove_pin,
    remove_progress,
    until_done,
)
from dieselfs_server.metadata.sqlite.store import SqliteMetadata


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


DATASET = bytes(range(16))
NOW_NS = 1_800_000_000 * 10**9


@pytest.fixture
def metadata() -> Iterator[SqliteMetadata]:
    with closing(SqliteMetadata(":memory:")) as store:
        store.create_dataset("data", DATASET)
        yield store


def test_pins_last_until_they_expire_or_are_taken_away(metadata: SqliteMetadata) -> None:
    pins = [Pin(f"user/{h}", 3, NOW_NS - 7, NOW_NS + lease) for h, lease in (("a", 10), ("b", 20), ("c", 30))]
    for pin in reversed(pins):
        put_pin(metadata, DATASET, pin)
    assert live_pins(metadata, DATASET, NOW_NS) == pins
    assert live_pins(metadata, DATASET, NOW_NS + 10) == pins[1:]
    assert len(metadata.notes_below(DATASET, "pins/")) == 2
    renewed = Pin("user/b", 4, NOW_NS, NOW_NS + 100)
    put_pin(metadata, DATASET, renewed)
    remove_pin(metadata, DATASET, "user/c")
    remove_pin(metadata, DATASET, "nobody")
    assert live_pins(metadata, DATASET, NOW_NS + 30) == [renewed]


def test_other_notes_are_left_alone(metadata: SqliteMetadata) -> None:
    metadata.change_notes(DATASET, [NoteChange("other/a", None, bytes(8))])
    put_pin(metadata, DATASET, Pin("a", 1, 1, NOW_NS + 1))
    assert live_pins(metadata, DATASET, NOW_NS + 1) == []
    assert list(metadata.notes_below(DATASET, "")) == ["other/a"]


def test_an_unknown_dataset_is_not_found(metadata: SqliteMetadata) -> None:
    for ask in (
        lambda: put_pin(metadata, bytes(16), Pin("a", 1, 1, 1)),
        lambda: remove_pin(metadata, bytes(16), "a"),
        lambda: live_pins(metadata, bytes(16), NOW_NS),
    ):
        with pytest.raises(NotFound):
            ask()


def test_a_user_has_a_limited_number_of_pins(metadata: SqliteMetadata) -> None:
    changes = [
        NoteChange(f"pins/ada/{n}", None, Pin(f"ada/{n}", 1, 1, NOW_NS + 10).note())
        for n in range(PINS_PER_USER_MAX)
    ]
    assert metadata.change_notes(DATASET, changes)
    another = Pin("ada/another", 1, 1, NOW_NS + 100)
    with pytest.raises(InvalidInput, match="the limit"):
        put_pin_of(metadata, DATASET, "ada", another, NOW_NS)
    put_pin_of(metadata, DATASET, "ada", Pin("ada/7", 2, 2, NOW_NS + 20), NOW_NS)  # renewed
    put_pin_of(metadata, DATASET, "adam", Pin("adam/1", 1, 1, NOW_NS + 100), NOW_NS)
    put_pin_of(metadata, DATASET, "ada", another, NOW_NS + 10)  # the others have expired
    assert [pin.holder for pin in live_pins(metadata, DATASET, NOW_NS + 10)] == [
        "ada/7",
        "ada/another",
        "adam/1",
    ]


def test_what_nodes_tell_is_bounded_removed_and_expires(metadata: SqliteMetadata) -> None:
    for number in range(PROGRESS_NODES_MAX + 2):
        put_progress(metadata, DATASET, f"job/{number}", "ada", b"x", 0)
    assert len(progress_of(metadata, DATASET, 0)) == PROGRESS_NODES_MAX
    put_progress(metadata, DATASET, "job/0", "ada", b"y", 1)
    assert progress_of(metadata, DATASET, 1)["job/0"][:2] == ("ada", b"y")
    for _ in range(2):
        remove_progress(metadata, DATASET, "job/0")
    put_progress(metadata, DATASET, "job/new", "ada", b"x", 1)
    assert "job/new" in progress_of(metadata, DATASET, 1)
    late_ns = PROGRESS_S * 10**9 + 2
    put_progress(metadata, DATASET, "job/late", "ada", b"x", late_ns)
    assert [*progress_of(metadata, DATASET, 0)] == ["job/late"]
