"""A program that reads a mount by plan, epoch after epoch, and verifies every byte; for tests that disturb the mount.

    python plan_reader.py MOUNTPOINT STOP RANK WORLD GROUP

The content of each file follows from its path (`content_of`). Epochs are read as by a training program: each file of
the share once. The program ends when the file STOP exists and it has read FILES_MIN files, or after a failure. Then it
prints, as JSON, the numbers of files and of whole epochs, the failures, and the longest time of an operation.
"""

import json
import os
import random
import sys
import time
import zlib
from pathlib import Path
from typing import Any

FILES_MIN = 100


def size_of(path: str) -> int:
    """Small files, some empty, and a few that span chunks."""
    choice = random.Random(zlib.crc32(path.encode()))
    if path.startswith("large"):
        return 6 << 20
    return choice.choice([0, 1, 4095, 4096, 4097, choice.randrange(30_000)])


def content_of(path: str) -> bytes:
    return random.Random(path).randbytes(size_of(path))


def read(place: str) -> bytes:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_until(mountpoint: str, stop: Path, rank: int, world: int, group: int) -> dict[str, Any]:
    files, epochs, worst_s = 0, 0, 0.0
    failures: list[str] = []

    def is_over() -> bool:
        return (files >= FILES_MIN or bool(failures)) and stop.exists()

    while not is_over():
        name = f"seed=5,epoch={epochs},group={group},rank={rank},world={world},batch=64"
        try:
            paths = Path(mountpoint, ".dieselfs/shuffle", name).read_text().splitlines()
        except OSError as error:
            failures.append(f"{name}: {error!r}")
            continue
        for path in paths:
            if is_over():
                break
            began_s = time.monotonic()
            try:
                if read(f"{mountpoint}/{path}") != content_of(path):
                    failures.append(f"{path}: wrong bytes")
            except OSError as error:
                failures.append(f"{path}: {error!r}")
            worst_s = max(worst_s, time.monotonic() - began_s)
            files += 1
        else:
            epochs += 1
    return {"files": files, "epochs": epochs, "failures": failures[:10], "worst_s": worst_s}


if __name__ == "__main__":
    print(json.dumps(read_until(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))))
