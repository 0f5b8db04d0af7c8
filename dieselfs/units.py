"""Sizes, rates, durations and times as text. No I/O."""

import re
import time

from dieselfs.errors import InvalidInput

_NUMBER = r"(\d{1,18}(?:\.\d{1,9})?)"
_SIZE = re.compile(rf"{_NUMBER}\s*([kmgtpe]?)(i?b)?", re.IGNORECASE)
_DURATION_PART = re.compile(rf"{_NUMBER}\s*(ms|s|min|m|h|d|w)\s*")
_DURATION = re.compile(rf"{_NUMBER}|(?:{_DURATION_PART.pattern})+")
_POWERS = " kmgtpe"
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_IEC = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def parse_size(text: str) -> int:
    """Bytes of `64G`, `64GiB` (both 64 * 2^30), `64GB` (64 * 10^9), `1.5g` or `4096`. Raises InvalidInput."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{text!r} is not a size: write for example 512MiB, 64GB, 1.5G or 4096")
    number, letter, unit = match[1], match[2].lower(), (match[3] or "").lower()
    factor: int = (1000 if letter and unit == "b" else 1024) ** (_POWERS.index(letter) if letter else 0)
    return int(float(number) * factor) if "." in number else int(number) * factor


def parse_whole_number(text: str) -> int:
    """Raises InvalidInput."""
    if not re.fullmatch("[0-9]{1,18}", text.strip()):
        raise InvalidInput(f"{text[:40]!r} is not a whole number: write for example 8")
    return int(text)


def parse_rate(text: str) -> int:
    """Bytes per second of `10MiB/s`, or of a size. Raises InvalidInput."""
    try:
        return parse_size(text.strip().removesuffix("/s"))
    except InvalidInput:
        raise InvalidInput(f"{text!r} is not a rate: write for example 10MiB/s or 200M") from None


def parse_duration(text: str) -> float:
    """Seconds of `90`, `1.5`, `500ms`, `30s`, `15m`, `12h`, `30d`, `2w`, `1h30m`. Raises InvalidInput."""
    stripped = text.strip()
    if _DURATION.fullmatch(stripped) is None:
        raise InvalidInput(f"{text!r} is not a duration: write for example 500ms, 30s, 15m, 12h or 30d")
    parts = [(match[1], match[2]) for match in _DURATION_PART.finditer(stripped)] or [(stripped, "s")]
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def format_size(size_bytes: float) -> str:
    """IEC, three or four characters of number: `0 B`, `1.5 KiB`, `110 MiB`."""
    amount, power = float(size_bytes), 0
    while round(amount, 1) >= 1024 and power < len(_IEC) - 1:
        amount, power = amount / 1024, power + 1
    digits = 0 if power == 0 or amount >= 99.95 else 1
    return f"{amount:.{digits}f} {_IEC[power]}"


def format_duration(duration_s: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if duration_s < 9.95:
        return f"{duration_s:.1f} s"
    whole_s = round(duration_s)
    if whole_s < 60:
        return f"{whole_s} s"
    if whole_s < 3600:
        return f"{whole_s // 60} min {whole_s % 60} s"
    return f"{whole_s // 3600} h {whole_s % 3600 // 60} min"


def format_time(seconds_since_1970: float) -> str:
    """Local time, to the second; a time beyond the calendar as a plain number."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds_since_1970))
    except (OverflowError, ValueError, OSError):
        return f"{seconds_since_1970:.0f}"


def count(number: int, noun: str) -> str:
    """`1 file`, `1,234 files`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"
