"""Whether files that readers of plans have read were in the page cache, or had to be asked for. No I/O.

The kernel says nothing of reads from its page cache. But which files a reader has passed is known from its tripwires;
and those of them that nobody has asked the daemon for since that reader began were in the page cache.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(slots=True)
class PlanReadFigures:
    """Counts since the start, each file once for each reader: `files` = `from_page_cache` + `asked`.

    Of what is read behind a reader's last tripwire nothing is known until the next.
    """

    files: int = 0
    from_page_cache: int = 0
    asked: int = 0


class PlanReads:
    """`nodes`: how many the snapshot has; 4 bytes for each."""

    def __init__(self, nodes: int) -> None:
        self.figures = PlanReadFigures()
        self._readers = 0
        self._asked = np.zeros(nodes, np.uint32)  # how many readers had begun when it was last asked for

    def begin(self) -> int:
        """A reader begins; its number."""
        self._readers += 1
        return self._readers

    def asked(self, node: int) -> None:
        """Somebody has asked for a file."""
        self._asked[node] = self._readers

    def passed(self, reader: int, nodes: npt.NDArray[np.integer]) -> None:
        """The reader with this number has read these files."""
        asked = int((self._asked[nodes] >= reader).sum())
        self.figures.files += len(nodes)
        self.figures.asked += asked
        self.figures.from_page_cache += len(nodes) - asked
