"""Packs single puts and deletes into chunks, for the library. This module waits for sockets (through its sender)."""

import time
from collections.abc import Iterable
from threading import Lock

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.transfer.sender import ChunkSender

DEFAULT_FILE_MODE = 0o644
DEFAULT_FOLDER_MODE = 0o755


class DatasetWriter:
    """Collects entries and sends full chunks. Entries are durable when `flush` returns.

    Thread-safe. Of two puts of one path, the later one counts.
    """

    def __init__(self, sender: ChunkSender) -> None:
        self._sender = sender
        self._builder = ChunkBuilder()  # guarded by _lock
        self._lock = Lock()

    def put(
        self, path: bytes, data: bytes, mode: int = DEFAULT_FILE_MODE, mtime_ns: int | None = None
    ) -> None:
        """Add a file. Raises InvalidInput for a bad path, and the error of earlier chunks."""
        self._sender.check_path(path)
        stamp_ns = time.time_ns() if mtime_ns is None else mtime_ns
        if len(data) > CHUNK_TARGET_BYTES:
            view = memoryview(data)
            places = range(0, len(data), CHUNK_TARGET_BYTES)
            contents = (bytes(view[place : place + CHUNK_TARGET_BYTES]) for place in places)
            self.put_extents(path, contents, len(data), mode, stamp_ns)
            return
        with self._lock:
            self._builder.add_file(path, data, mode, stamp_ns)
            self._seal_if_full()

    def put_extents(
        self, path: bytes, contents: Iterable[bytes], size: int, mode: int, mtime_ns: int
    ) -> None:
        """Add a file that spans chunks, from its extents in order. It becomes visible when all are stored."""
        version, place = self._sender.reserve_version(), 0
        for content in contents:
            with self._lock:
                if self._builder.room_bytes < len(content):
                    self._seal()
                self._builder.add_file(path, content, mode, mtime_ns, size, place, version)
                self._seal_if_full()
            place += len(content)

    def put_folder(self, path: bytes, mode: int = DEFAULT_FOLDER_MODE, mtime_ns: int | None = None) -> None:
        """Add a folder, which may stay empty."""
        with self._lock:
            self._builder.add_directory(path, mode, time.time_ns() if mtime_ns is None else mtime_ns)
            self._seal_if_full()

    def put_link(self, path: bytes, target: bytes, mode: int = 0o777, mtime_ns: int | None = None) -> None:
        """Add a symbolic link."""
        with self._lock:
            self._builder.add_symlink(path, target, mode, time.time_ns() if mtime_ns is None else mtime_ns)
            self._seal_if_full()

    def delete(self, path: bytes, version: int = 0) -> None:
        """Add the deletion of a path (of a folder: only of its own entry). `version`: reserved earlier, for this alone;
        what was stored with a later one stays.
        """
        with self._lock:
            self._builder.add_delete(path, version)
            self._seal_if_full()

    def _seal_if_full(self) -> None:
        if self._builder.is_full:
            self._seal()

    def _seal(self) -> None:
        if len(self._builder):
            self._sender.submit(self._builder.seal())

    def seal(self) -> None:
        """Send the collected entries, in a full chunk or not, without waiting."""
        with self._lock:
            self._seal()

    def flush(self) -> int:
        """Send the collected entries and wait until they are stored; returns the dataset's generation."""
        self.seal()
        return self._sender.wait_stored()
