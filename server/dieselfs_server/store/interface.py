"""The interface of object stores.

The comments are the contract; `tests/conformance/chunk_store_suite.py` holds every store to it.

A store keeps immutable objects: the chunks of each dataset, under the dataset's ID and the chunk's ID, and a few small
named records of the server itself. All methods block and may be called from any number of threads; the server calls
them in worker threads.
"""

import os
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self

from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.fields import DATASET_ID_BYTES

RECORD_NAME = re.compile(r"[a-z0-9-]{1,200}")
DATASET_FOLDER = re.compile(rf"[0-9a-f]{{{2 * DATASET_ID_BYTES}}}")

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class OpenPayload:
    """`length` bytes at `start` in the file of `descriptor`; a context manager that closes it. `name`: for messages."""

    descriptor: int
    start: int
    length: int
    name: str = "chunk"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


class ObjectStore(Protocol):
    """Every method raises Unavailable when the store cannot be reached or fails, StorageFull when it has no room."""

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        """Create a chunk from its parts, joined. Atomic and exclusive.

        When this returns, the object is durable: it survives a power cut. If it raises or the process dies, either the
        whole object exists or none of it. May be repeated after any error.

        Raises AlreadyExists if an object with this ID exists, whatever its content; that object is then durable.
        """
        ...

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on. Raises NotFound, Damaged if the object is shorter."""
        ...

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> int | None:
        """A descriptor for reading a file that contains exactly the chunk; the caller closes it. Raises NotFound.

        It stays readable when the chunk is deleted. A store whose chunks are not files, or whose bytes must be checked
        here first, always returns None.
        """
        ...

    def size(self, dataset_id: bytes, chunk_id: bytes) -> int:
        """Length of the object in bytes. Raises NotFound."""
        ...

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """Remove a chunk; durable when this returns. No error if it does not exist."""
        ...

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        """IDs of all chunks made at `since_s` (seconds since 1970) or later, ascending.

        Chunks put or deleted meanwhile may be listed or not. Does not read the names of all older chunks.
        """
        ...

    def list_datasets(self, without: Container[bytes] = ()) -> Iterator[bytes]:
        """IDs of the datasets with at least one chunk, but for those of `without`, for which no chunk is looked for."""
        ...

    def delete_dataset(self, dataset_id: bytes) -> None:
        """Remove all chunks of a dataset. May be repeated; after a crash, some of them may remain."""
        ...

    def put_record(self, name: str, content: bytes) -> None:
        """Create or replace the record `name`: `[a-z0-9-]{1,200}`. Atomic and durable, as `put`.

        Records are made by the server, never by users. Most are small; the snapshot of a tag may have some hundred
        megabytes.
        """
        ...

    def create_record(self, name: str, content: bytes) -> bool:
        """Create the record `name` of less than 1 MiB; False if it exists, whatever its content. Atomic and durable:
        of several creators one succeeds, and each finds a durable record afterwards.

        May be repeated after any error; then False may mean that an earlier try has succeeded: read the record.
        """
        ...

    def get_record(self, name: str) -> bytes | None:
        """Content of the record `name`, or None if there is none."""
        ...

    def list_records(self, prefix: str) -> list[str]:
        """Names of the records that begin with `prefix`, sorted."""
        ...

    def delete_record(self, name: str) -> None:
        """Remove a record; durable when this returns. No error if it does not exist."""
        ...

    def close(self) -> None:
        """End threads and close connections. Call it once; the store cannot be used afterwards."""
        ...


# -- what stores share -------------------------------------------------------------------------------------


def dataset_folder(dataset_id: bytes) -> str:
    """The name of a dataset in a store. Raises InvalidInput."""
    if len(dataset_id) != DATASET_ID_BYTES:
        raise InvalidInput(f"a dataset ID has {DATASET_ID_BYTES} bytes, not {len(dataset_id)}")
    return dataset_id.hex()


def with_chunks(store: ObjectStore, names: Iterable[str], without: Container[bytes]) -> Iterator[bytes]:
    """The IDs of the datasets among these names that have chunks, but for those of `without`."""
    for dataset_id in map(bytes.fromhex, filter(DATASET_FOLDER.fullmatch, names)):
        if dataset_id not in without and next(store.list_chunks(dataset_id), None) is not None:
            yield dataset_id


def check_record_name(name: str) -> str:
    """Raises InvalidInput."""
    if not RECORD_NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is not a valid name of a record")
    return name


def require_length(data: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
    """`data`, read from `offset` of a chunk. Raises Damaged if it is shorter than `length`: there the object ends."""
    if len(data) != length:
        raise Damaged(
            f"chunk {chunk_name(chunk_id)}: offset {offset}: "
            f"{length} bytes requested, but the object ends at {offset + len(data)}"
        )
    return data


@contextmanager
def naming(chunk_id: bytes) -> Iterator[None]:
    """Name the chunk in a NotFound of the block."""
    try:
        yield
    except NotFound:
        raise NotFound(f"chunk {chunk_name(chunk_id)} is not stored") from None
