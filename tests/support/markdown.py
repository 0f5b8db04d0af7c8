"""The commands and programs of a Markdown page, in their order.

A fenced block of `sh`, `console` or `python` is run as it is, unless the line above it is a comment with a reason:
`<!-- not run: needs Slurm -->`. A comment `<!-- before: ... -->` has commands for the shell that prepare the next
blocks, and that readers do not need.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

LANGUAGES = ("sh", "console", "python")

_PART = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]*?) -->\n+)?```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^```$"
    r"|^<!-- before:\n(?P<before>.*?)-->$",
    re.MULTILINE | re.DOTALL,
)
_REASON_CHARACTERS_MIN = 8


@dataclass(frozen=True)
class Block:
    """`language` "before": commands that the page does not show. `reason`: of a block that is not run."""

    line: int
    language: str
    text: str
    reason: str = ""

    def expectations(self) -> Iterator[tuple[str, str]]:
        """Of a `console` block: each command with its output."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def blocks(page: str) -> list[Block]:
    """The blocks that tests run, and those with a reason not to. Raises ValueError for an empty reason."""
    found = []
    for part in _PART.finditer(page):
        line = page.count("\n", 0, part.start()) + 1
        reason = part["reason"] or ""
        if part["reason"] is not None and len(reason) < _REASON_CHARACTERS_MIN:
            raise ValueError(f"{line}: give a reason why this block is not run")
        if part["before"] is not None:
            found.append(Block(line, "before", part["before"]))
        elif part["language"] in LANGUAGES:
            found.append(Block(line, part["language"], part["text"], reason))
    return found
