"""Uploads folder trees and other sources: walks, reads, packs and sends at once. This module opens files and starts
threads.

Files that the dataset has already, with the same size, time and mode, are not read again. So the same command continues
an interrupted upload, on any machine, without a journal. A file that spans chunks continues at its first missing
extent, if what is stored has the bytes that it has now. Memory is bounded: a few chunks being filled, and a few in
flight.
"""

import os
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from threading import Lock, Thread
from typing import NamedTuple, Protocol

from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.frames import Compression
from dieselfs.digests import extent_digest_of
from dieselfs.encryption.segments import SEGMENT_BYTES
from dieselfs.errors import Damaged, InvalidInput, SourceChanged
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX, CHUNK_TARGET_BYTES, KIB
from dieselfs.records import DatasetRecord, PendingFile
from dieselfs.rpc.client import ServerClient
from dieselfs.snapshot.reader import Snapshot
from dieselfs.transfer.equal_extents import EqualExtents
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.sender import ChunkSender

DEFAULT_JOBS = 2
_KIND = 0o170000
"""The bits of a mode that tell files, folders and links apart: `stat.S_ISREG` takes longer, and is called per file."""
BATCH_ENTRIES = 256
"""Entries that a reader takes at a time, so that neighbours in a folder are in one chunk."""

READ_TRIES_MAX = 3
"""Tries to read a file that changes meanwhile; then the file fails."""


class Failed(Protocol):
    """Called with a source that cannot be uploaded, and the reason. `is_damaged`: its bytes are wrong."""

    def __call__(self, source: bytes, reason: str, is_damaged: bool = False, /) -> None: ...


class UploadEntry(Protocol):
    """One entry to upload, from any source. Reading it raises OSError, InvalidInput, Damaged or SourceChanged, and then
    this entry fails. `mode` has the type bits.
    """

    @property
    def source(self) -> bytes:
        """The name of the source in messages."""

    @property
    def path(self) -> bytes:
        """The path of the entry in the dataset."""

    @property
    def mode(self) -> int: ...

    @property
    def mtime_ns(self) -> int: ...

    @property
    def file_bytes(self) -> int:
        """Size of a file; 0 for folders and links."""

    @property
    def is_folder(self) -> bool: ...

    @property
    def is_streamed(self) -> bool:
        """Whether its content can only be read until the next entry is taken: by `load`, or by `contents`."""

    def is_same(self, mode: int, size: int, mtime_ns: int, target: bytes) -> bool:
        """Whether a stored entry has this type, size, time and mode, and a link this target."""

    def load(self) -> None:
        """Read a small file into memory. Called only if `is_streamed`, before the next entry is taken."""

    def pack(self, builder: ChunkBuilder) -> None:
        """Add a small file, a folder or a link."""

    def contents(self, ranges: Iterable[tuple[int, int]]) -> Generator[bytes]:
        """The bytes of some ranges of a file, as (place, length), all of one version of it. Of a streamed one, all
        bytes are asked for, in their order.
        """


