"""Checkpoints: large files that are written and fsynced through a mount with `--write`, and on the disk of its write
folder, which is the same disk.

Each file is removed after its run, so the mount stores none of them meanwhile.
"""

import os
from collections.abc import Generator
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import filesystem_type, mounted, running_home
from bench.harness.stopwatch import measure
from dieselfs.limits import CHUNK_TARGET_BYTES, MIB

WRITE_BYTES = 4 * MIB
"""About what `torch.save` writes at a time of a large tensor."""


def checkpoints(folder: Path, scale: Scale) -> Generator[Trial]:
    size_bytes = scale.chunks * CHUNK_TARGET_BYTES
    disk, mountpoint = folder / "disk", folder / "mount"
    disk.mkdir()
    local = filesystem_type(folder)
    with (
        running_home(folder / "home") as home,
        mounted(home, mountpoint, write_folder=str(folder / "writes")),
    ):
        sides = [
            Side(name, partial(_run, place / "checkpoint", size_bytes), size_bytes / MIB, "MiB")
            for name, place in (("mount", mountpoint), (local, disk))
        ]
        yield Trial(f"A file of {size_bytes // MIB:,} MiB, written and fsynced", sides, scale.rounds, local)


def _run(file: Path, size_bytes: int) -> Run:
    content = os.urandom(WRITE_BYTES)
    os.sync()
    try:
        return measure(partial(_write, file, content, size_bytes))
    finally:
        file.unlink()


def _write(file: Path, content: bytes, size_bytes: int) -> None:
    with file.open("wb", buffering=0) as output:
        for _ in range(0, size_bytes, len(content)):
            output.write(content)
        os.fsync(output.fileno())
