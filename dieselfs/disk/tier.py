"""Chunks of one dataset on the disk of this node. This module runs threads, which read and write files.

Readers find a chunk by the name of its file; there is no index in memory. One thread writes what was fetched, behind
the readers. The content of a file is not trusted: who reads it verifies it, and drops it if it is damaged. So files
need no fsync: what a power cut leaves torn is found at the first use.

The tier makes reads faster, and never makes one fail. While the disk fails, hangs or is full, readers do without it,
in all processes that share the tier as forks; that is counted, and logged once. Reads and writes bypass the page cache,
where the file system can do that: what is read here goes into memory that is counted elsewhere, and would be there
twice.
"""

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from dieselfs.disk.chunk_file import (
    Range,
    ReadFile,
    Torn,
    bypass_page_cache,
    ranges_in,
    read_ranges_of,
    write_all,
)
from dieselfs.disk.outage import Outage
from dieselfs.disk.space import (
    FORMAT_FOLDER,
    DatasetHold,
    DiskSpace,
    NewFile,
    check_folder,
    default_size_bytes,
)
from dieselfs.disk.write_behind import DISK_QUEUE_BYTES, UnwrittenPayload, WriteBehind
from dieselfs.errors import DieselfsError
from dieselfs.forks import renew_after_fork
from dieselfs.limits import FETCHES_AT_ONCE_MAX
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry

DISK_READ_TIMEOUT_S = 3.0
"""A reader that has no bytes of the disk after this time asks a server."""
DISK_RETRY_S = 60.0
"""After a failure the disk is not used for this time; after it was found full, nothing is stored for it."""
_CHUNK = re.compile("[0-9a-f]{32}")

_log = logging.getLogger(__name__)


class _Threads(NamedTuple):
    readers: ThreadPoolExecutor
    writer: WriteBehind


