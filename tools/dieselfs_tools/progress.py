"""The progress of a command: one changing line on a terminal, otherwise a line every 10 s.

This module writes to stderr and starts a thread.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import TextIO

from dieselfs.transfer.report import TransferReport
from dieselfs.units import count, format_duration, format_size
from dieselfs_tools.output import Output

TERMINAL_INTERVAL_S = 0.2
FIRST_LINE_S = 0.8
LINE_INTERVAL_S = 10.0

DEFAULT_COLUMNS = 80
"""Of a terminal without a size, as those of `script` and `docker exec`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of some work. `skipped_bytes` are done without work. `is_total_known` false: the totals still grow.
    `noun`: what `files` counts; empty if only bytes count.
    """

    done_files: int
    done_bytes: int
    total_files: int
    total_bytes: int
    failed_files: int = 0
    is_total_known: bool = True
    noun: str = "file"
    skipped_bytes: int = 0

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
    def worked_bytes(self) -> int:
        return self.done_bytes - self.skipped_bytes


def progress_line(
    verb: str, reading: Reading, worked_bytes: int, elapsed_s: float, columns: int | None = None
) -> str:
    """One line, as long as `columns` allow. Rate and time left come from `worked_bytes`, done in this run."""
    rate = worked_bytes / elapsed_s if elapsed_s > 0 else 0.0
    growing = "" if reading.is_total_known else " found so far"
    if not reading.noun:
        return f"{verb}: {format_size(reading.done_bytes)}, {format_size(rate)}/s"[:columns]
    parts = [
        f"{reading.done_files:,} of {count(reading.total_files, reading.noun)}",
        f"{format_size(reading.done_bytes)} of {format_size(reading.total_bytes)}{growing}",
        f"{format_size(rate)}/s",
    ]
    if reading.is_total_known and rate > 0:
        left_bytes = max(reading.total_bytes - reading.done_bytes, 0)
        parts.append(f"{format_duration(left_bytes / rate)} left")
    parts.append(f"{reading.failed_files} failed")
    if reading.is_total_known and reading.total_bytes:
        parts[0] = f"{min(reading.done_bytes / reading.total_bytes, 1):.0%}, {parts[0]}"
    while columns is not None and len(parts) > 1 and len(f"{verb}: {', '.join(parts)}") > columns:
        parts.pop()
    return f"{verb}: {', '.join(parts)}"[:columns]


@contextmanager
def shown(
    output: Output, verb: str, read: Callable[[], Reading], stream: TextIO | None = None
) -> Iterator[None]:
    """Show the progress of the `with` block; another thread calls `read`."""
    if output.is_quiet:
        yield
        return
    stream = stream or sys.stderr
    over = Event()
    thread = Thread(target=_show, args=(verb, read, stream, over), name="dieselfs-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(verb: str, read: Callable[[], Reading], stream: TextIO, over: Event) -> None:
    is_terminal = stream.isatty()
    started_s, first = time.monotonic(), read()
    wait_s = TERMINAL_INTERVAL_S if is_terminal else FIRST_LINE_S
    while not over.wait(wait_s):
        reading, elapsed_s = read(), time.monotonic() - started_s
        worked_bytes = reading.worked_bytes - first.worked_bytes
        if is_terminal:
            line = progress_line(verb, reading, worked_bytes, elapsed_s, _columns(stream) - 1)
            print(f"\r{line}\033[K", end="", file=stream, flush=True)
        else:
            print(progress_line(verb, reading, worked_bytes, elapsed_s), file=stream, flush=True)
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
