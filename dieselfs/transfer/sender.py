"""Sends sealed chunks to the server in the background; those of an encrypted dataset are encrypted here, so nothing of
one is sent in plain text. This module waits for sockets and starts threads."""

import queue
from collections.abc import Callable
from threading import Lock, Thread

from dieselfs.chunk.builder import SealedChunk
from dieselfs.chunk.frames import Compression
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import (
    AccessDenied,
    AlreadyExists,
    Damaged,
    DieselfsError,
    InvalidInput,
    NotFound,
    StorageFull,
    Unavailable,
)
from dieselfs.names import printable
from dieselfs.records import DatasetRecord
from dieselfs.rpc.client import ServerClient
from dieselfs.transfer.sealing import encrypted

SENDERS = 3
"""Chunks in flight: while the server makes one durable, the next are encoded and sent."""

QUEUE_CHUNKS_MAX = 2
"""Sealed chunks that wait for a sender; beyond that, `submit` waits. Bounds the memory of an upload."""

ID_TRIES_MAX = 8

Stored = Callable[[SealedChunk, int], None]
"""Called in a sender thread with a durable chunk and the generation."""

_IDS = ChunkIdSource()


class ChunkSender:
    """Threads that encode and send chunks and wait for the replies.

    After the first error nothing more is sent, and `submit` and `wait_stored` raise it. Chunks that were reported as
    stored are durable. A reference to another chunk that the server does not store is no error: see `refused`.
    """

    def __init__(
        self,
        client: ServerClient,
        dataset: DatasetRecord,
        stored: Stored | None = None,
        compression: Compression | None = None,
    ) -> None:
        """Asks the server whether the dataset is encrypted; then nothing is compressed. Raises AccessDenied without its
        key.
        """
        self._client = client
        self._cipher = client.cipher(dataset)
        self._dataset = dataset
        self._stored = stored
        self._compression = compression
        self._queue: queue.Queue[tuple[SealedChunk, int] | None] = queue.Queue(QUEUE_CHUNKS_MAX)
        self._submit_lock = Lock()  # so versions have the order of submission
        self._error: BaseException | None = None  # set once, by the first thread that fails
        self.generation = dataset.generation
        self.refused: list[SealedChunk] = []
        """References that are not stored: the bytes are gone or damaged, or the server makes none."""
        self._threads = [
            Thread(target=self._work, name=f"dieselfs-send-{n}", daemon=True) for n in range(SENDERS)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, chunk: SealedChunk) -> None:
        """Queue a chunk; waits while the queue is full. Raises the first error of earlier chunks."""
        if not chunk.entries:
            return
        with self._submit_lock:
            self._raise_error()
            first = self._client.reserve_versions(self._dataset.name, len(chunk.entries))
            self._queue.put((chunk, first))

    @property
    def is_sending(self) -> bool:
        """Whether chunks are on their way, or wait for the server."""
        return self._queue.unfinished_tasks > 0 or self._submit_lock.locked()

    @property
    def is_encrypted(self) -> bool:
        return self._cipher is not None

    def check_path(self, path: bytes) -> None:
        """Raise InvalidInput for a path that is too long for an encrypted dataset."""
        if self._cipher is not None:
            self._cipher.names.seal_path(path)

    def reserve_version(self, count: int = 1) -> int:
        """A version for a file that spans chunks: all its extents have the same. The first of `count`."""
        return self._client.reserve_versions(self._dataset.name, count)

    def wait_stored(self) -> int:
        """Wait until all submitted chunks are stored; returns the generation. Raises the first error."""
        self._queue.join()
        self._raise_error()
        return self.generation

    def close(self) -> None:
        """End the threads when the queue is empty. Does not raise."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def abandon(self) -> None:
        """Send nothing more; chunks in flight may or may not be stored."""
        self._error = self._error or Unavailable("the upload was abandoned")
        self.close()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            try:
                if item is None:
                    return
                if self._error is None:
                    self._send(*item)
            except (AccessDenied, Damaged, InvalidInput, NotFound) as error:
                chunk = item[0] if item else None
                if chunk is not None and chunk.source is not None and chunk.source.is_chunk:
                    self.refused.append(chunk)
                else:
                    self._error = self._error or error
            except BaseException as error:  # `submit` and `wait_stored` raise it
                self._error = self._error or error
            finally:
                self._queue.task_done()

    def _send(self, chunk: SealedChunk, first_version: int) -> None:
        if self._cipher is None:
            chunk = chunk if self._compression is None else chunk.compressed(self._compression)
            generation = self._put(chunk, first_version, b"")
        else:
            for sealed in encrypted(self._cipher, chunk):
                generation = self._put(sealed, first_version, self._cipher.key_id)
                first_version += len(sealed.entries)
        if self._stored is not None:
            self._stored(chunk, generation)

    def _put(self, chunk: SealedChunk, first_version: int, key_id: bytes) -> int:
        """Store a chunk under a new ID; returns the generation."""
        for tried in range(ID_TRIES_MAX):
            chunk_id = _IDS.next()
            parts = chunk.encode(chunk_id, self._dataset.name, self._dataset.dataset_id, first_version)
            try:
                generation = self._client.put_chunk(self._dataset.name, chunk_id, parts, key_id)
                break
            except StorageFull as error:
                raise StorageFull(f"{_named(chunk)} not stored at {self._client.address}: {error}") from error
            except AlreadyExists as error:  # another process made the same ID: try the next
                if tried == ID_TRIES_MAX - 1:
                    raise DieselfsError(f"{ID_TRIES_MAX} chunk IDs in a row were taken: {error}") from None
        self.generation = max(self.generation, generation)
        return generation


def _named(chunk: SealedChunk) -> str:
    """The first path of a chunk, and how many others there are."""
    first, others = printable(chunk.entries[0][0]), len(chunk.entries) - 1
    return f"{first} and {others} other{'s' * (others > 1)}" if others else first
