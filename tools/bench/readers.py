"""Processes that read as training programs do, let go together, each with its part. This module starts processes."""

import multiprocessing
import os
import struct
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.figures import Run, RunFailed
from bench.stopwatch import family_processor_s, own_processor_s

PREPARE_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 300.0

Work = Callable[[], int]
"""Reads files, and returns how many."""

Reader = Callable[[], Work]
"""Called in a process of its own: gets everything ready, and returns the work that is measured."""

_forks = multiprocessing.get_context("fork")


def plain_reader(folder: Path, paths: Sequence[str], file_bytes: int) -> Work:
    """Opens, reads and closes each file with the plain system calls."""
    return partial(_read_plainly, [os.fsencode(f"{folder}/{path}") for path in paths], file_bytes)


def python_reader(folder: Path, paths: Sequence[str], file_bytes: int) -> Work:
    """As most programs in Python do it. Before Python 3.14, `open` asks of every file whether it is a terminal."""
    return partial(_read_with_open, [f"{folder}/{path}" for path in paths], file_bytes)


def planned_reader(folder: Path, plan: str, file_bytes: int) -> Work:
    """Takes a plan from a mount and reads what it lists, in its order; reading the list is part of the work."""

    def read() -> int:
        prefix = os.fsencode(folder) + b"/"
        return _read_plainly([prefix + path for path in read_plan(folder, plan)], file_bytes)

    return read


def read_plan(folder: Path, plan: str) -> list[bytes]:
    """The paths of a plan; who reads them declares that the files will be read in this order."""
    return (folder / ".dieselfs" / "shuffle" / plan).read_bytes().splitlines()


def _read_plainly(paths: Sequence[bytes], file_bytes: int) -> int:
    open_file, read, close, read_only = os.open, os.read, os.close, os.O_RDONLY
    for path in paths:
        descriptor = open_file(path, read_only)
        content = read(descriptor, file_bytes)
        close(descriptor)
        if len(content) != file_bytes:
            raise RunFailed(f"{os.fsdecode(path)}: {len(content)} of {file_bytes} bytes")
    return len(paths)


def _read_with_open(paths: Sequence[str], file_bytes: int) -> int:
    for path in paths:
        with open(path, "rb") as file:
            content = file.read()
        if len(content) != file_bytes:
            raise RunFailed(f"{path}: {len(content)} of {file_bytes} bytes")
    return len(paths)


def read_together(readers: Sequence[Reader], files: int, others: Mapping[str, int] | None = None) -> Run:
    """Run each reader in a process of its own; the clock runs from the first that starts to the last that ends.

    `others`: processes that take part, by a name; what they and their descendants spend on processors is counted.
    Raises RunFailed if a reader could not do its work, or if all together did not read `files`; no reader is left.
    """
    watched = others or {}
    with ExitStack() as stack:
        started = [stack.enter_context(closing(_ReaderProcess(reader))) for reader in readers]
        for process in started:
            process.receive(PREPARE_TIMEOUT_S)
        before_s = {name: family_processor_s(process) for name, process in watched.items()}
        for process in started:
            process.let_go()
        starts_s, ends_s, processor_s, counts = zip(
            *(struct.unpack(_REPORT, process.receive(READ_TIMEOUT_S)) for process in started), strict=True
        )
        parts = {"readers": sum(processor_s)}
        for name, process_id in watched.items():
            parts[name] = family_processor_s(process_id) - before_s[name]
    if sum(counts) != files:
        raise RunFailed(f"{sum(counts):,} files were read, {files:,} expected")
    return Run(max(ends_s) - min(starts_s), parts)


class _ReaderProcess:
    """A reader in a process of its own. It says when it is ready, waits to be let go, and reports."""

    def __init__(self, reader: Reader) -> None:
        self._pipe, theirs = _forks.Pipe()
        self._process = _forks.Process(target=_serve, args=(reader, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def let_go(self) -> None:
        self._pipe.send_bytes(_GO)

    def receive(self, timeout_s: float) -> bytes:
        """What it says next, without the first byte. Raises RunFailed if it failed, or took too long."""
        if not self._pipe.poll(timeout_s):
            raise RunFailed(f"a reader was not done in {timeout_s:g} s")
        try:
            said = self._pipe.recv_bytes()
        except EOFError:
            raise RunFailed("a reader ended in the middle of its work") from None
        if said[:1] == _FAILED:
            raise RunFailed(said[1:].decode("utf-8", "replace"))
        return said[1:]

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()


_GO, _DONE, _FAILED = b"g", b"d", b"f"
_REPORT = "3dq"
"""When a reader began and ended, on the machine's clock; its processor seconds in between; how many files it read."""


def _serve(reader: Reader, pipe: Connection) -> None:
    try:
        work = reader()
        pipe.send_bytes(_DONE)
        pipe.recv_bytes()
        before_s, start_s = own_processor_s(), time.perf_counter()
        files = work()
        end_s = time.perf_counter()
        pipe.send_bytes(_DONE + struct.pack(_REPORT, start_s, end_s, own_processor_s() - before_s, files))
    except (RunFailed, OSError) as error:
        pipe.send_bytes(_FAILED + str(error).encode("utf-8", "replace"))
    except Exception:
        pipe.send_bytes(_FAILED + traceback.format_exc().encode("utf-8", "replace"))
