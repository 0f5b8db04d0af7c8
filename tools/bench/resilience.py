"""How little readers notice when a mount's daemon is killed again and again.

Every read is checked against the bytes that were stored, and what was read is dropped from the page cache, or else no
read would ever reach the daemon. What is timed is the slowest open, read and close of all. This module kills processes.
"""

import ctypes
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from bench.figures import Aim, Quantity, Run, RunFailed, Side, Trial
from bench.homes import mounted, running_home, upload_tree
from bench.readers import Work, read_together
from bench.scale import FULL, Scale
from bench.trees import SMALL_FILE_BYTES, make_tree
from dieselfs_client.supervision.record import supervision_of

PAUSE_AIM = Aim(Quantity.DURATION_S, 0.5)
READERS = 4
FILES = 5000
KILL_EVERY_S = 0.1
DURATION_S, QUICK_DURATION_S = 60.0, 5.0
CALM_SHARE = 0.2
"""Of the time: how long it is read with nobody killing, to compare with."""

_forks = multiprocessing.get_context("fork")


def resilience(folder: Path, scale: Scale) -> Generator[Trial]:
    duration_s = DURATION_S if scale.entries >= FULL.entries else QUICK_DURATION_S
    tree = make_tree(folder / "source", FILES, SMALL_FILE_BYTES)
    expected = {path: (tree.folder / path).read_bytes() for path in tree.paths()}
    with running_home(folder / "home") as home:
        upload_tree(home, tree)
        with mounted(home, folder / "mount") as mount:
            read = partial(_slowest_read, mount.folder, expected)
            sides = [
                Side("nobody kills", partial(read, duration_s * CALM_SHARE, False), 1, ""),
                Side(
                    f"daemon killed every {KILL_EVERY_S * 1000:g} ms",
                    partial(read, duration_s, True),
                    1,
                    "",
                    aim=PAUSE_AIM,
                ),
            ]
            title = f"The slowest read of {READERS} readers, {duration_s:g} s"
            yield Trial(title, sides, rounds=1)


def _slowest_read(mountpoint: Path, expected: Mapping[str, bytes], duration_s: float, is_killed: bool) -> Run:
    """Raises RunFailed if a single read failed or was wrong."""
    slowest_s = _forks.RawArray(ctypes.c_double, READERS)
    reads, failed, kills = (_forks.RawArray(ctypes.c_long, READERS) for _ in range(3))

    def reader(number: int) -> Work:
        order = random.Random(number)

        def read() -> int:
            end_s = time.perf_counter() + duration_s
            while (start_s := time.perf_counter()) < end_s:
                path = order.choice(paths)
                failed[number] += not _reads_right(f"{mountpoint}/{path}", expected[path])
                reads[number] += 1
                slowest_s[number] = max(slowest_s[number], time.perf_counter() - start_s)
            return 0

        return read

    def killer() -> Work:
        def kill() -> int:
            end_s = time.perf_counter() + duration_s
            while time.perf_counter() < end_s:
                kills[0] += _kill_daemon(mountpoint)
                time.sleep(KILL_EVERY_S)
            return 0

        return kill

    paths: Sequence[str] = list(expected)
    read_together([*(partial(reader, number) for number in range(READERS)), *[killer][:is_killed]], files=0)
    if sum(failed):
        raise RunFailed(f"{sum(failed):,} of {sum(reads):,} reads failed, with {kills[0]} kills")
    return Run(max(slowest_s), seen={"reads": sum(reads), "failed": sum(failed), "kills": kills[0]})


def _reads_right(path: str, expected: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            content = os.read(descriptor, len(expected) + 1)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return content == expected


def _kill_daemon(mountpoint: Path) -> bool:
    supervision = supervision_of(str(mountpoint))
    if supervision is None or not supervision.daemon:
        return False
    with suppress(ProcessLookupError):  # it is dead, and the next one is on its way
        os.kill(supervision.daemon, signal.SIGKILL)
        return True
    return False