class DiskTier:
    """Thread-safe, also after a fork. Threads and files are made at the first use."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        size_bytes: int,
        dataset_id: bytes,
        current: Callable[[], Container[str]],
        metrics: Registry | None = None,
        clock: Callable[[], float] = time.monotonic,
        read_timeout_s: float = DISK_READ_TIMEOUT_S,
        read_file: ReadFile | None = None,
        on_open: Callable[[list[str]], object] = lambda names: None,
        name: str = "",
        queue_bytes: int = DISK_QUEUE_BYTES,
    ) -> None:
        """`path`: the folder of the user; `size_bytes`: the limit, 0 for half of the file system. `current`: the chunks
        of the snapshot, their IDs in hexadecimal; wanted only when the disk is full.
        `on_open` gets the names of the chunks on the disk, in a thread, when that is first used. `name`: of the
        dataset, for those who list the tier. `queue_bytes`: the limit of what waits to be written; a chunk always may.
        """
        self._path = Path(path).expanduser()
        self._size_bytes = size_bytes
        self._dataset = dataset_id.hex()
        self._name = name
        self._queue_bytes = queue_bytes
        self._current = current
        self._clock = clock
        self._read_timeout_s = read_timeout_s
        self._read_file = read_file or read_ranges_of
        self._on_open = on_open
        self.metrics = metrics = metrics or Registry()
        self._hits = metrics.counter("disk.hits", "Requests that the disk of the node answered.")
        self._hit_bytes = metrics.declare(catalogue.DISK_HIT_BYTES)
        self._misses = metrics.counter("disk.misses", "Requests for chunks that were not on the disk.")
        self._written = metrics.counter("disk.written_chunks", "Chunks written to the disk.")
        self._written_bytes = metrics.counter("disk.written_bytes", "Bytes of these chunks, as on the disk.")
        self._damaged = metrics.counter("disk.damaged_chunks", "Damaged chunks that were dropped.")
        self._skipped = metrics.counter("disk.skipped_chunks", "Chunks not stored: no room, or a slow disk.")
        self._failures = metrics.declare(catalogue.DISK_FAILURES)
        self._evicted = metrics.counter("disk.evicted_chunks", "Chunks that this process evicted.")
        self._used = metrics.gauge("disk.used_bytes", "Bytes in the tier, of all datasets.")
        self._limit = metrics.gauge("disk.size_bytes", "Limit of the tier.")
        self._hold: DatasetHold | None = None  # both are used by the writer thread
        self._space: DiskSpace | None = None
        self._outage = Outage()
        self._parents_hold: int | None = None
        self._is_checked = self._is_closed = False
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Threads belong to the parent, and so do its locks on files."""
        self._release()
        self._lock = Lock()  # guards all below, and `_is_closed`
        self._threads: _Threads | None = None
        self._hanging: list[Future[memoryview | None]] = []

    @property
    def capacity_bytes(self) -> int:
        """The limit, as far as it is known without the disk; 0 if that fails."""
        try:
            return self._size_bytes or default_size_bytes(self._path)
        except OSError:
            return 0

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, chunk_id: bytes, length_bytes: int) -> memoryview | None:
        """The unverified payload of a chunk, of this length; None without it."""
        return self.read_ranges(chunk_id, length_bytes, [(0, length_bytes)])

    def read_ranges(self, chunk_id: bytes, length_bytes: int, ranges: Sequence[Range]) -> memoryview | None:
        """Unverified ranges of a payload of `length_bytes`, joined; None without the chunk. Waits for
        DISK_READ_TIMEOUT_S at most.
        """
        threads = self._in_use()
        if threads is None or not length_bytes:
            return None
        waiting = threads.writer.waiting(chunk_id)
        if waiting is None and threads.writer.is_removing(chunk_id):
            return None
        file = self._path / FORMAT_FOLDER / self._dataset / chunk_id.hex()
        try:
            if waiting is not None:
                return ranges_in(lambda at, size: waiting[at : at + size], len(waiting), length_bytes, ranges)
            with suppress(RuntimeError):  # it is being closed
                return self._within_time(
                    threads.readers.submit(self._read_checked, file, length_bytes, ranges)
                )
        except Torn:
            self.drop(chunk_id)
        except OSError as error:
            if error.errno == errno.EIO:  # a bad sector: else the next read of it would fail, too
                self.drop(chunk_id)
            self._fail(f"{file}: {error.strerror or error}")
        except DieselfsError as error:
            self._fail(str(error))
        return None

    def _read_checked(self, file: Path, length_bytes: int, ranges: Sequence[Range]) -> memoryview | None:
        """As `read_ranges_of`, in a folder of this user alone. Raises AccessDenied, too."""
        if not self._is_checked:
            check_folder(self._path)
            self._is_checked = True
        return self._read_file(file, length_bytes, ranges)

    def _within_time(self, reading: Future[memoryview | None]) -> memoryview | None:
        """Raises OSError, also if the file system hangs, and Torn."""
        try:
            return reading.result(self._read_timeout_s)
        except TimeoutError:
            if not reading.cancel():
                with self._lock:
                    self._hanging.append(reading)
            raise OSError(f"no bytes within {self._read_timeout_s:g} s") from None

    def count_hit(self, length_bytes: int) -> None:
        """Count a request that was answered with verified bytes of this tier."""
        with self.metrics.lock:
            self._hits.value += 1
            self._hit_bytes.value += length_bytes

    def count_miss(self) -> None:
        """Count a request that a server had to answer."""
        self.metrics.add(self._misses)

    # -- writing -------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether a chunk would be stored, as far as is known."""
        threads = self._in_use()
        return (
            threads is not None
            and self._clock() >= self._outage.full_until_s
            and not threads.writer.is_stalled
        )

    def store(self, chunk_id: bytes, payload: UnwrittenPayload) -> None:
        """Write a verified payload soon, plain or packed. Waits DISK_QUEUE_WAIT_S at most."""
        threads = self._in_use() if payload.length_bytes else None
        if threads is not None and not threads.writer.put(chunk_id, payload):
            self.metrics.add(self._skipped)

    def drop(self, chunk_id: bytes) -> None:
        """Remove a chunk that is damaged; from now on, readers do without it."""
        threads = self._in_use()
        if threads is not None:
            threads.writer.remove(chunk_id)
            self.metrics.add(self._damaged)
            _log.warning("disk tier %s: chunk %s is damaged: dropped", self._path, chunk_id.hex())

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written; whether it is."""
        threads = self._threads
        return threads is None or threads.writer.flush(timeout_s)

    def close(self) -> None:
        """Write what waits, for DISK_CLOSE_TIMEOUT_S at most, and end the threads. May be called again; afterwards
        readers find nothing.
        """
        with self._lock:
            self._is_closed = True
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.readers.shutdown(wait=False)
            threads.writer.close()
        self._outage.close()

    # -- state ---------------------------------------------------------------------------------------------

    def _in_use(self) -> _Threads | None:
        """The threads, started at the first use; None while the disk is not used."""
        with self._lock:
            self._hanging = [each for each in self._hanging if not each.done()]
            if self._is_closed or self._hanging or self._clock() < self._outage.off_until_s:
                return None
            if self._threads is None:
                self._threads = _Threads(
                    ThreadPoolExecutor(FETCHES_AT_ONCE_MAX, "disk-reader"),
                    WriteBehind(
                        self._write, self._remove, self._open, self._release, self._clock, self._queue_bytes
                    ),
                )
            return self._threads

    def _fail(self, what: str) -> None:
        """Do without the disk for DISK_RETRY_S."""
        self._outage.off_until_s = self._clock() + DISK_RETRY_S
        self.metrics.add(self._failures)
        self._report(f"{what}; continuing without the disk, next try in {DISK_RETRY_S:g} s")

    def _report(self, what: str) -> None:
        """Log a trouble once, until something was written."""
        if self._outage.is_first():
            _log.warning("disk tier %s: %s", self._path, what)

    def hold(self) -> int | None:
        """A new descriptor of the lock by which this process holds the dataset. None if the disk is not used, or does
        not answer within the time of a read.
        """
        threads = self._in_use()
        if threads is None:
            return None
        if self._hold is None and not threads.writer.is_stalled:
            threads.writer.flush(self._read_timeout_s)
        hold = self._hold
        with suppress(OSError):  # it has just been closed
            return None if hold is None else os.dup(hold.descriptor)
        return None

    def share(self, hold: int) -> None:
        """In a fork, before the first use: hold the dataset together with the parent, whose `hold` is taken over. Else
        none of them could evict chunks of older generations.
        """
        self._parents_hold = hold

    # -- in the writer thread --------------------------------------------------------------------------------

    def _open(self) -> DiskSpace | None:
        """Hold the dataset, and open the space; None if that fails, which is reported."""
        try:
            if self._space is None:
                folder = check_folder(self._path)
                self._hold = DatasetHold(folder, self._dataset, self._name, self._parents_hold)
                self._let_go()
                self._space = DiskSpace(folder, self._size_bytes)
                self._note(self._space)
                names = os.listdir(self._hold.folder)
                self._on_open([name for name in names if _CHUNK.fullmatch(name)])
            return self._space
        except DieselfsError as error:
            self._fail(str(error))
        except BlockingIOError:
            pass  # another process counts the files
        except OSError as error:
            self._fail(f"{error.filename or 'opening'}: {error.strerror or error}")
        self._release()
        return None

    def _let_go(self) -> None:
        parents, self._parents_hold = self._parents_hold, None
        if parents is not None:
            os.close(parents)

    def _release(self) -> None:
        self._let_go()
        space, hold = self._space, self._hold
        self._space = self._hold = None
        if space is not None:
            space.close()
        if hold is not None:
            hold.close()

    def _note(self, space: DiskSpace) -> None:
        self._used.value, self._limit.value = space.used_bytes, space.size_bytes
        self.metrics.add(self._evicted, space.evicted_chunks)
        space.evicted_chunks = 0

    def _write(self, chunk_id: bytes, payload: UnwrittenPayload) -> None:
        is_used = self._clock() >= max(self._outage.full_until_s, self._outage.off_until_s)
        space, hold = self._open() if is_used else None, self._hold
        if space is None or hold is None:
            self.metrics.add(self._skipped)
            return
        try:
            if (hold.folder / chunk_id.hex()).exists():
                return
            new = space.create(hold, payload.length_bytes, self._current)
            self._note(space)
            if new is None:
                self._outage.full_until_s = self._clock() + DISK_RETRY_S
                self.metrics.add(self._skipped)
                self._report(f"full: {space.used_bytes} of {space.size_bytes} bytes are in use")
                return
            _write_file(space, new, payload, chunk_id.hex())
        except BlockingIOError:
            self.metrics.add(self._skipped)
        except OSError as error:
            self._fail(f"{error.filename or 'writing'}: {error.strerror or error}")
            self._release()  # somebody may have removed the folder
        else:
            self._outage.end(self._clock())
            with self.metrics.lock:
                self._written.value += 1
                self._written_bytes.value += payload.length_bytes

    def _remove(self, chunk_id: bytes) -> None:
        space, hold = self._open(), self._hold
        if space is not None and hold is not None:
            try:
                space.remove(hold.folder / chunk_id.hex())
                self._note(space)
            except OSError as error:
                self._fail(f"{error.filename or 'removing'}: {error.strerror or error}")


def _write_file(space: DiskSpace, new: NewFile, payload: UnwrittenPayload, name: str) -> None:
    """Write a payload, and give the file its name. Raises OSError; then the file is removed."""
    try:
        try:
            bypass_page_cache(new.descriptor)
            write_all(new.descriptor, payload.buffer)
            os.ftruncate(new.descriptor, payload.length_bytes)
        finally:
            os.close(new.descriptor)
        space.publish(new, name)
    except BaseException:
        with suppress(OSError):
            space.abandon(new)
        raise
