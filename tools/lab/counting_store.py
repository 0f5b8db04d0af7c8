"""Counts the reads and writes of chunks in a store, and their bytes."""

from collections.abc import Sequence

from dieselfs.telemetry.registry import Registry
from dieselfs_server.store.interface import Buffer, ObjectStore
from dieselfs_server.store.wrapper import StoreWrapper


class CountingStore(StoreWrapper):
    """An `ObjectStore` that counts the calls that move the bytes of chunks to and from `store`."""

    def __init__(self, store: ObjectStore, metrics: Registry | None = None) -> None:
        super().__init__(store)
        self.metrics = metrics = metrics or Registry()
        self._reads = metrics.counter("store.reads", "Reads of chunks, those that failed included.")
        self._read = metrics.counter("store.read_bytes", "Bytes read from the object store.")
        self._puts = metrics.counter("store.puts", "Writes of chunks, those that failed included.")
        self._put = metrics.counter("store.put_bytes", "Bytes written to the object store.")

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        self.metrics.add(self._puts)
        self.store.put(dataset_id, chunk_id, parts)
        self.metrics.add(self._put, sum(memoryview(part).nbytes for part in parts))

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        self.metrics.add(self._reads)
        data = self.store.get_range(dataset_id, chunk_id, offset, length)
        self.metrics.add(self._read, len(data))
        return data

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """None: reads of an open file could not be counted."""
