"""What a rival is: servers on a host, a place to store trees in, and mounts on other hosts.

This module starts processes and mounts file systems.
"""

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness.figures import RunFailed
from lab.namespace import wait_for
from lab.network import Host, clear

START_TIMEOUT_S, STOP_TIMEOUT_S = 60.0, 20.0
_COPIES = 4
"""Processes that copy a tree into a mount."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """A tree as a host sees it. `clients`: the processes that serve the mount there."""

    folder: Path
    clients: Sequence[int]


@dataclass(frozen=True, slots=True)
class Storing:
    """What stores a tree, once. `clients`: as of `Mounted`."""

    run: Callable[[], object]
    clients: Sequence[int]


class Rival(ABC):
    """A running file system."""

    name: str

    @abstractmethod
    def servers(self) -> Sequence[int]:
        """Process IDs. Their descendants belong to them."""

    @abstractmethod
    def mounted(self, host: Host, tree: str) -> AbstractContextManager[Mounted]:
        """A new mount on `host`, with nothing in its memory, until the end of the block; the stored tree in it."""

    @abstractmethod
    def storing(self, host: Host, folder: Path, tree: str) -> AbstractContextManager[Storing]:
        """What stores a folder from `host` as a new tree, until the end of the block."""

    def put(self, host: Host, folder: Path) -> None:
        """Store a folder from `host`, as the tree of the folder's name."""
        with self.storing(host, folder, folder.name) as storing:
            storing.run()

    def forget(self) -> None:  # most cannot
        """Lose what the servers have in memory, where a new start of them does that."""
        return


class Files(Rival):
    """A rival with one mount for all trees, and files that can be written there."""

    @abstractmethod
    def command(self, host: Host, mountpoint: Path) -> Sequence[str | Path]:
        """The program that serves a mount, in the foreground."""

    @contextmanager
    def mounted(self, host: Host, tree: str) -> Iterator[Mounted]:
        mountpoint = host.folder / self.name
        mountpoint.mkdir(exist_ok=True)
        process = host.start(self.command(host, mountpoint))

        def is_mounted() -> bool:
            if process.poll() is not None:
                raise RunFailed(
                    f"{self.name}: the mount ended with {process.returncode}: {host.log()[-500:]}"
                )
            return mountpoint.is_mount()

        try:
            wait_for(is_mounted, f"{self.name} is mounted", START_TIMEOUT_S)
            yield Mounted(mountpoint / tree, [process.pid])
        finally:
            process.terminate()  # it unmounts
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            clear(mountpoint)

    @contextmanager
    def storing(self, host: Host, folder: Path, tree: str) -> Iterator[Storing]:
        with self.mounted(host, tree) as place:
            yield Storing(partial(copy_tree, folder, place.folder), place.clients)


def copy_tree(source: Path, into: Path) -> None:
    """Copy a tree by `cp`, in _COPIES processes at once that have a part of each folder."""
    commands = []
    for folder, _, files in os.walk(source):
        target = into / Path(folder).relative_to(source)
        target.mkdir()
        parts = [[Path(folder, name) for name in files[first::_COPIES]] for first in range(_COPIES)]
        commands += [["cp", "-t", target, *part] for part in parts if part]
    with ThreadPoolExecutor(_COPIES) as threads:
        for copied in threads.map(partial(subprocess.run, capture_output=True, text=True), commands):
            if copied.returncode:
                raise RunFailed(copied.stderr)
