"""Sizes, durations, times and numbers, as people write and read them: one grammar for every place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB, KIB, MIB
from dieselfs.units import (
    count,
    format_duration,
    format_size,
    format_time,
    parse_duration,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("17B", 17),
        ("512MiB", 512 * MIB),
        ("4M", 4 * MIB),
        ("4mib", 4 * MIB),
        ("4MB", 4_000_000),
        ("4mb", 4_000_000),
        ("64k", 64 * KIB),
        ("64KB", 64_000),
        ("2G", 2 * GIB),
        ("64GB", 64_000_000_000),
        ("1.5K", 1536),
        ("1.5G", 3 * GIB // 2),
        ("1.5GiB", 3 * GIB // 2),
        ("1.5GB", 1_500_000_000),
        ("1 GiB", GIB),
        (" 1G ", GIB),
        ("2T", 2048 * GIB),
        ("1TiB", 1024 * GIB),
        ("1TB", 10**12),
        ("3PiB", 3 << 50),
    ],
)
def test_sizes_are_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "M", "GiB", "-1", "4X", "4 4", "1e3", "4MM", "0x10", "1.G", "inf", "9" * 5000]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a size: write for example 512MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "rate_bytes"), [("10MiB/s", 10 * MIB), ("10M", 10 * MIB), ("1GB/s", 10**9), ("0", 0)]
)
def test_rates_are_read(text: str, rate_bytes: int) -> None:
    assert parse_rate(text) == rate_bytes


def test_what_is_no_rate_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'10M/h' is not a rate: write for example 10MiB/s"):
        parse_rate("10M/h")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("2.5", 2.5),
        ("500ms", 0.5),
        ("90s", 90),
        ("15m", 900),
        ("15 min", 900),
        ("2h", 7200),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1d", 86400),
        ("30d", 2592000),
        ("2w", 1209600),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "-1d", "1y", "1h30", "inf", "nan", "1e3", "soon"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a duration: write for example 500ms, 30s"):
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


@given(st.integers(0, 1 << 70))
def test_a_printed_size_is_read_as_what_it_says(size_bytes: int) -> None:
    printed = format_size(size_bytes)
    assert parse_size(printed) == pytest.approx(size_bytes, rel=0.05)
    assert format_size(parse_size(printed)) == printed


@given(st.integers(0, 1 << 59))
def test_exact_bytes_survive(size_bytes: int) -> None:
    assert parse_size(str(size_bytes)) == size_bytes


@given(st.floats(0, 1e9) | st.floats(0, 5000))
def test_a_printed_duration_is_read_as_what_it_says(duration_s: float) -> None:
    printed = format_duration(duration_s)
    # Tenths and seconds are rounded; of hours, whole minutes are printed of the rounded seconds.
    most_s = 60.5 if "h" in printed else 0.501 if duration_s >= 9.95 else 0.0501
    assert abs(parse_duration(printed) - duration_s) <= most_s
    assert format_duration(parse_duration(printed)) == printed


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
