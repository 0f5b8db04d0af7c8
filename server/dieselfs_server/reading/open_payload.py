"""The payload of a chunk as an open file, for a client that reads it directly."""

import os
from dataclasses import dataclass
from typing import Self

from dieselfs.chunk.format import PREAMBLE_BYTES, decode_preamble
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import Unavailable
from dieselfs_server.store.interface import ObjectStore


@dataclass(frozen=True, slots=True)
class OpenPayload:
    """`length` bytes at `start` in the file of `descriptor`; a context manager that closes it."""

    descriptor: int
    start: int
    length: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def open_payload(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> OpenPayload | None:
    """Open a chunk, and read the place of its payload; None if the store has no files. Blocks.

    Raises NotFound, Damaged, Unavailable, with nothing left open. Does not check that the payload is complete.
    """
    descriptor = store.open_chunk(dataset_id, chunk_id)
    if descriptor is None:
        return None
    source = f"chunk {chunk_name(chunk_id)}"
    try:
        preamble = decode_preamble(os.pread(descriptor, PREAMBLE_BYTES, 0), source, chunk_id)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise Unavailable(f"object store: {source}: {error.strerror or error}") from error
        raise
    return OpenPayload(descriptor, preamble.payload_start, preamble.payload_length)
