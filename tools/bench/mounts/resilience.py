"""The slowest read while the daemon of a mount, or any of its processes, is killed again and again. This module kills
processes.

Each read is compared with the stored bytes and dropped from the page cache, so each one reaches the daemon, or in the
view `image` the kernel's image. Where the daemon alone is killed, it is one that serves; else any process is, whatever
state the others are in.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.harness.figures import Run, RunFailed, Scale, Side, Trial
from bench.harness.forms import SMALL_FILE_BYTES, VIEWS, make_tree, mounted, running_home, store_tree
from bench.harness.readers import READ_TIMEOUT_S, ForkedProcess
from dieselfs.errors import MountError
from dieselfs_client.supervision.status import supervision_of
from lab.mount_processes import kill_any
from lab.reader import read_and_drop

READERS = 4
FILES = 5000
KILL_EVERY_S = 0.1
DURATION_S, QUICK_DURATION_S = 60.0, 5.0
CALM_SHARE = 0.2
"""Part of the time without kills, to compare with."""


def resilience(folder: Path, scale: Scale) -> Generator[Trial]:
    duration_s = QUICK_DURATION_S if scale.is_quick else DURATION_S
    tree = make_tree(folder / "source", FILES, SMALL_FILE_BYTES)
    expected = {path: (tree.folder / path).read_bytes() for path in tree.paths()}
    with running_home(folder / "home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
        every = f"killed every {KILL_EVERY_S * 1000:.0f} ms"
        for view in VIEWS:
            with suppress(MountError), mounted(home, folder / view, view=view):
                read = partial(_slowest_read, folder / view, expected)
                sides = [
                    Side("no process is killed", partial(read, duration_s * CALM_SHARE, None), 1, ""),
                    Side(f"daemon {every}", partial(read, duration_s, _kill_daemons), 1, ""),
                    Side(f"any process {every}", partial(read, duration_s, _kill_any), 1, ""),
                ]
                what = f"The slowest read of {READERS} readers in the view {view}, {duration_s:g} s"
                yield Trial(what, sides, rounds=1)


def _slowest_read(
    mountpoint: Path,
    expected: Mapping[str, bytes],
    duration_s: float,
    kill: Callable[[Path, float], int] | None,
) -> Run:
    """Raises RunFailed if a read failed or was wrong."""
    read = partial(_read, mountpoint, expected, time.perf_counter() + duration_s)
    with ExitStack() as stack:
        readers = [
            stack.enter_context(closing(ForkedProcess(partial(read, seed)))) for seed in range(READERS)
        ]
        kills = kill(mountpoint, duration_s) if kill else 0
        reports = [reader.receive(duration_s + READ_TIMEOUT_S) for reader in readers]
    slowest_s, reads, failed = zip(*reports, strict=True)
    if sum(failed):
        raise RunFailed(f"{sum(failed):,} of {sum(reads):,} reads failed, with {kills} kills")
    return Run(max(slowest_s), seen={"reads": sum(reads), "failed": sum(failed), "kills": kills})


def _read(mountpoint: Path, expected: Mapping[str, bytes], end_s: float, seed: int, pipe: Connection) -> None:
    """Report the slowest read, the number of reads, and how many failed."""
    order, paths = random.Random(seed), list(expected)
    slowest_s, reads, failed = 0.0, 0, 0
    while (start_s := time.perf_counter()) < end_s:
        path = order.choice(paths)
        failed += not _reads_right(f"{mountpoint}/{path}", expected[path])
        reads += 1
        slowest_s = max(slowest_s, time.perf_counter() - start_s)
    pipe.send((slowest_s, reads, failed))


def _kill_any(mountpoint: Path, duration_s: float) -> int:
    """The number of killed processes: supervisors, zygotes, daemons that stand by or serve, and page helpers."""
    end_s, choice, kills = time.perf_counter() + duration_s, random.Random(1), 0
    while time.perf_counter() < end_s:
        kills += kill_any(mountpoint, choice) is not None
        time.sleep(KILL_EVERY_S)
    return kills


def _kill_daemons(mountpoint: Path, duration_s: float) -> int:
    """The number of killed daemons."""
    end_s, daemon, kills = time.perf_counter() + duration_s, 0, 0
    while time.perf_counter() < end_s:
        status = supervision_of(str(mountpoint))
        if status is not None and status.is_served and status.daemon != daemon:
            daemon = status.daemon
            os.kill(daemon, signal.SIGKILL)
            kills += 1
        time.sleep(KILL_EVERY_S)
    return kills


def _reads_right(path: str, expected: bytes) -> bool:
    try:
        return read_and_drop(path) == expected
    except (AssertionError, OSError):
        return False
