"""Reads hex dumps and tables from the documents of the formats."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = REPOSITORY / "docs"

_BLOCK = re.compile(r"^```hexdump\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"([0-9a-f]{4,})  ((?:[0-9a-f]{2} ){0,15}[0-9a-f]{2})(?:  .*)?")


def hex_dump(document: str, number: int = 0) -> bytes:
    """The bytes of a hex dump in `docs/<document>`: lines of an offset, up to 16 bytes, and a remark."""
    block = _BLOCK.findall((DOCUMENTS / document).read_text(encoding="utf-8"))[number]
    data = b""
    for line in block.splitlines():
        match = _LINE.fullmatch(line)
        assert match, f"{document}: not a line of a hex dump: {line!r}"
        offset, text = match.groups()
        assert int(offset, 16) == len(data), (
            f"{document}: {line!r} does not begin where the line before it ends"
        )
        data += bytes.fromhex(text)
    return data


def table(document: str, heading: str) -> list[list[str]]:
    """The cells, row by row, of the first table below a heading (given with its #) of `docs/<document>`."""
    text = (DOCUMENTS / document).read_text(encoding="utf-8")
    assert text.count(f"\n{heading}\n") == 1, f"{document} has no heading {heading!r}, or several"
    below = text.partition(f"\n{heading}\n")[2].splitlines()
    first = next(index for index, line in enumerate(below) if line.startswith("|"))
    rows = []
    for line in below[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[2:]
