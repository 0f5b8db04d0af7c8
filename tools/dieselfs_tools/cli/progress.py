"""The progress of a command: one changing line on a terminal; elsewhere, with `--progress`, a line every 10 s,
which `--json` makes an object.

Also a stream as a temporary file, for as long as it is needed. This module writes to stderr and to the folder of
temporary files, and starts a thread.
"""

import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import BinaryIO, TextIO

from dieselfs.errors import DieselfsError
from dieselfs.transfer.report import TransferReport
from dieselfs.units import count, format_duration, format_size
from dieselfs_tools.cli.output import Output

TERMINAL_INTERVAL_S = 0.2
FIRST_LINE_S = 0.8
LINE_INTERVAL_S = 10.0

DEFAULT_COLUMNS = 80
"""The width of a terminal without a size, as in `script` and `docker exec`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of some work. `skipped_bytes` are done without work. `is_total_known` false: the totals still grow.
    `noun`: what `files` counts; empty if only bytes count. `failed_files`: None where nothing fails alone. `has_bytes`
    false: only what `noun` says is counted.
    """

    done_files: int
    done_bytes: int
    total_files: int
    total_bytes: int
    failed_files: int | None = 0
    is_total_known: bool = True
    noun: str = "file"
    skipped_bytes: int = 0
    has_bytes: bool = True

    @classmethod
    def of(cls, report: TransferReport) -> "Reading":
        return cls(
            report.done_files + report.skipped_files,
            report.done_bytes + report.skipped_bytes,
            report.found_files,
            report.found_bytes,
            report.failed_files,
            report.is_all_found,
            skipped_bytes=report.skipped_bytes,
        )

    @property
    def share(self) -> float | None:
        """What is done, from 0 to 1; None if there is nothing to do."""
        done, total = (
            (self.done_bytes, self.total_bytes) if self.has_bytes else (self.done_files, self.total_files)
        )
        return min(done / total, 1) if total else None

    @property
    def worked_bytes(self) -> int:
        return self.done_bytes - self.skipped_bytes


def progress_line(
    verb: str, reading: Reading, worked_bytes: int, elapsed_s: float, columns: int | None = None
) -> str:
    """One line, as long as `columns` allow. Rate and time left come from `worked_bytes`, done in this run."""
    rate = worked_bytes / elapsed_s if elapsed_s > 0 else 0.0
    is_known, parts = reading.is_total_known, []
    if reading.noun:
        parts.append(f"{reading.done_files:,} of {count(reading.total_files, reading.noun)}")
    if reading.has_bytes:
        total = f" of {format_size(reading.total_bytes)}" if is_known or reading.noun else ""
        growing = " found so far" if reading.noun and not is_known else ""
        parts += [f"{format_size(reading.done_bytes)}{total}{growing}", f"{format_size(rate)}/s"]
    if is_known and (left_s := _left_s(reading, rate, elapsed_s)) is not None:
        parts.append(f"{format_duration(left_s)} left")
    if reading.failed_files is not None:
        parts.append(f"{reading.failed_files} failed")
    if is_known and (share := reading.share) is not None:
        parts[0] = f"{share:.0%}, {parts[0]}"
    while columns is not None and len(parts) > 1 and len(f"{verb}: {', '.join(parts)}") > columns:
        parts.pop()
    return f"{verb}: {', '.join(parts)}"[:columns]


def progress_json(verb: str, reading: Reading, worked_bytes: int, elapsed_s: float) -> str:
    """The same as a JSON object."""
    rate = worked_bytes / elapsed_s if elapsed_s > 0 else 0.0
    left_s = _left_s(reading, rate, elapsed_s) if reading.is_total_known else None
    fields: dict[str, object] = {"type": "progress", "work": verb, "seconds": round(elapsed_s, 1)}
    if reading.noun:
        fields |= {"unit": reading.noun, "done": reading.done_files, "total": reading.total_files}
    if reading.has_bytes:
        fields |= {"done_bytes": reading.done_bytes, "total_bytes": reading.total_bytes, "rate": round(rate)}
    fields |= {
        "is_total_known": reading.is_total_known,
        "left_s": None if left_s is None else round(left_s, 1),
    }
    return json.dumps(fields)


def _left_s(reading: Reading, rate: float, elapsed_s: float) -> float | None:
    """The time left: by bytes, or without them by what `files` counts."""
    if reading.has_bytes:
        return max(reading.total_bytes - reading.done_bytes, 0) / rate if rate > 0 else None
    if not reading.done_files:
        return None
    return elapsed_s / reading.done_files * max(reading.total_files - reading.done_files, 0)


