"""The names in `.dieselfs/shuffle/`: `seed=1,epoch=0,group=100,rank=0,world=8`, what one reader reads. No I/O."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from dieselfs.errors import InvalidInput
from dieselfs.names import printable, user_path
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.order import DEFAULT_GROUP_CHUNKS
from dieselfs.shuffle.skips import NO_SKIPS, Skips

_NUMBER = re.compile(r"[0-9]{1,20}")
_RANGE = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class ShuffleName:
    """What a name asks for. The fields are the keys of a name, with their defaults.

    - `folder`: what all files lie below; as in addresses, `%2F` stands for a slash, `%2C` for a comma
    - `seed`, `epoch`, `group`: which order; `skip`: what is left out of it
    - `rank`, `world`, `batch`, `start`, `worker`, `workers`, `drop_last`: which part of it, as in `Plan.share`
    - `cursor`: the order and the position in it, in place of the keys that say so one by one
    - `null`: each path ends with a NUL byte, not with a newline
    """

    folder: bytes = b""
    seed: int = 0
    epoch: int = 0
    group: int = DEFAULT_GROUP_CHUNKS
    skip: Skips = NO_SKIPS
    rank: int = 0
    world: int = 1
    batch: int | None = None
    start: int = 0
    worker: int = 0
    workers: int = 1
    drop_last: bool = False
    cursor: Cursor | None = None
    null: bool = False

    @classmethod
    def parse(cls, name: bytes) -> "ShuffleName":
        """Keys in any order, each once at most. Raises InvalidInput, saying which part is wrong."""
        values: dict[str, Any] = {}
        for part in printable(name).split(","):
            key, is_assigned, text = part.partition("=")
            parse = _PARSERS.get(key)
            if parse is None or not is_assigned:
                raise InvalidInput(
                    f"{part!r} is no KEY=VALUE of a shuffle; the keys are {', '.join(_PARSERS)}"
                )
            if key in values:
                raise InvalidInput(f"{key} is given twice")
            try:
                values[key] = parse(text)
            except ValueError as error:
                raise InvalidInput(f"{part}: {error}") from None
        if "cursor" in values and (doubled := values.keys() & _IN_CURSOR):
            raise InvalidInput(f"the cursor says already what {', '.join(sorted(doubled))} would")
        return cls(**values)


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError("write a number, in digits")
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("write 0 or 1")
    return text == "1"


def _folder(text: str) -> bytes:
    return user_path(unquote_to_bytes(text))


def _skips(text: str) -> Skips:
    ranges = [_RANGE.fullmatch(part) for part in text.split("+")]
    if None in ranges:
        raise ValueError("write the first and the last position to skip, as 100-199 or 100-199+300-399")
    return Skips(range(int(found[1]), int(found[2]) + 1) for found in ranges if found)


_PARSERS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(
        ("seed", "epoch", "group", "rank", "world", "batch", "start", "worker", "workers"), _number
    ),
    "folder": _folder,
    "skip": _skips,
    "drop_last": _switch,
    "cursor": Cursor.parse,
    "null": _switch,
}
_IN_CURSOR = frozenset({"seed", "epoch", "group", "skip", "start"})
