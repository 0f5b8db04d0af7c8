"""Memory that the parent maps and its workers share (`parent.py`). This module maps anonymous memory."""

import mmap
import secrets
import struct
import time

from xxhash import xxh3_64_intdigest

from dieselfs.limits import MIB
from dieselfs_server.admission.throttle import Rates
from dieselfs_server.workers.shared_page import SharedPage

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


BOARD_BYTES = 8 * MIB
"""Room of each worker for what it tells the others: metrics, and what has failed. Unused pages take no memory."""
READ_TRIES_MAX = 8
_HEADER = struct.Struct("<QQ")


class Board:
    """What each worker tells the others: a place for each, which it alone writes, and which its successor finds as it
    left it. A reader that meets a writer sees it by the checksum, and reads again. Thread-safe.
    """

    def __init__(self, workers: int) -> None:
        self._places = [mmap.mmap(-1, BOARD_BYTES) for _ in range(workers)]
        self._known: list[bytes] = [b""] * workers  # what was read last; each is replaced as a whole

    def write(self, worker: int, content: bytes) -> None:
        """For one thread of this worker at a time. What has no room is left out."""
        place = self._places[worker]
        if len(content) <= BOARD_BYTES - _HEADER.size:
            place[_HEADER.size : _HEADER.size + len(content)] = content
            _HEADER.pack_into(place, 0, len(content), xxh3_64_intdigest(content))

    def read(self, worker: int) -> bytes:
        """The last that could be read; empty if the worker has not written yet."""
        place = self._places[worker]
        for _ in range(READ_TRIES_MAX):
            length, checksum = _HEADER.unpack_from(place, 0)
            content = place[_HEADER.size : _HEADER.size + min(length, BOARD_BYTES)]
            if length and xxh3_64_intdigest(content) == checksum:
                self._known[worker] = content
                break
        return self._known[worker]


class Shared:
    """All that the workers of a server share. Made by the parent before it starts them. `run`: names this run of the
    server.
    """

    def __init__(self, workers: int) -> None:
        self.started_s, self.run = int(time.time()), secrets.token_bytes(16)
        self.board, self.rates, self.page = Board(workers), Rates(time.monotonic), SharedPage()
        self._accounts = mmap.mmap(-1, workers * _NUMBER.size)

    def accounts(self, worker: int) -> Notices:
        """Of changes of the table of users."""
        return Notices(self._accounts, worker)
