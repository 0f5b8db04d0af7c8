"""The object store in memory, for tests and experiments. It is lost with the process."""

from collections.abc import Container, Iterator, Sequence
from threading import Lock
from typing import Self

from dieselfs.chunk.ids import chunk_name, earliest_chunk_id
from dieselfs.errors import AlreadyExists, NotFound
from dieselfs_server.store.interface import Buffer, require_length


class MemoryStore:
    """An `ObjectStore`."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards both
        self._chunks: dict[bytes, dict[bytes, bytes]] = {}
        self._records: dict[str, bytes] = {}

    @classmethod
    def open(cls, url: str, is_new: bool) -> Self:
        """The store at `memory:`, always a new one."""
        return cls()

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        content = b"".join(parts)
        with self._lock:
            chunks = self._chunks.setdefault(dataset_id, {})
            if chunk_id in chunks:
                raise AlreadyExists(f"chunk {chunk_name(chunk_id)} already exists")
            chunks[chunk_id] = content

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        content = self._get(dataset_id, chunk_id)
        return require_length(content[offset : offset + length], chunk_id, offset, length)

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """None: there are no files."""

    def size(self, dataset_id: bytes, chunk_id: bytes) -> int:
        return len(self._get(dataset_id, chunk_id))

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        with self._lock:
            self._chunks.get(dataset_id, {}).pop(chunk_id, None)

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        first = earliest_chunk_id(since_s)
        with self._lock:
            chunk_ids = sorted(chunk_id for chunk_id in self._chunks.get(dataset_id, {}) if chunk_id >= first)
        return iter(chunk_ids)

    def list_datasets(self, without: Container[bytes] = ()) -> Iterator[bytes]:
        with self._lock:
            dataset_ids = sorted(dataset_id for dataset_id, chunks in self._chunks.items() if chunks)
        return (dataset_id for dataset_id in dataset_ids if dataset_id not in without)

    def delete_dataset(self, dataset_id: bytes) -> None:
        with self._lock:
            self._chunks.pop(dataset_id, None)

    def put_record(self, name: str, content: bytes) -> None:
        with self._lock:
            self._records[name] = bytes(content)

    def create_record(self, name: str, content: bytes) -> bool:
        with self._lock:
            if name in self._records:
                return False
            self._records[name] = bytes(content)
            return True

    def get_record(self, name: str) -> bytes | None:
        with self._lock:
            return self._records.get(name)

    def list_records(self, prefix: str) -> list[str]:
        with self._lock:
            return sorted(name for name in self._records if name.startswith(prefix))

    def delete_record(self, name: str) -> None:
        with self._lock:
            self._records.pop(name, None)

    def close(self) -> None:
        return

    def _get(self, dataset_id: bytes, chunk_id: bytes) -> bytes:
        with self._lock:
            content = self._chunks.get(dataset_id, {}).get(chunk_id)
        if content is None:
            raise NotFound(f"chunk {chunk_name(chunk_id)} is not stored")
        return content
