"""A disk with one head, as a store: each read that does not begin where the last one has ended costs a seek."""

import time
from collections.abc import Callable
from threading import Condition

from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.wrapper import StoreWrapper

PIECE_BYTES = 256 << 10
"""A long read is served in pieces, in turn with those of other reads, as by a disk that is fair to its readers."""


class SeekingStore(StoreWrapper):
    """An `ObjectStore` whose chunks lie one after the other on a disk, in the order in which they are first read or
    placed. Reads of chunks wait as long as they would take; other calls take no time. Thread-safe.
    """

    def __init__(
        self,
        store: ObjectStore,
        seek_s: float,
        bytes_per_s: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(store)
        self._seek_s, self._bytes_per_s, self._sleep = seek_s, bytes_per_s, sleep
        self._turn = Condition()  # guards all below
        self._next_ticket = self._served = 0
        self._begins: dict[bytes, int] = {}
        self._end_of_all = self._head = 0
        self.seeks = 0

    def place(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """Put a chunk behind the others, if it has no place yet."""
        size = self.store.size(dataset_id, chunk_id)
        with self._turn:
            if chunk_id not in self._begins:
                self._begins[chunk_id] = self._end_of_all
                self._end_of_all += size

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        self.place(dataset_id, chunk_id)
        begin = self._begins[chunk_id] + offset
        for first in range(0, length, PIECE_BYTES):
            self._serve(begin + first, min(PIECE_BYTES, length - first))
        return super().get_range(dataset_id, chunk_id, offset, length)

    def _serve(self, place: int, length: int) -> None:
        with self._turn:
            ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
            while self._served != ticket:  # each that is before it ends after its own time
                self._turn.wait()
        is_seek = place != self._head
        self.seeks += is_seek
        self._head = place + length
        self._sleep(is_seek * self._seek_s + length / self._bytes_per_s)
        with self._turn:
            self._served += 1
            self._turn.notify_all()

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """None: reads of an open file would not wait."""
