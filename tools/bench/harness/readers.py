"""Processes that read like training programs, started together. This module starts processes."""

import mmap
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Sequence, Sized
from contextlib import ExitStack, closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.figures import Run, RunFailed
from bench.harness.stopwatch import Processes, own_processor_s, processor_s, spent_since

if TYPE_CHECKING:
    import lmdb

PREPARE_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 300.0

Work = Callable[[], int]
"""Reads files, and returns their number."""

Reader = Callable[[], Work]
"""Called in its own process: prepares the work that is measured, and returns it."""

_forks = multiprocessing.get_context("fork")


def shares_of(paths: Sequence[str], readers: int) -> list[Sequence[str]]:
    return [paths[number::readers] for number in range(readers)]


def plain_reader(folder: Path, paths: Sequence[str], file_bytes: int) -> Work:
    """Opens, reads and closes each file with the plain system calls."""
    return partial(_read_plainly, [os.fsencode(f"{folder}/{path}") for path in paths], file_bytes)


def python_reader(folder: Path, paths: Sequence[str], file_bytes: int) -> Work:
    """Reads with Python's `open`, which before Python 3.14 checks whether each file is a terminal."""

    def read() -> int:
        for path in paths:
            with open(f"{folder}/{path}", "rb") as file:
                _check(path, len(file.read()), file_bytes)
        return len(paths)

    return read


def planned_reader(folder: Path, plan: str, file_bytes: int) -> Work:
    """Reads the list of a plan from a mount, then its files in that order; both are measured."""

    def read() -> int:
        prefix = os.fsencode(folder) + b"/"
        paths = (folder / ".dieselfs" / "shuffle" / plan).read_bytes().splitlines()
        return _read_plainly([prefix + path for path in paths], file_bytes)

    return read


def with_free_pages(length_bytes: int, work: Work) -> Work:
    """Work that finds free pages for as many bytes. Free pages of a virtual machine return to its host within half a
    second, and then cost twenty times as much: a physical machine keeps its memory.
    """
    spare = mmap.mmap(-1, length_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    spare.madvise(mmap.MADV_HUGEPAGE)
    spare[:: mmap.PAGESIZE] = bytes(-(-length_bytes // mmap.PAGESIZE))

    def work_there() -> int:
        spare.close()
        return work()

    return work_there


def get_batches(get_many: Callable[[Sequence[Any]], Sized], batch: int, paths: Sequence[Any]) -> int:
    return sum(len(get_many(paths[first : first + batch])) for first in range(0, len(paths), batch))


def lmdb_reader(file: Path, paths: Sequence[str]) -> Work:
    """Reads from the page cache: LMDB maps its file."""
    keys = [os.fsencode(path) for path in paths]
    get = open_lmdb(file).get
    return lambda: sum(get(key) is not None for key in keys)


def open_lmdb(file: Path) -> "lmdb.Transaction":
    import lmdb

    return lmdb.open(str(file), subdir=False, readonly=True, lock=False).begin()


def _read_plainly(paths: Sequence[bytes], file_bytes: int) -> int:
    open_file, read, close, read_only = os.open, os.read, os.close, os.O_RDONLY
    for path in paths:
        descriptor = open_file(path, read_only)
        content = read(descriptor, file_bytes)
        close(descriptor)
        if len(content) != file_bytes:
            _check(os.fsdecode(path), len(content), file_bytes)
    return len(paths)


def _check(path: str, length_bytes: int, file_bytes: int) -> None:
    if length_bytes != file_bytes:
        raise RunFailed(f"{path}: {length_bytes} of {file_bytes} bytes")


def read_together(
    readers: Sequence[Reader], files: int, others: Processes | None = None, free_bytes: int = 0
) -> Run:
    """Run each reader in its own process; the duration is from the first start to the last end.

    `others`: processes whose processor time counts. `free_bytes`: free memory at the start (`with_free_pages`). Raises
    RunFailed if a reader fails, or if all together do not read `files`; no reader process remains.
    """
    with ExitStack() as stack:
        own_bytes = free_bytes // len(readers)
        serves = [partial(_read, each, own_bytes) for each in readers]
        started = [stack.enter_context(closing(ForkedProcess(serve))) for serve in serves]
        for process in started:
            process.receive(PREPARE_TIMEOUT_S)
        before_s = processor_s(others or {})
        for process in started:
            process.pipe.send(None)
        reports = [process.receive(READ_TIMEOUT_S) for process in started]
        starts_s, ends_s, own_s, counts = zip(*reports, strict=True)
        parts = {"readers": sum(own_s), **spent_since(before_s, others or {})}
    if sum(counts) != files:
        raise RunFailed(f"{sum(counts):,} files were read, {files:,} expected")
    return Run(max(ends_s) - min(starts_s), parts)


def _read(reader: Reader, free_bytes: int, pipe: Connection) -> None:
    """Report the start and the end by the machine's clock, the processor seconds between them, the number of files."""
    work = with_free_pages(free_bytes, reader()) if free_bytes else reader()
    pipe.send(None)  # ready
    pipe.recv()
    before_s, start_s = own_processor_s(), time.perf_counter()
    files = work()
    end_s = time.perf_counter()
    pipe.send((start_s, end_s, own_processor_s() - before_s, files))


class ForkedProcess:
    """A function in its own process, which sends messages through a pipe."""

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self.pipe, theirs = _forks.Pipe()
        # Not `daemon`: the process may start others. `close` ends it.
        self._process = _forks.Process(target=_serve, args=(serve, theirs))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def receive(self, timeout_s: float) -> Any:
        """Its next message. Raises RunFailed if it failed or timed out."""
        if not self.pipe.poll(timeout_s):
            raise RunFailed(f"a process did not answer within {timeout_s:g} s")
        try:
            message = self.pipe.recv()
        except EOFError:
            raise RunFailed("a process ended in the middle of its work") from None
        if isinstance(message, RunFailed):
            raise message
        return message

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self.pipe.close()


def _serve(serve: Callable[[Connection], None], pipe: Connection) -> None:
    try:
        serve(pipe)
    except (RunFailed, OSError) as error:
        pipe.send(RunFailed(str(error)))
    except Exception:  # reported by the process that started this one
        pipe.send(RunFailed(traceback.format_exc()))
