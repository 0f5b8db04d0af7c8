"""Starts, finds and stops cache daemons, which share chunks on a node without a mount, for `dlcmd`. This module starts
processes and reads `/proc`.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dieselfs.disk.space import check_usable
from dieselfs.errors import MountError, NotFound, Unavailable
from dieselfs.limits import MOUNT_START_TIMEOUT_S
from dieselfs.names import SCHEME
from dieselfs.process.launch import ProcessHandle, launch, python_command
from dieselfs.process.state_dirs import log_path
from dieselfs.settings.table import BY_NAME, CacheOptions

if TYPE_CHECKING:  # as in `control`
    from dieselfs.snapshot.reader import Snapshot
    from dieselfs_client.cluster.pool import PoolConfig

CACHE_STOP_TIMEOUT_S = 10.0
CACHE_DAEMON = "dieselfs_client.cache_daemon"


@dataclass(frozen=True, slots=True)
class CacheProcess:
    """A cache daemon. `dataset` is `name` or `name@tag`; `job`: empty for a daemon outside jobs."""

    process: int
    dataset: str
    generation: int
    job: str = ""


def start_cache(dataset: str, options: CacheOptions) -> int:
    """Start a daemon that shares the chunks of a dataset (`name` or `name@tag`) on this node; returns its process ID.

    With a generation, `cache_generations` finds it. With a job, the daemon takes part in that, and this waits for the
    other nodes. Raises AlreadyExists if there is such a daemon, what `dieselfs.connect` raises, the error with which
    the job refuses the node, and Unavailable if it is not ready within MOUNT_START_TIMEOUT_S.
    """
    options.check()
    if options.disk:
        check_usable(options.disk)
    log = log_path("cache", dataset, *([options.job] if options.job else []))
    command = python_command(CACHE_DAEMON, dataset, *options.absolute().arguments())
    return launch(
        lambda report: [*command, "--report-fd", str(report)],
        log,
        MOUNT_START_TIMEOUT_S,
        f"the cache daemon of {dataset}",
        MountError,
    )


def find_cache(snapshot: "Snapshot", config: "PoolConfig | None" = None) -> int | None:
    """The daemon without a mount that shares a snapshot on this node, or takes part in a job: its process ID.

    None if there is none that this process can see.
    """
    from dieselfs_client.cluster.node_paths import lock_of

    lock = lock_of(snapshot, config)
    try:
        return lock.cache_process()
    finally:
        lock.clear()


def stop_cache(
    snapshot: "Snapshot", config: "PoolConfig | None" = None, timeout_s: float = CACHE_STOP_TIMEOUT_S
) -> int:
    """End the daemon that `find_cache` finds; returns its process ID. One that hangs is killed after `timeout_s`.

    Raises NotFound if there is none, Unavailable if it does not end even then.
    """
    process = find_cache(snapshot, config)
    if process is None:
        what = f"shares {snapshot.dataset}" if config is None else f"is in job {config.job.name}"
        raise NotFound(f"no daemon {what}, generation {snapshot.generation}, on this node")
    with contextlib.suppress(ProcessLookupError):
        handle = ProcessHandle(process)
        # Found again: the handle is of this daemon, and not of a later process with the same number.
        if find_cache(snapshot, config) == process and not handle.kill(timeout_s):
            raise Unavailable(f"process {process} was killed and has not ended")
    return process


def cache_generations(dataset: str) -> list[int]:
    """The generations of a dataset with which this user's daemons were started on this node, in any job; sorted."""
    return sorted({one.generation for one in cache_daemons() if one.dataset.partition("@")[0] == dataset})


def cache_members(snapshot: "Snapshot", config: "PoolConfig") -> list[str] | None:
    """The nodes of a job in the membership list of this node's master; None if no master answers."""
    from dieselfs.cluster.node_client import NodeClient
    from dieselfs_client.cluster.node_paths import path_of

    with contextlib.closing(NodeClient(path_of(snapshot, config), snapshot.digest)) as node:
        answer = node.members()
    return None if answer is None or answer.members is None else sorted(each.node for each in answer.members)


def cache_daemons() -> list[CacheProcess]:
    """The daemons of this user that were started with a generation, by process ID; found by their command lines."""
    found = []
    for process in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
        place = Path("/proc", str(process))
        with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
            if place.stat().st_uid == os.getuid():
                words = os.fsdecode((place / "cmdline").read_bytes()).split("\0")
                if (daemon := parsed(process, words)) is not None:
                    found.append(daemon)
    return found


def parsed(process: int, words: list[str]) -> CacheProcess | None:
    """The daemon with this command line; None if it is no cache daemon with a generation."""
    with contextlib.suppress(ValueError, IndexError):
        dataset = words[words.index(CACHE_DAEMON) + 1].removeprefix(SCHEME)
        generation = int(words[words.index(BY_NAME["generation"].flag) + 1])
        job = BY_NAME["job"].flag
        return CacheProcess(process, dataset, generation, words[words.index(job) + 1] if job in words else "")
    return None
