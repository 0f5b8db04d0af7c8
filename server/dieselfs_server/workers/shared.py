"""Memory that the parent maps and its workers share (`parent.py`). This module maps anonymous memory."""

import mmap
import struct

_NUMBER = struct.Struct("<Q")


class Notices:
    """Whether one of the workers has changed what others may have in memory: each counts its changes in a cell of its
    own, which no other one writes. For one thread of each worker at a time. See `access/users.py`.
    """

    def __init__(self, cells: mmap.mmap, worker: int) -> None:
        self._cells, self._place = cells, worker * _NUMBER.size

    def tell(self) -> None:
        (changes,) = _NUMBER.unpack_from(self._cells, self._place)
        _NUMBER.pack_into(self._cells, self._place, changes + 1)

    def state(self) -> bytes:
        """What is read from a store after a call is as new as its result."""
        return self._cells[:]


class Shared:
    """All that the workers of a server share. Made by the parent before it starts them."""

    def __init__(self, workers: int) -> None:
        self._accounts = mmap.mmap(-1, workers * _NUMBER.size)

    def accounts(self, worker: int) -> Notices:
        """Of changes of the table of users."""
        return Notices(self._accounts, worker)
