"""Pins: each holder has one, until it expires or is taken back."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.records import NoteChange
from dieselfs_server.leases.pins import PINS_PER_USER_MAX, Pin, live_pins, put_pin, put_pin_of, remove_pin
from dieselfs_server.metadata.sqlite.store import SqliteMetadata

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
