"""Readers that verify every byte of a mount, while something fails. This module starts threads, and reads files."""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dieselfs.errors import Unavailable

READERS_EACH = 2
PATIENCE_S = 40.0
"""Longer than the longest read, which ends within 30 s."""
FAILURES_KEPT = 5
_POLL_S = 0.01


def content_of(name: str, length_bytes: int) -> bytes:
    """The content of the file with a name, by which a reader knows what is right."""
    return random.Random(name).randbytes(length_bytes)


def read_and_drop(path: Path) -> bytes:
    """The content of a file, whose pages are then dropped, so that the next read asks the daemon. Raises OSError."""
    with path.open("rb", 0) as file:
        content = file.read()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return content


@dataclass(slots=True)
class Seen:
    """What readers saw: reads that ended, how many of them failed or gave wrong bytes, and the longest, in seconds."""

    reads: int = 0
    failed: int = 0
    wrong: int = 0
    worst_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Seen") -> None:
        self.reads += other.reads
        self.failed += other.failed
        self.wrong += other.wrong
        self.worst_s = max(self.worst_s, other.worst_s)
        self.failures = (self.failures + other.failures)[:FAILURES_KEPT]


class _Reader:
    """A thread that reads files of one mount in random order. It alone changes `seen`, but for `begin`."""

    def __init__(self, place: Path, contents: Mapping[str, bytes], seed: int, stop: threading.Event) -> None:
        self._place, self._contents, self._stop = place, contents, stop
        self._choice = random.Random(seed)
        self._names = sorted(contents)
        self.seen = Seen()
        self.since_s = time.monotonic()  # the begin of the read in progress
        self.thread = threading.Thread(target=self._run, name=f"reader {place}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            name = self._choice.choice(self._names)
            self.since_s = time.monotonic()
            single = Seen(reads=1)
            try:
                single.wrong = int(read_and_drop(self._place / name) != self._contents[name])
                if single.wrong:
                    single.failures = [f"{name}: wrong bytes"]
            except OSError as error:
                single.failed = 1
                single.failures = [f"{name}: {error.strerror}"]
            single.worst_s = time.monotonic() - self.since_s
            self.seen.add(single)


class Readers:
    """Those of `reading`."""

    def __init__(self, readers: Sequence[_Reader]) -> None:
        self._readers = readers

    def begin(self) -> None:
        """Count from now on. A read in progress counts where it ends."""
        for reader in self._readers:
            reader.seen = Seen()

    def seen(self) -> Seen:
        """All together so far. A read in progress counts with the time that it has taken."""
        total, now_s = Seen(), time.monotonic()
        for reader in self._readers:
            total.add(reader.seen)
            total.worst_s = max(total.worst_s, now_s - reader.since_s)
        return total

    def wait_for_reads(self, reads: int) -> Seen:
        """Until each reader has ended this many reads since `begin`. Raises Unavailable after PATIENCE_S."""
        wait_for(lambda: all(reader.seen.reads >= reads for reader in self._readers), f"{reads} reads")
        return self.seen()


@contextmanager
def reading(places: Sequence[Path], contents: Mapping[str, bytes]) -> Iterator[Readers]:
    """READERS_EACH readers on each mount until the end of the block; each has read once."""
    stop = threading.Event()
    readers = [
        _Reader(place, contents, number, stop)
        for number, place in enumerate(place for place in places for _ in range(READERS_EACH))
    ]
    try:
        found = Readers(readers)
        found.wait_for_reads(1)
        yield found
    finally:
        stop.set()
        for reader in readers:
            reader.thread.join(PATIENCE_S)


class TooLate(Unavailable):
    """What was waited for has not happened in time."""


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> float:
    """Poll until the condition holds; returns how long it took. Raises TooLate after the timeout."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > timeout_s:
            raise TooLate(f"not within {timeout_s:g} s: {what}")
        time.sleep(_POLL_S)
    return time.monotonic() - began_s