class SourceEntry(NamedTuple):
    """An entry of the local file system: its path here, its path in the dataset, and its `lstat`. The rest follows from
    that.

    A named tuple, because it is made in half the time of a frozen data class, and read faster.
    """

    source: bytes
    path: bytes
    status: os.stat_result
    mode: int
    file_bytes: int
    is_folder: bool
    is_streamed: bool = False

    @property
    def mtime_ns(self) -> int:
        return self.status.st_mtime_ns

    def load(self) -> None:
        """Nothing: readers open the file."""

    def is_same(self, mode: int, size: int, mtime_ns: int, target: bytes) -> bool:
        status = self.status
        if (mode, mtime_ns) != (status.st_mode, status.st_mtime_ns):
            return False
        if stat.S_ISLNK(mode):
            return target == os.readlink(self.source)
        return stat.S_ISDIR(mode) or size == status.st_size

    def pack(self, builder: ChunkBuilder) -> None:
        kind = self.mode & _KIND
        if kind == stat.S_IFREG:
            content, status = read_source(self, builder.space)
            builder.add_file(self.path, content, status.st_mode, status.st_mtime_ns)
        elif kind == stat.S_IFDIR:
            builder.add_directory(self.path, self.mode, self.mtime_ns)
        elif kind == stat.S_IFLNK:
            builder.add_symlink(self.path, os.readlink(self.source), self.mode, self.mtime_ns)
        else:
            raise InvalidInput("neither file nor folder nor link")

    def contents(self, ranges: Iterable[tuple[int, int]]) -> Generator[bytes]:
        size, mtime_ns = self.status.st_size, self.mtime_ns
        descriptor = os.open(self.source, _OPEN_FLAGS)
        try:
            ctime_ns = os.fstat(descriptor).st_ctime_ns  # programs can set the other time
            for place, length in ranges:
                content = os.pread(descriptor, length, place)
                after = os.fstat(descriptor)
                now = after.st_size, after.st_mtime_ns, after.st_ctime_ns
                if len(content) != length or now != (size, mtime_ns, ctime_ns):
                    raise SourceChanged("changed while it was read")
                yield content
        finally:
            os.close(descriptor)


def _entry_of(source: bytes, path: bytes, status: os.stat_result) -> SourceEntry:
    mode = status.st_mode
    kind = mode & _KIND
    size = status.st_size if kind == stat.S_IFREG else 0
    return SourceEntry(source, path, status, mode, size, kind == stat.S_IFDIR)


def folder_entries(
    folder: bytes, path: bytes, names: Iterable[bytes], failed: Failed
) -> Iterator[SourceEntry]:
    """The entries with these names of a folder, whose path in the dataset is `path`. Those that cannot be looked up are
    passed to `failed`.
    """
    head, prefix = os.path.join(folder, b""), path + b"/" if path else b""
    for name in names:
        source = head + name
        try:
            status = os.lstat(source)
        except OSError as error:
            failed(source, error.strerror or str(error))
            continue
        yield _entry_of(source, prefix + name, status)


