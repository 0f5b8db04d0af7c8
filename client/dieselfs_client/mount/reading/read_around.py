"""Tells what the kernel reads around a missing page of a mapped file from what programs read. No I/O.

For one missing page Linux requests as much as it reads ahead: 128 KiB, or 1 MiB where root has raised that. If such a
request fails, no program sees it: the kernel then requests the missing page alone. So these requests are refused for
files that are read at random places, as long as little of what was refused is requested afterwards.

A program would see the second refusal of its page, and a kernel may keep the pages of a failed request together and
request all of them again. So a range is remembered until some of it has been requested again.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from dieselfs.cache.policy import WHOLE_SHARE
from dieselfs.limits import KIB, MIB

ANSWERED_BYTES_MAX = 64 * KIB
"""Requests up to this size are answered. After a refusal the kernel requests less, a page."""
SCATTERED_MIN = 2
"""How many large requests at random places of a file are answered before one is refused."""
RANGES_REMEMBERED_MAX = 64
"""Refused ranges of each file."""
REFUSED_BYTES_MAX = 64 * MIB
"""From this sum on, earlier refusals count half."""
FILES_REMEMBERED_MAX = 256


@dataclass(slots=True)
class _Range:
    """A refused range. `is_requested`: some of it has been requested again."""

    offset: int
    end: int
    is_requested: bool = False


@dataclass(slots=True)
class _File:
    """`scattered`: how many large requests there were. `refused`: the latest ranges that were refused; `refused_bytes`:
    of all, `wanted_bytes`: of them, requested afterwards.
    """

    scattered: int = 0
    refused: deque[_Range] = field(default_factory=lambda: deque(maxlen=RANGES_REMEMBERED_MAX))
    refused_bytes: int = 0
    wanted_bytes: int = 0


class ReadAround:
    """Used from one thread. Remembers the `files_max` files with the latest large requests at random places."""

    def __init__(self, files_max: int = FILES_REMEMBERED_MAX) -> None:
        self._files_max = files_max
        self._files: OrderedDict[int, _File] = OrderedDict()

    def requested(self, inode: int, offset: int, end: int) -> None:
        """Note any request: some of its bytes may have been refused."""
        file = self._files.get(inode)
        if file is not None and (refused := _overlapping(file, offset, end)) is not None:
            file.wanted_bytes += min(end, refused.end) - max(offset, refused.offset)
            refused.is_requested = True

    def is_unwanted(self, inode: int, offset: int, end: int) -> bool:
        """Note a request that does not continue another; returns whether to refuse it. Nothing is refused twice."""
        if end - offset <= ANSWERED_BYTES_MAX:
            return False
        file = self._files.pop(inode, None) or _File()
        self._files[inode] = file
        if len(self._files) > self._files_max:
            self._files.popitem(last=False)
        file.scattered += 1
        is_used = file.wanted_bytes > WHOLE_SHARE * file.refused_bytes
        if file.scattered <= SCATTERED_MIN or is_used or _overlapping(file, offset, end) is not None:
            return False
        if len(file.refused) == RANGES_REMEMBERED_MAX and not file.refused[-1].is_requested:
            return False  # the oldest range must not be forgotten yet
        file.refused.appendleft(_Range(offset, end))
        file.refused_bytes += end - offset
        if file.refused_bytes > REFUSED_BYTES_MAX:
            file.refused_bytes //= 2
            file.wanted_bytes //= 2
        return True


def _overlapping(file: _File, offset: int, end: int) -> _Range | None:
    """The latest refused range with some of these bytes."""
    return next((each for each in file.refused if offset < each.end and each.offset < end), None)
