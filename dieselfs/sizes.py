"""Sizes as options, settings and the environment say them. No I/O."""

import re

from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB, KIB, MIB

_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB}
_SIZE = re.compile(r"(\d+)(?:([KMG])(?:iB)?)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of `1GiB`, `512M`, `4096`. Raises InvalidInput."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{text!r} is not a size: write for example 512MiB or 4GiB")
    return int(match[1]) * _UNITS[(match[2] or "").upper()]