def folder_names(folder: bytes, failed: Failed) -> list[bytes]:
    """The names in a folder; none, and a failure, if it cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError as error:
        failed(folder, error.strerror or str(error))
        return []


def source_entry(source: bytes, path: bytes, failed: Failed) -> Iterator[SourceEntry]:
    """The entry of `source` itself, or a failure."""
    try:
        yield _entry_of(source, path, os.lstat(source))
    except OSError as error:
        failed(source, error.strerror or str(error))


def walk_source(
    source: bytes, path: bytes, failed: Failed, is_pruned: Callable[[SourceEntry], bool] = lambda _: False
) -> Iterator[SourceEntry]:
    """`source` and everything below it, each folder before its content, with paths at and below `path` in the dataset.

    Symbolic links are not followed; folders that `is_pruned` are not listed. Entries that cannot be listed are passed
    to `failed`, and the walk continues.
    """
    entries, pending = source_entry(source, path, failed), list[SourceEntry]()
    while True:
        below = []
        for entry in entries:
            yield entry
            if entry.is_folder and not is_pruned(entry):
                below.append(entry)
        pending += reversed(below)
        if not pending:
            return
        folder = pending.pop()
        names = folder_names(folder.source, failed)
        entries = folder_entries(folder.source, folder.path, names, failed)


def is_stored(entry: UploadEntry, snapshot: Snapshot) -> bool:
    """Whether the dataset has this entry already; see `UploadEntry.is_same`."""
    node = snapshot.find(entry.path)
    if node < 0:
        return False
    _, mode, size, mtime_ns = stored = snapshot.stat(node)
    return entry.is_same(mode, size, mtime_ns, snapshot.target(node) if stored.is_link else b"")


class TreeUpload:
    """One upload, by `run`. `report` has its progress, for any thread; `first`: source and path of the first file that
    was not stored. `steps` rises with each entry, and each part of a large file, that is read.

    An upload `at_once` makes its entries visible at one instant, unless they are more than a chunk holds: the end of
    each file, all small files, folders and deletions are in the last chunk, and a file counts once it is whole. It
    continues no file of an interrupted upload.
    """

    def __init__(
        self,
        client: ServerClient,
        dataset: DatasetRecord,
        stored: Snapshot | Callable[[UploadEntry], bool] | None,
        jobs: int = DEFAULT_JOBS,
        chunk_bytes: int = CHUNK_TARGET_BYTES,
        progressed: Callable[[], object] = lambda: None,
        compression: Compression | None = None,
        equals: EqualExtents | None = None,
        at_once: bool = False,
    ) -> None:
        """`stored`: the content of the dataset, or whether it has an entry; None uploads everything. `jobs`: threads
        that read the source; one, if it is `at_once`. `progressed` is called after each stored chunk, in the thread
        that sent it. `equals`: finds bytes that are stored already; then one thread reads.
        """
        self.report = TransferReport(generation=dataset.generation)
        self.first: tuple[bytes, bytes] | None = None
        self.steps = 0
        self._client = client
        self._dataset = dataset
        self._is_stored = partial(is_stored, snapshot=stored) if isinstance(stored, Snapshot) else stored
        self._jobs = 1 if at_once or equals is not None else jobs
        self._chunk_bytes = chunk_bytes
        self._progressed = progressed
        self._compression = compression
        self._equals = equals
        self._put_off: dict[bytes, UploadEntry] = {}  # by path: what shares bytes
        self._last = ChunkBuilder(CHUNK_PAYLOAD_BYTES_MAX - CHUNK_TARGET_BYTES) if at_once else None
        self._end_bytes_max = 0
        self._walk_lock = (
            Lock()
        )  # guards the walk, what is found and skipped, and the content of streamed entries
        self._lock = Lock()  # guards the rest of the report; never held while waiting
        self._error: BaseException | None = None
        self._sender: ChunkSender

    def run(
        self, entries: Callable[[Failed], Iterator[UploadEntry]], deleted: Iterable[bytes] = ()
    ) -> TransferReport:
        """Upload the entries that `entries` yields (its argument records failures); returns when all are stored. An
        upload `at_once` deletes the paths `deleted`: none is gone before all entries are stored.

        Raises errors that end the whole upload (Unavailable, StorageFull, AccessDenied). Chunks stored by then stay,
        and the next run continues. After an interrupt no partial chunk remains.
        """
        self._sender = ChunkSender(self._client, self._dataset, self._count_stored, self._compression)
        self._end_bytes_max = SEGMENT_BYTES if self._sender.is_encrypted else END_BYTES_MAX
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
            if self._last is not None:
                self._sender.wait_stored()
                for path in deleted:
                    self._last.add_delete(path)
                    if self._last.is_full:
                        self._sender.submit(self._last.seal())
                        self._sender.wait_stored()  # entries that are in it come before other deletions
                self._sender.submit(self._last.seal())
            self.report.generation = self._sender.wait_stored()
        except BaseException as error:
            self._error = self._error or error
            self._sender.abandon()
            raise
        self._sender.close()
        return self.report

    @property
    def is_sending(self) -> bool:
        """Once it runs: whether chunks are on their way. The client bounds each wait for a server."""
        return self._sender.is_sending

    def fail(self, source: bytes, reason: str, is_damaged: bool = False) -> None:
        """Record that one entry cannot be uploaded."""
        with self._lock:
            self.report.fail_source(source, reason, is_damaged)

    def retract(self, entry: UploadEntry) -> None:
        """Take back what an earlier upload has counted for the same entry. For the thread that walks."""
        report, size = self.report, entry.file_bytes
        is_skipped = self._is_stored is not None and self._is_stored(entry)
        with self._lock:
            report.found_files -= 1
            report.found_bytes -= size
            if is_skipped:
                report.skipped_files -= 1
                report.skipped_bytes -= size
            else:
                report.done_files -= 1
                report.done_bytes -= size

    def _fail_walking(self, source: bytes, reason: str, is_damaged: bool = False) -> None:
        self.report.found_files += 1
        self.fail(source, reason, is_damaged)

    def _fail_entry(self, entry: UploadEntry, error: Exception) -> None:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        self.fail(entry.source, reason, isinstance(error, Damaged))

    def _count_stored(self, chunk: SealedChunk, generation: int) -> None:
        with self._lock:
            self.report.done_files += chunk.whole_entries
            self.report.done_bytes += (extents_bytes := chunk.extents_bytes)
            self.report.shared_bytes += extents_bytes - len(chunk.payload)
            self.report.sent_bytes += len(chunk.stored or chunk.payload)
        self._progressed()

    def _take_batch(self, walk: Iterator[UploadEntry]) -> list[UploadEntry]:
        """The next entries of the walk that are not stored; empty at its end. A large streamed one is the last."""
        batch: list[UploadEntry] = []
        report, is_stored, loaded_bytes = self.report, self._is_stored, 0
        for entry in walk:
            size, is_folder = entry.file_bytes, entry.is_folder
            report.find(size, is_folder)
            try:
                if is_stored is not None and is_stored(entry):
                    report.skip(size, is_folder)
                    continue
                if self.first is None and not is_folder:
                    self.first = entry.source, entry.path
                if entry.is_streamed:
                    if size <= self._chunk_bytes:
                        entry.load()
                    loaded_bytes += size
            except ENTRY_ERRORS as error:
                self._fail_entry(entry, error)
                continue
            batch.append(entry)
            if len(batch) == BATCH_ENTRIES or loaded_bytes >= self._chunk_bytes:
                return batch
        self.report.is_all_found = True
        return batch

    def _read(self, walk: Iterator[UploadEntry]) -> None:
        """The loop of one reader: takes batches, packs entries that are not stored, submits full chunks."""
        builder = ChunkBuilder(self._chunk_bytes, is_sharing=self._equals is not None)
        try:
            while self._error is None:
                with self._walk_lock:
                    batch = self._take_batch(walk)
                    is_end, last = not batch, batch[-1] if batch else None
                    if last is not None and last.is_streamed and last.file_bytes > self._chunk_bytes:
                        while batch:  # under the lock: its content ends when the walk continues
                            self._pack(builder, batch.pop(0))
                for entry in batch:
                    self._pack(builder, entry)
                if self._equals is not None and (self._equals.is_full or is_end):
                    self._refer(builder, self._equals)
                if is_end:
                    self._sender.submit(builder.seal())
                    return
        except BaseException as error:  # `run` raises it
            self._error = self._error or error

    def _submit(self, builder: ChunkBuilder) -> None:
        """Send the chunk if it is full."""
        if builder.is_full:
            self._sender.submit(builder.seal())

    def _refer(self, builder: ChunkBuilder, equals: EqualExtents) -> None:
        """Store references to bytes that are stored, for extents that were put off; and again what cannot refer."""
        if not equals.waiting:
            return
        self._sender.submit(builder.seal())
        self._sender.wait_stored()
        chunks, left = equals.references()
        for chunk in chunks:
            self._sender.submit(chunk)
        self._sender.wait_stored()
        for chunk in self._sender.refused:
            left |= {path for path, *_ in chunk.entries}
        self._sender.refused.clear()
        builder.put_off = None
        entries, self._put_off = self._put_off, {}
        for entry in map(entries.__getitem__, sorted(left)):
            if entry.is_streamed and entry.file_bytes > self._chunk_bytes:
                self._fail_entry(entry, SourceChanged("the file with the same bytes is gone; run it again"))
            else:
                self._add(builder, entry)

    def _pack(self, builder: ChunkBuilder, entry: UploadEntry) -> None:
        """Add an entry, or put it off."""
        if self._equals is not None:
            if entry.path in self._equals.waiting:  # of a path with several sources, the last one counts
                self._refer(builder, self._equals)
            builder.put_off = partial(self._equals.put_off, entry.is_streamed)
        is_added = self._add(builder, entry)
        if self._equals is not None and entry.path in self._equals.waiting:
            if is_added:
                self._put_off[entry.path] = entry
            else:
                del self._equals.waiting[entry.path]

    def _add(self, builder: ChunkBuilder, entry: UploadEntry) -> bool:
        """Whether it could be read; else it has failed."""
        whole = builder if self._last is None else self._last
        try:
            self._sender.check_path(entry.path)
            if self._is_split(entry.file_bytes):
                self._add_extents(builder, entry)
            else:
                self.steps += 1
                entry.pack(whole)
        except ENTRY_ERRORS as error:
            self._fail_entry(entry, error)
            return False
        self._submit(whole)
        return True

    def _is_split(self, size: int) -> bool:
        """Whether a file of this size is stored in several extents."""
        if self._last is None or size > self._chunk_bytes:
            return size > self._chunk_bytes
        return size > self._end_bytes_max and self._last.payload_bytes + size > CHUNK_TARGET_BYTES

    def _add_extents(self, builder: ChunkBuilder, entry: UploadEntry) -> None:
        """Add the extents of a file; after an interrupted upload, only missing ones. Raises ENTRY_ERRORS."""
        size, mtime_ns, step = entry.file_bytes, entry.mtime_ns, self._chunk_bytes
        end = size if self._last is None else (size - 1) // self._end_bytes_max * self._end_bytes_max
        grid = {(place, min(step, end - place)) for place in range(0, end, step)}
        grid |= {(end, size - end)} if end < size else set()
        pending = PendingFile()
        if self._last is None:
            pending = self._client.pending_file(self._dataset.name, entry.path)
        is_like = pending.version and (pending.size, pending.mtime_ns) == (size, mtime_ns)
        stored = pending.extents if is_like and pending.extents.keys() <= grid else {}
        version = pending.version if stored else self._sender.reserve_version()
        ranges, passed, lacks_begin = deque(sorted(grid)), list[tuple[int, int]](), False
        with closing(entry.contents(_taken(ranges))) as contents:
            while ranges:
                place, length = extent = ranges[0]
                content = next(contents)
                self.steps += 1
                if stored and stored.get(extent) == extent_digest_of(content):
                    passed.append(extent)
                    continue
                if extent in stored:  # of another file with this size and time: this is sent as a new version
                    version, stored = self._sender.reserve_version(), {}
                    lacks_begin = entry.is_streamed and bool(passed)
                    ranges.extend(() if entry.is_streamed else passed)
                passed.append(extent)
                chunk = builder if self._last is None or place + length < size else self._last
                if not chunk.has_room(content):
                    self._sender.submit(chunk.seal())
                chunk.add_file(entry.path, content, entry.mode, mtime_ns, size, place, version)
                if chunk is self._last:
                    self._submit(chunk)
        if lacks_begin:
            raise SourceChanged("other bytes of it were stored before; run it again")


def _taken(ranges: deque[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Each range when it is asked for: more may be added meanwhile."""
    while ranges:
        yield ranges.popleft()


END_BYTES_MAX = 1 * KIB
"""Of the ends of files that an upload `at_once` stores last: 65,536 of them fill a chunk."""

ENTRY_ERRORS = (OSError, InvalidInput, Damaged, SourceChanged)
"""Errors of one entry; any other one ends the upload."""

# O_NONBLOCK: opening never waits for the writer of a pipe.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def read_source(entry: SourceEntry, space: Callable[[int], memoryview]) -> tuple[memoryview, os.stat_result]:
    """All bytes of a small file, in memory that `space` gives, and the matching status. Raises OSError,
    SourceChanged.
    """
    status = entry.status
    for _ in range(READ_TRIES_MAX):
        size = status.st_size
        content = space(size + 1)  # one byte more than expected
        descriptor = os.open(entry.source, _OPEN_FLAGS)
        try:
            length = os.readv(descriptor, (content,))
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if length == after.st_size == size and after.st_mtime_ns == status.st_mtime_ns:
            return content[:length], after
        if after.st_size > CHUNK_TARGET_BYTES:
            break
        status = after
    raise SourceChanged("changed while it was read")
