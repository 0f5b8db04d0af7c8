"""Counts what is asked of a store: how many reads and writes of chunks, and how many bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

from dieselfs_server.store.interface import Buffer, ObjectStore
from dieselfs_server.store.wrapper import StoreWrapper


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Since the store was opened; what failed counts as asked, but brought no bytes."""

    reads: int = 0
    bytes_read: int = 0
    puts: int = 0
    bytes_put: int = 0


class CountingStore(StoreWrapper):
    """An `ObjectStore` that counts the calls that move the bytes of chunks to and from `store`."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._lock = Lock()  # guards the counts
        self._counts = StoreStatistics()

    def statistics(self) -> StoreStatistics:
        return self._counts

    def _count(self, reads: int = 0, bytes_read: int = 0, puts: int = 0, bytes_put: int = 0) -> None:
        with self._lock:
            counts = self._counts
            self._counts = replace(
                counts,
                reads=counts.reads + reads,
                bytes_read=counts.bytes_read + bytes_read,
                puts=counts.puts + puts,
                bytes_put=counts.bytes_put + bytes_put,
            )

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        self._count(puts=1)
        self.store.put(dataset_id, chunk_id, parts)
        self._count(bytes_put=sum(memoryview(part).nbytes for part in parts))

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        self._count(reads=1)
        data = self.store.get_range(dataset_id, chunk_id, offset, length)
        self._count(bytes_read=len(data))
        return data

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """No file: what is read of one could not be counted."""
