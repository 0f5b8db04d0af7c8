"""Sizes, durations and numbers, as people write and read them."""

import pytest

from dieselfs.errors import InvalidInput
from dieselfs_tools.units import count, format_duration, format_size, format_time, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("17B", 17),
        ("4M", 4 << 20),
        ("4MiB", 4 << 20),
        ("4mib", 4 << 20),
        ("4MB", 4_000_000),
        ("1.5K", 1536),
        ("1 GiB", 1 << 30),
        ("2T", 2 << 40),
    ],
)
def test_sizes_are_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "M", "-1", "4X", "4 4", "1e3", "4MM", "0x10"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("30d", 2592000)]
)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "-1d", "1y", "1.5h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (110 * 1024, "110 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 60, "1.0 EiB"),
        (1 << 71, "2048 EiB"),
    ],
)
def test_sizes_are_printed_in_iec_units(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize("size_bytes", [0, 1, 1000, 1 << 20, 3 << 30])
def test_a_printed_size_can_be_read_again(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == pytest.approx(size_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0.04, "0.0 s"), (9.9, "9.9 s"), (12.4, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_are_printed(duration_s: float, text: str) -> None:
    assert format_duration(duration_s) == text


def test_numbers_agree_with_their_nouns() -> None:
    assert [count(n, "file") for n in (0, 1, 1234)] == ["0 files", "1 file", "1,234 files"]
    assert [count(n, "entry") for n in (1, 2)] == ["1 entry", "2 entries"]


def test_times_beyond_the_calendar_are_numbers() -> None:
    assert format_time(10**18) == str(10**18)
    assert len(format_time(1_600_000_000)) == len("2020-09-13 12:26:40")
