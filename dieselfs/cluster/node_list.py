"""Lists of node names as one text, as Slurm writes them: `node[01-04,07],gpu1`. No I/O."""

import re
from collections.abc import Iterator, Sequence

from dieselfs.cluster.member import check_node_name
from dieselfs.errors import InvalidInput
from dieselfs.limits import JOB_NODES_MAX

_PART = re.compile(r"([^\[\],]*)(?:\[([0-9,-]+)\]([^\[\],]*))?(?:,|$)")
_NUMBERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})")


def parse_node_list(text: str) -> tuple[str, ...]:
    """The names of a list, in its order. A name has at most one range in brackets; `[08-10]` is 08, 09, 10.

    Raises InvalidInput for any other text, and for more than JOB_NODES_MAX names.
    """
    names: list[str] = []
    place = 0
    while place < len(text):
        match = _PART.match(text, place)
        if match is None:
            raise InvalidInput(f"{text[:200]!r} is not a list of nodes: write it as node[01-04,07],gpu1")
        prefix, numbers, suffix = match.groups()
        for number in [""] if numbers is None else _numbers(numbers):
            names.append(check_node_name(prefix + number + (suffix or "")))
            if len(names) > JOB_NODES_MAX:
                raise InvalidInput(f"{text[:200]!r} lists more than {JOB_NODES_MAX} nodes")
        place = match.end()
    return tuple(names)


def _numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        match = _NUMBERS.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InvalidInput(f"[{text[:200]}] is not a list of numbers: write it as [01-04,07]")
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            yield f"{number:0{len(match[1])}}"


def node_list(names: Sequence[str]) -> str:
    """The text of a list, short: `parse_node_list` gives the same names. Names in a row whose numbers follow each other
    become a range.
    """
    parts: list[str] = []
    first = place = 0
    while first < len(names):
        place = first + 1
        match = _NUMBERED.fullmatch(names[first])
        if match is not None:
            prefix, digits = match.groups()
            while (
                place < len(names) and names[place] == f"{prefix}{int(digits) + place - first:0{len(digits)}}"
            ):
                place += 1
            last = f"{int(digits) + place - first - 1:0{len(digits)}}"
        parts.append(names[first] if place == first + 1 else f"{prefix}[{digits}-{last}]")
        first = place
    return ",".join(parts)
