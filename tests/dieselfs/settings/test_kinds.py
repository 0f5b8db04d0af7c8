"""What the parsers of settings take and refuse; each refusal is one line that says what to write."""

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB, MIB
from dieselfs.settings.kinds import DISK_SIZE, MEMORY, NUMBER, ROOTS, TIME_LIMIT, YES_OR_NO, Kind, choice


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (NUMBER, "8", 8),
        (MEMORY, "16GiB", 16 * GIB),
        (MEMORY, "0", 0),
        (DISK_SIZE, "64MiB", 64 * MIB),
        (DISK_SIZE, "500G", 500 * GIB),
        (TIME_LIMIT, "30s", 30.0),
        (YES_OR_NO, "yes", "yes"),
        (ROOTS, "/data,/more", ("/data", "/more")),
        (choice(("on", "off")), "off", "off"),
    ],
)
def test_a_value_is_read(kind: Kind, text: str, value: object) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (NUMBER, "-1", "whole number"),
        (NUMBER, "9" * 19, "whole number"),
        (MEMORY, "7MiB", "at least 8MiB"),
        (DISK_SIZE, "63MiB", "at least 64MiB"),
        (DISK_SIZE, "0", "at least 64MiB"),
        (TIME_LIMIT, "0s", "not a positive duration"),
        (ROOTS, "/data,more", "absolute path"),
        (YES_OR_NO, "maybe", "not one of yes, no"),
    ],
)
def test_a_wrong_value_is_refused(kind: Kind, text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as raised:
        kind.parse(text)
    assert "\n" not in str(raised.value)
