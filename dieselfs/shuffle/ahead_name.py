"""The names in `.dieselfs/shuffle/` that say which extents a reader of parts of files needs next. No I/O.

    ahead=1f2e3d4c+12-15+40        extents 12 to 15 and 40 of the snapshot whose digest begins so, in this order

To look such a name up is to say it: the daemon of the mount fetches these extents.
"""

import re
from collections.abc import Iterator, Sequence

from dieselfs.errors import InvalidInput
from dieselfs.limits import NAME_BYTES_MAX
from dieselfs.names import printable

EXTENTS_MAX = 1024
"""Of one name."""

_PREFIX = "ahead="
_DIGEST_BYTES = 4
_NAME = re.compile(rb"ahead=([0-9a-f]{8})((?:\+[0-9]{1,10}(?:-[0-9]{1,10})?)+)")


def is_ahead_name(name: bytes) -> bool:
    """Whether a name is meant to be one of these."""
    return name.startswith(_PREFIX.encode())


def ahead_names(digest: bytes, numbers: Sequence[int]) -> Iterator[str]:
    """As few names as the numbers of extents need, in their order. `digest`: of the snapshot."""
    head = _PREFIX + digest[:_DIGEST_BYTES].hex()
    name, extents = head, 0
    for first, last in _ranges(numbers):
        part = f"+{first}" if first == last else f"+{first}-{last}"
        if extents and (len(name) + len(part) > NAME_BYTES_MAX or extents + last - first >= EXTENTS_MAX):
            yield name
            name, extents = head, 0
        name, extents = name + part, extents + last - first + 1
    if extents:
        yield name


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of numbers that follow each other, EXTENTS_MAX at most."""
    first = last = -1
    for number in numbers:
        if first >= 0 and number == last + 1 and number - first < EXTENTS_MAX:
            last = number
            continue
        if first >= 0:
            yield first, last
        first = last = number
    if first >= 0:
        yield first, last


def extents_ahead(name: bytes, digest: bytes, extents: int) -> list[int]:
    """The numbers in a name, for a snapshot with this digest and number of extents. Raises InvalidInput."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidInput(f"{printable(name)}: write ahead=DIGEST+EXTENTS, as ahead=1f2e3d4c+12-15+40")
    if found[1].decode() != digest[:_DIGEST_BYTES].hex():
        raise InvalidInput(f"{printable(name)}: this mount has another snapshot: open its files again")
    numbers: list[int] = []
    for part in found[2].split(b"+")[1:]:
        first, _, last = part.partition(b"-")
        span = range(int(first), int(last or first) + 1)
        if not span or span[-1] >= extents or len(numbers) + len(span) > EXTENTS_MAX:
            raise InvalidInput(
                f"{printable(name)}: give up to {EXTENTS_MAX} numbers of extents below {extents}, as 12-15"
            )
        numbers += span
    return numbers