@contextmanager
def shown(
    output: Output, verb: str, read: Callable[[], Reading], stream: TextIO | None = None
) -> Iterator[None]:
    """Show the progress of the `with` block; another thread calls `read`."""
    stream = stream or sys.stderr
    if output.is_quiet or not (output.is_progress or stream.isatty()):
        yield
        return
    over = Event()
    thread = Thread(
        target=_show, args=(verb, read, stream, over, output.is_json), name="dieselfs-progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(verb: str, read: Callable[[], Reading], stream: TextIO, over: Event, is_json: bool) -> None:
    is_terminal = stream.isatty() and not is_json
    started_s, first = time.monotonic(), read()
    wait_s = TERMINAL_INTERVAL_S if is_terminal else FIRST_LINE_S
    while not over.wait(wait_s):
        reading, elapsed_s = read(), time.monotonic() - started_s
        worked_bytes = reading.worked_bytes - first.worked_bytes
        if is_terminal:
            line = progress_line(verb, reading, worked_bytes, elapsed_s, _columns(stream) - 1)
            print(f"\r{line}\033[K", end="", file=stream, flush=True)
        else:
            written = progress_json if is_json else progress_line
            print(written(verb, reading, worked_bytes, elapsed_s), file=stream, flush=True)
            wait_s = LINE_INTERVAL_S
    if is_terminal:
        print("\r\033[K", end="", file=stream, flush=True)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
    except OSError:
        return DEFAULT_COLUMNS


def outcome(output: Output, report: TransferReport, done: str, already: str, elapsed_s: float) -> str:
    """The outcome of a transfer as text. Prints its failures."""
    output.failures(report.failures, report.failed_files)
    parts = [f"{done} ({output.size(report.done_bytes)})"]
    if report.skipped_files:
        parts.append(f"skipped {report.skipped_files:,} that {already}")
    if report.failed_files:
        parts.append(f"{report.failed_files:,} failed")
    return f"{', '.join(parts)} in {format_duration(elapsed_s)}"


def intended(output: Output, report: TransferReport, verb: str, already: str, deleted: int) -> int:
    """The summary of a dry run, of what its report has found; returns the exit code. Prints its failures."""
    output.failures(report.failures, report.failed_files)
    text = f"would {verb} {count(report.found_files, 'entry')} ({output.size(report.found_bytes)}), "
    text += f"skip {report.skipped_files:,} that {already}"
    fields = {
        "dry_run": True,
        "entries": report.found_files,
        "bytes": report.found_bytes,
        "skipped": report.skipped_files,
        "deleted": deleted,
        "failed": report.failed_files,
    }
    if deleted:
        text += f", delete {count(deleted, 'entry')}"
    return output.summary(text, fields, report.exit_code)


STANDARD_INPUT = "-"
COPY_BYTES = 1 << 20
SPOOLED_MODE = 0o644


@contextmanager
def spooled(stream: BinaryIO, output: Output, name: str = STANDARD_INPUT) -> Iterator[str]:
    """Copy a stream, which is called `name`, into a temporary file: a chunk records the size of a file before its
    bytes, and some formats have their index at the end. Shows the progress; yields the path. The context removes the
    file.

    Raises DieselfsError if there is no space for it.
    """
    with ExitStack() as stack:
        try:
            # In a folder of this user alone: the mode of the file is what the dataset records.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlcmd-"))
            file = stack.enter_context(open(os.path.join(folder, "standard-input"), "xb", buffering=0))
            os.fchmod(file.fileno(), SPOOLED_MODE)
        except OSError as error:
            raise no_room_for(name, error) from None
        spool(stream.read, file, output, name)
        yield file.name


def spool(read: Callable[[int], bytes], file: io.FileIO, output: Output, name: str) -> None:
    """Copy a stream into a temporary file. Shows the progress. Raises DieselfsError if there is no space for it."""
    try:
        with shown(output, f"read {_title(name)}", lambda: _spooled_reading(file.fileno())):
            while block := read(COPY_BYTES):
                rest = memoryview(block)
                while rest:
                    rest = rest[file.write(rest) :]
    except OSError as error:
        raise no_room_for(name, error) from None


def no_room_for(name: str, error: OSError) -> DieselfsError:
    return DieselfsError(
        f"{_title(name)} cannot be stored in {tempfile.gettempdir()}: {error.strerror}; "
        "set TMPDIR to a folder with more space"
    )


def _title(name: str) -> str:
    return "standard input" if name == STANDARD_INPUT else name


def _spooled_reading(descriptor: int) -> Reading:
    size_bytes = os.fstat(descriptor).st_size
    return Reading(0, size_bytes, 0, size_bytes, None, is_total_known=False, noun="")
