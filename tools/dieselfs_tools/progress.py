"""How far it is: a bar on a terminal, elsewhere a line now and then.

This module writes to stderr and starts a thread.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import TextIO

from tqdm import tqdm

from dieselfs_tools.output import Output
from dieselfs_tools.units import count, format_duration, format_size

BAR_INTERVAL_S = 0.2
FIRST_LINE_S = 0.8
LINE_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class Reading:
    """How far something is. `is_total_known` false: the totals still grow. `noun`: what is counted as files."""

    done_files: int
    done_bytes: int
    total_files: int
    total_bytes: int
    failed_files: int = 0
    is_total_known: bool = True
    noun: str = "file"


def progress_line(verb: str, reading: Reading, worked_bytes: int, elapsed_s: float) -> str:
    """One line for a log. `worked_bytes`: done in this run, from which the rate is made."""
    rate = worked_bytes / elapsed_s if elapsed_s > 0 else 0.0
    growing = "" if reading.is_total_known else " found so far"
    parts = [
        f"{verb}: {reading.done_files:,} of {count(reading.total_files, reading.noun)}",
        f"{format_size(reading.done_bytes)} of {format_size(reading.total_bytes)}{growing}",
        f"{format_size(rate)}/s",
    ]
    if reading.is_total_known and rate > 0:
        left_bytes = max(reading.total_bytes - reading.done_bytes, 0)
        parts.append(f"{format_duration(left_bytes / rate)} left")
    parts.append(f"{reading.failed_files} failed")
    return ", ".join(parts)


@contextmanager
def shown(
    output: Output, verb: str, read: Callable[[], Reading], stream: TextIO | None = None
) -> Iterator[None]:
    """Show how far the work in the `with` block is; `read` is called from a thread of its own."""
    if output.is_quiet:
        yield
        return
    stream = stream or sys.stderr
    show = _show_bar if stream.isatty() else _show_lines
    over = Event()
    thread = Thread(target=show, args=(verb, read, stream, over), name="dieselfs-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show_lines(verb: str, read: Callable[[], Reading], stream: TextIO, over: Event) -> None:
    started_s, first = time.monotonic(), read()
    wait_s = FIRST_LINE_S
    while not over.wait(wait_s):
        reading = read()
        worked_bytes = reading.done_bytes - first.done_bytes
        print(
            progress_line(verb, reading, worked_bytes, time.monotonic() - started_s), file=stream, flush=True
        )
        wait_s = LINE_INTERVAL_S


def _show_bar(verb: str, read: Callable[[], Reading], stream: TextIO, over: Event) -> None:
    with tqdm(
        desc=verb, unit="B", unit_scale=True, unit_divisor=1024, file=stream, leave=False, dynamic_ncols=True
    ) as bar:
        while True:
            reading = read()
            growing = "" if reading.is_total_known else "+"
            failed = f", {reading.failed_files} failed" if reading.failed_files else ""
            bar.total = max(reading.total_bytes, reading.done_bytes)
            bar.n = reading.done_bytes
            bar.set_postfix_str(
                f"{reading.done_files:,}/{reading.total_files:,}{growing} {reading.noun}s{failed}",
                refresh=False,
            )
            bar.refresh()
            if over.wait(BAR_INTERVAL_S):
                return
