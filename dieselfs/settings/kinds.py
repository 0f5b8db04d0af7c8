"""The kinds of values that settings have: their names, parsers and units. No I/O."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from dieselfs.attached.web_url import check_root, is_web_url
from dieselfs.bucket.url import is_object_url
from dieselfs.errors import InvalidInput
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX, MIB, MOUNT_MEMORY_BYTES_MIN
from dieselfs.units import parse_duration, parse_rate, parse_size, parse_whole_number


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: its name in help, its parser (raises InvalidInput), the unit at the end of its field's name, and
    its possible values if they are few.
    """

    metavar: str
    parse: Callable[[str], object] = str
    unit: str = ""
    choices: tuple[str, ...] = ()


def _memory(text: str) -> int:
    size_bytes = parse_size(text)
    if 0 < size_bytes < MOUNT_MEMORY_BYTES_MIN:
        raise InvalidInput(f"{text} is too small: it must be at least {MOUNT_MEMORY_BYTES_MIN // MIB}MiB")
    return size_bytes


def _disk_size(text: str) -> int:
    size_bytes = parse_size(text)
    if size_bytes < CHUNK_PAYLOAD_BYTES_MAX:
        raise InvalidInput(f"{text} is too small: it must be at least {CHUNK_PAYLOAD_BYTES_MAX // MIB}MiB")
    return size_bytes


def _time_limit(text: str) -> float:
    duration_s = parse_duration(text)
    if duration_s == 0:
        raise InvalidInput(f"{text!r} is not a positive duration: write for example 30s")
    return duration_s


def _roots(text: str) -> tuple[str, ...]:
    roots = tuple(filter(None, text.split(",")))
    for root in roots:
        if is_web_url(root):
            check_root(root)
        elif not root.startswith("/") and not is_object_url(root):
            raise InvalidInput(
                f"{root!r} is neither the absolute path of a folder nor s3://BUCKET/FOLDER nor https://HOST/FOLDER"
            )
    return roots


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def _pairs(text: str) -> dict[str, str]:
    pairs = [each.rpartition("=") for each in _names(text)]
    for left, _, right in pairs:
        if not left or not right:
            raise InvalidInput(f"{text[:80]!r}: write for example ml-team=vision,/research/nlp=nlp")
    return {left.strip(): right.strip() for left, _, right in pairs}


def _host_names(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
            raise InvalidInput(f"{name[:80]!r} is not the name of a host: write for example data.example.org")
    return names


def _expression(text: str) -> str:
    if not text.strip():
        raise InvalidInput("it has no expression: write one as width >= 512")
    return text


def choice(names: tuple[str, ...]) -> Kind:
    """One of a few words."""

    def parse(text: str) -> str:
        if text not in names:
            raise InvalidInput(f"{text!r} is not one of {', '.join(names)}")
        return text

    return Kind("|".join(names), parse, choices=names)


NAME, ADDRESS, HOST, URL = Kind("NAME"), Kind("ADDRESS"), Kind("HOST"), Kind("URL")
FILE, FOLDER, EXPRESSION = Kind("FILE"), Kind("FOLDER"), Kind("EXPRESSION", _expression)
NUMBER = Kind("N", parse_whole_number)
MEMORY = Kind("SIZE", _memory, "_bytes")
SIZE = Kind("SIZE", parse_size, "_bytes")
DISK_SIZE = Kind("SIZE", _disk_size, "_bytes")
RATE = Kind("RATE", parse_rate, "_bytes")
TIME_LIMIT = Kind("DURATION", _time_limit, "_s")
ROOTS = Kind("FOLDER,...", _roots)
HOST_NAMES = Kind("HOST,...", _host_names)
NAMES = Kind("NAME,...", _names)
PAIRS = Kind("GROUP=GROUP,...", _pairs)
SWITCH = Kind("")
YES = "yes"
YES_OR_NO = choice((YES, "no"))
ADDRESSES = Kind("ADDRESS")
"""A list of texts in a file, a flag that may be repeated."""
