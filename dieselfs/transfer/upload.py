"""Uploads folder trees and files: walks, reads, packs and sends at once. This module opens files and starts threads.

Files that the dataset has already, with the same size, time and mode, are not read again. So the same command continues
an interrupted upload, on any machine, without a journal. A file that spans chunks continues at its first missing
extent. Memory is bounded: a few chunks being filled, and a few in flight.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import RLock, Thread

from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.errors import InvalidInput, SourceChanged
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.names import printable
from dieselfs.records import DatasetRecord
from dieselfs.rpc.client import ServerClient
from dieselfs.snapshot.reader import Snapshot
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.sender import ChunkSender

DEFAULT_JOBS = 2
BATCH_ENTRIES = 256
"""Entries that a reader takes at a time, so that neighbours in a folder are in one chunk."""

READ_TRIES_MAX = 3
"""Tries to read a file that changes meanwhile; then the file fails."""

Failed = Callable[[bytes, str], None]
"""Called with a source that cannot be uploaded, and the reason."""


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """One entry to upload: its path here, its path in the dataset, and its `lstat`."""

    source: bytes
    path: bytes
    status: os.stat_result

    @property
    def file_bytes(self) -> int:
        """Size of a file; 0 for folders and links."""
        return self.status.st_size if stat.S_ISREG(self.status.st_mode) else 0

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    def is_same(self, mode: int, size: int, mtime_ns: int, target: bytes) -> bool:
        """Whether a stored entry has this type, size, time and mode, and a link this target."""
        status = self.status
        if (mode, mtime_ns) != (status.st_mode, status.st_mtime_ns):
            return False
        if stat.S_ISLNK(mode):
            return target == os.readlink(self.source)
        return stat.S_ISDIR(mode) or size == status.st_size


def walk_source(
    source: bytes, path: bytes, failed: Failed, is_pruned: Callable[[SourceEntry], bool] = lambda _: False
) -> Iterator[SourceEntry]:
    """`source` and everything below it, each folder before its content, with paths at and below `path` in the dataset.

    Symbolic links are not followed; folders that `is_pruned` are not listed. Entries that cannot be listed are passed
    to `failed`, and the walk continues.
    """
    try:
        status = os.lstat(source)
    except OSError as error:
        failed(source, error.strerror or str(error))
        return
    top = SourceEntry(source, path, status)
    yield top
    if not stat.S_ISDIR(status.st_mode) or is_pruned(top):
        return
    pending = [(source, path)]
    while pending:
        folder, folder_path = pending.pop()
        prefix = folder_path + b"/" if folder_path else b""
        try:
            with os.scandir(folder) as listing:
                found = list(listing)
        except OSError as error:
            failed(folder, error.strerror or str(error))
            continue
        below = []
        for item in found:
            try:
                status = item.stat(follow_symlinks=False)
            except OSError as error:
                failed(item.path, error.strerror or str(error))
                continue
            entry = SourceEntry(item.path, prefix + item.name, status)
            yield entry
            if stat.S_ISDIR(status.st_mode) and not is_pruned(entry):
                below.append((entry.source, entry.path))
        pending += reversed(below)


def is_stored(entry: SourceEntry, snapshot: Snapshot) -> bool:
    """Whether the dataset has this entry already; see `SourceEntry.is_same`."""
    node = snapshot.find(entry.path)
    if node < 0:
        return False
    _, mode, size, mtime_ns = stored = snapshot.stat(node)
    return entry.is_same(mode, size, mtime_ns, snapshot.target(node) if stored.is_link else b"")


class TreeUpload:
    """One upload, by `run`. `report` has its progress, for any thread."""

    def __init__(
        self,
        client: ServerClient,
        dataset: DatasetRecord,
        stored: Snapshot | None,
        jobs: int = DEFAULT_JOBS,
        chunk_bytes: int = CHUNK_TARGET_BYTES,
    ) -> None:
        """`stored`: the content of the dataset; None uploads everything. `jobs`: threads that read the source."""
        self.report = TransferReport(generation=dataset.generation)
        self._client = client
        self._dataset = dataset
        self._snapshot = stored
        self._jobs = jobs
        self._chunk_bytes = chunk_bytes
        self._lock = RLock()  # guards the report and the walk, which may report failures
        self._error: BaseException | None = None
        self._sender: ChunkSender

    def run(self, entries: Callable[[Failed], Iterator[SourceEntry]]) -> TransferReport:
        """Upload the entries that `entries` yields (its argument records failures); returns when all are stored.

        Raises errors that end the whole upload (Unavailable, StorageFull, AccessDenied). Chunks stored by then stay,
        and the next run continues. After an interrupt no partial chunk remains.
        """
        self._sender = ChunkSender(self._client, self._dataset, self._count_stored)
        walk = entries(self._fail_walking)
        try:
            readers = [
                Thread(target=self._read, args=(walk,), name=f"dieselfs-read-{n}", daemon=True)
                for n in range(self._jobs)
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            if self._error is not None:
                raise self._error
            self.report.generation = self._sender.wait_stored()
        except BaseException as error:
            self._error = self._error or error
            self._sender.abandon()
            raise
        self._sender.close()
        return self.report

    def fail(self, source: bytes, reason: str) -> None:
        """Record that one entry cannot be uploaded."""
        with self._lock:
            self.report.fail(printable(source), reason)

    def _fail_walking(self, source: bytes, reason: str) -> None:
        with self._lock:
            self.report.found_files += 1
        self.fail(source, reason)

    def _count_stored(self, chunk: SealedChunk, generation: int) -> None:
        with self._lock:
            self.report.done_files += chunk.whole_entries
            self.report.done_bytes += len(chunk.payload)

    def _take_batch(self, walk: Iterator[SourceEntry]) -> list[SourceEntry]:
        """The next entries of the walk; empty at its end."""
        batch: list[SourceEntry] = []
        for entry in walk:
            self.report.find(entry.file_bytes, entry.is_folder)
            batch.append(entry)
            if len(batch) == BATCH_ENTRIES:
                return batch
        self.report.is_all_found = True
        return batch

    def _read(self, walk: Iterator[SourceEntry]) -> None:
        """The loop of one reader: takes batches, packs entries that are not stored, submits full chunks."""
        builder = ChunkBuilder(self._chunk_bytes)
        try:
            while self._error is None:
                with self._lock:
                    batch = self._take_batch(walk)
                if not batch:
                    self._sender.submit(builder.seal())
                    return
                for entry in batch:
                    self._pack(builder, entry)
        except BaseException as error:  # `run` raises it
            self._error = self._error or error

    def _pack(self, builder: ChunkBuilder, entry: SourceEntry) -> None:
        try:
            if self._snapshot is not None and is_stored(entry, self._snapshot):
                with self._lock:
                    self.report.skip(entry.file_bytes, entry.is_folder)
            elif stat.S_ISREG(entry.status.st_mode) and entry.status.st_size > self._chunk_bytes:
                self._pack_large(builder, entry)
            else:
                pack_entry(builder, entry)
                if builder.is_full:
                    self._sender.submit(builder.seal())
        except OSError as error:
            self.fail(entry.source, error.strerror or str(error))
        except (InvalidInput, SourceChanged) as error:
            self.fail(entry.source, str(error))

    def _pack_large(self, builder: ChunkBuilder, entry: SourceEntry) -> None:
        """Add a file that spans chunks; after an interrupted upload, only its missing extents."""
        status = entry.status
        size, mtime_ns = status.st_size, status.st_mtime_ns
        pending = self._client.pending_file(self._dataset.name, entry.path)
        grid = {(place, min(self._chunk_bytes, size - place)) for place in range(0, size, self._chunk_bytes)}
        is_continued = pending.size == size and pending.mtime_ns == mtime_ns and pending.extents <= grid
        version = pending.version if is_continued else self._sender.reserve_version()
        descriptor = os.open(entry.source, _OPEN_FLAGS)
        try:
            for place, length in sorted(grid - pending.extents if is_continued else grid):
                content = os.pread(descriptor, length, place)
                after = os.fstat(descriptor)
                if len(content) != length or (after.st_size, after.st_mtime_ns) != (size, mtime_ns):
                    raise SourceChanged("changed while it was read")
                if builder.room_bytes < length:
                    self._sender.submit(builder.seal())
                builder.add_file(entry.path, content, status.st_mode, mtime_ns, size, place, version)
        finally:
            os.close(descriptor)


# O_NONBLOCK: opening never waits for the writer of a pipe.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def pack_entry(builder: ChunkBuilder, entry: SourceEntry) -> None:
    """Add a small file, a folder or a link. Raises OSError, InvalidInput, SourceChanged."""
    status = entry.status
    mode = status.st_mode
    if stat.S_ISREG(mode):
        content, status = read_source(entry)
        builder.add_file(entry.path, content, status.st_mode, status.st_mtime_ns)
    elif stat.S_ISDIR(mode):
        builder.add_directory(entry.path, mode, status.st_mtime_ns)
    elif stat.S_ISLNK(mode):
        builder.add_symlink(entry.path, os.readlink(entry.source), mode, status.st_mtime_ns)
    else:
        raise InvalidInput("neither file nor folder nor link")


def read_source(entry: SourceEntry) -> tuple[bytes, os.stat_result]:
    """All bytes of a small file, and the matching status. Raises OSError, SourceChanged."""
    status = entry.status
    for _ in range(READ_TRIES_MAX):
        descriptor = os.open(entry.source, _OPEN_FLAGS)
        try:
            content = os.read(descriptor, status.st_size + 1)  # one byte more than expected
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if len(content) == after.st_size == status.st_size and after.st_mtime_ns == status.st_mtime_ns:
            return content, after
        if after.st_size > CHUNK_TARGET_BYTES:
            break
        status = after
    raise SourceChanged("changed while it was read")
