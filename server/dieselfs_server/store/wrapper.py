"""A store that forwards every call to another store: the base of stores that limit, retry or count calls."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, TypeVarTuple

from dieselfs_server.store.interface import Buffer, ObjectStore

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class StoreWrapper:
    """An `ObjectStore` over `store`; closing it also closes `store`."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def _pass(self, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        """Forwards one call of a method of `store`; all methods but `close` use it."""
        return call(*args)

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        self._pass(self.store.put, dataset_id, chunk_id, parts)

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        return self._pass(self.store.get_range, dataset_id, chunk_id, offset, length)

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> int | None:
        return self._pass(self.store.open_chunk, dataset_id, chunk_id)

    def size(self, dataset_id: bytes, chunk_id: bytes) -> int:
        return self._pass(self.store.size, dataset_id, chunk_id)

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        self._pass(self.store.delete, dataset_id, chunk_id)

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        return self._pass(self.store.list_chunks, dataset_id, since_s)

    def list_datasets(self) -> Iterator[bytes]:
        return self._pass(self.store.list_datasets)

    def delete_dataset(self, dataset_id: bytes) -> None:
        self._pass(self.store.delete_dataset, dataset_id)

    def put_record(self, name: str, content: bytes) -> None:
        self._pass(self.store.put_record, name, content)

    def create_record(self, name: str, content: bytes) -> bool:
        return self._pass(self.store.create_record, name, content)

    def get_record(self, name: str) -> bytes | None:
        return self._pass(self.store.get_record, name)

    def list_records(self, prefix: str) -> list[str]:
        return self._pass(self.store.list_records, prefix)

    def delete_record(self, name: str) -> None:
        self._pass(self.store.delete_record, name)

    def close(self) -> None:
        self.store.close()
