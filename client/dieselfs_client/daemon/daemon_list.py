"""The cache daemons of this user on this node, found by their command lines. This module reads `/proc`."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dieselfs.names import SCHEME
from dieselfs.settings.table import BY_NAME

CACHE_DAEMON = "dieselfs_client.cache_daemon"


@dataclass(frozen=True, slots=True)
class CacheProcess:
    """A cache daemon. `dataset` is `name` or `name@tag`; `job`: empty for a daemon outside jobs."""

    process: int
    dataset: str
    generation: int
    job: str = ""


def cache_daemons() -> list[CacheProcess]:
    """The daemons that were started with a generation, by process ID."""
    found = []
    for process in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
        place = Path("/proc", str(process))
        with suppress(OSError):  # it has just ended, or belongs to another user
            if place.stat().st_uid == os.getuid():
                words = os.fsdecode((place / "cmdline").read_bytes()).split("\0")
                if (daemon := parsed(process, words)) is not None:
                    found.append(daemon)
    return found


def parsed(process: int, words: list[str]) -> CacheProcess | None:
    """The daemon with this command line; None if it is no cache daemon with a generation."""
    with suppress(ValueError, IndexError):
        dataset = words[words.index(CACHE_DAEMON) + 1].removeprefix(SCHEME)
        generation = int(words[words.index(BY_NAME["generation"].flag) + 1])
        job = BY_NAME["job"].flag
        return CacheProcess(process, dataset, generation, words[words.index(job) + 1] if job in words else "")
    return None
