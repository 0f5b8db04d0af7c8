"""What the server asks of an object store.

The comments are the contract; `tests/conformance/chunk_store_suite.py` holds every store to it.

A store keeps immutable objects: the chunks of each dataset, under the dataset's ID and the chunk's ID, and a few small
named records of the server itself. All methods block and may be called from any number of threads at once; the server
calls them in worker threads.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class ObjectStore(Protocol):
    """Every method raises Unavailable when the store cannot be reached or fails, StorageFull when it has no room."""

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        """Create a chunk from its parts, joined. Atomic and exclusive: when this returns, the whole object is durable
        (it survives a power cut); if it raises or the process dies, either the whole object is there or none of it.

        Raises AlreadyExists if there is an object under this ID, whatever its content; that object is durable then.
        May be repeated after any error.
        """
        ...

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on. Raises NotFound without such a chunk, Damaged if it is shorter."""
        ...

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> int | None:
        """A descriptor of the file that is the chunk, all of it and nothing else, for reading; the caller closes it.

        It stays readable when the chunk is deleted. None from a store whose chunks are no files, or whose bytes nobody
        else may take for the chunk's: always None then. Raises NotFound without such a chunk.
        """
        ...

    def size(self, dataset_id: bytes, chunk_id: bytes) -> int:
        """Length of the object in bytes. Raises NotFound."""
        ...

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """Remove a chunk; durable when this returns. Without error if it is gone already."""
        ...

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        """IDs of all chunks made at `since_s` (seconds since 1970) or later, ascending.

        What is put or deleted meanwhile may be seen or not. Reads only what can hold such chunks, not everything.
        """
        ...

    def list_datasets(self) -> Iterator[bytes]:
        """IDs of the datasets of which there is at least one chunk."""
        ...

    def delete_dataset(self, dataset_id: bytes) -> None:
        """Remove all chunks of a dataset. May be repeated; after a crash in the middle, the rest may still be there."""
        ...

    def put_record(self, name: str, content: bytes) -> None:
        """Create or replace the record `name`: `[a-z0-9-]{1,200}`. Atomic and durable, as `put`.

        Made by the server, never by users; most are small, the snapshot of a tag may have some hundred megabytes.
        """
        ...

    def get_record(self, name: str) -> bytes | None:
        """Content of the record `name`, or None if there is none."""
        ...

    def list_records(self, prefix: str) -> list[str]:
        """Names of the records that begin with `prefix`, sorted."""
        ...

    def delete_record(self, name: str) -> None:
        """Remove a record; durable when this returns. Without error if it is gone already."""
        ...

    def close(self) -> None:
        """Let go of threads and connections; once is enough. The store is of no further use."""
        ...
