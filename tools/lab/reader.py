"""A program that reads a mount until it is stopped, verifies every byte, and records its rate.

    python -m lab.reader MOUNTPOINT RECORD STOP SEED [FILES_PER_S]

Files are chosen at random, and their pages are dropped after each read. With a pace, it reads that many files a second
and does not catch up after a slow read. The content of a file follows from its name (`content_of`). RECORD gets a line
(`Moment`) for each tenth of a second in which a read ended. The program ends when the file STOP exists.
"""

import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

BIN_S = 0.1


@dataclass
class Moment:
    """One tenth of a second of one reader.

    - `began_s`, `ended_s`: monotonic clock; further apart than a tenth if the last read took longer
    - `reads`: files read; `worst_s`: the longest of these reads
    - `failures`: errors, and files with wrong bytes
    """

    began_s: float
    ended_s: float = 0.0
    reads: int = 0
    worst_s: float = 0.0
    failures: list[str] = field(default_factory=list)


def content_of(name: str, length_bytes: int) -> bytes:
    """The content of the file with a name."""
    return random.Random(name).randbytes(length_bytes)


def read_and_drop(path: str) -> bytes:
    """The content of a file, whose pages are dropped. Raises OSError, or AssertionError if it is cut short."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        length_bytes = os.fstat(descriptor).st_size
        content = os.read(descriptor, length_bytes + 1)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    assert len(content) == length_bytes, f"{path}: {len(content)} of {length_bytes} bytes"
    return content


def read_once(mountpoint: str, name: str) -> None:
    """Read a file and drop its pages. Raises AssertionError for wrong bytes, or OSError."""
    content = read_and_drop(f"{mountpoint}/{name}")
    assert content and content == content_of(name, len(content)), f"{name}: wrong bytes"


def read_until(mountpoint: str, record: Path, stop: Path, seed: int, files_per_s: float = 0.0) -> None:
    """`files_per_s`: 0 is unlimited."""
    choice = random.Random(seed)
    names = sorted(name for name in os.listdir(mountpoint) if not name.startswith("."))
    now_s = time.monotonic()
    moment = Moment(now_s)
    pause_s = 1 / files_per_s if files_per_s else 0.0
    with record.open("a") as lines:
        while not stop.exists():
            began_s = now_s
            try:
                read_once(mountpoint, choice.choice(names))
            except (AssertionError, OSError) as error:
                moment.failures.append(f"{type(error).__name__}: {error}")
            now_s = time.monotonic()
            moment.reads += 1
            moment.worst_s = max(moment.worst_s, now_s - began_s)
            moment.ended_s = now_s
            if now_s - moment.began_s >= BIN_S:
                print(json.dumps(asdict(moment)), file=lines, flush=True)
                moment = Moment(now_s)
            while now_s - began_s < pause_s:
                time.sleep(began_s + pause_s - now_s)
                now_s = time.monotonic()
        if moment.reads:
            print(json.dumps(asdict(moment)), file=lines, flush=True)


if __name__ == "__main__":
    read_until(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), *map(float, sys.argv[5:]))
