"""Detects sequential reads of a file, from the reads alone: there are no file handles. No I/O."""

from collections import OrderedDict

FILES_REMEMBERED_MAX = 1024


class SequentialReads:
    """Remembers where the last read of each file ended, for the `files_max` files read last."""

    def __init__(self, files_max: int = FILES_REMEMBERED_MAX) -> None:
        self._files_max = files_max
        self._ends: OrderedDict[int, int] = OrderedDict()

    def continues(self, inode: int, offset: int, end: int) -> bool:
        """Note a read of the bytes from `offset` to `end`; True if it begins where the file's last one ended."""
        last = self._ends.pop(inode, None)
        self._ends[inode] = end
        if len(self._ends) > self._files_max:
            self._ends.popitem(last=False)
        return last == offset
