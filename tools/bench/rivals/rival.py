"""What a rival is: servers on a host, a place to store trees in, and mounts on other hosts.

This module starts processes and mounts file systems.
"""

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness.figures import RunFailed
from lab.namespace import wait_for
from lab.network import Host, clear

START_TIMEOUT_S, STOP_TIMEOUT_S = 60.0, 20.0
_COPIES = 4
"""At once, of a tree into a mount."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """A tree as a host sees it. `clients`: the processes that serve the mount there."""

    folder: Path
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
    def put(self, host: Host, folder: Path) -> None:
        """Store a folder from `host`, as the tree of the folder's name."""

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

    def put(self, host: Host, folder: Path) -> None:
        with self.mounted(host, folder.name) as place:
            place.folder.mkdir()
            parts = sorted(folder.iterdir())
            with ThreadPoolExecutor(_COPIES) as threads:
                [*threads.map(lambda part: _copy(part, place.folder), parts)].clear()


def _copy(source: Path, into: Path) -> None:
    subprocess.run(["cp", "-r", source, into], check=True, capture_output=True)
