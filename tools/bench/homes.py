"""Embedded servers with a dataset, and mounts of it, also cleaned up after an interrupt. This module starts them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dieselfs.address import UnixAddress
from dieselfs.dataset import Dataset
from dieselfs.errors import MountError, Unavailable
from dieselfs.limits import LIBRARY_MEMORY_BYTES
from dieselfs.process.embedded_server import socket_path
from dieselfs.process.handle import ProcessHandle
from dieselfs.settings import KERNEL, Settings
from dieselfs.sockets import open_socket, peer_process
from dieselfs_client import control
from dieselfs_client.mount.options import MountOptions
from lab.server import upload

DATASET = "bench"
MOUNT_MEMORY_BYTES = 2 << 30
_STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Home:
    """The home of an embedded server, which starts at the first use."""

    folder: Path

    def dataset(self, is_created: bool = True, memory_bytes: int = LIBRARY_MEMORY_BYTES) -> Dataset:
        settings = Settings(home=self.folder, cache=self.folder / "cache")
        return Dataset(settings, DATASET, is_created=is_created, memory_bytes=memory_bytes)

    def server_process(self) -> int:
        """Process ID of the running server. Raises Unavailable."""
        with open_socket(UnixAddress(str(socket_path(self.folder))), None) as connection:
            return peer_process(connection)

    def stop_server(self) -> None:
        """Stop the server, if it runs, and wait for its end."""
        with suppress(Unavailable, ProcessLookupError):
            ProcessHandle(self.server_process()).end(_STOP_TIMEOUT_S)


@contextmanager
def running_home(folder: Path) -> Iterator[Home]:
    """A home in a new or empty folder, with a running server until the end of the block."""
    folder.mkdir(exist_ok=True)
    home = Home(folder)
    try:
        with _uninterrupted(), home.dataset(is_created=False) as dataset:
            dataset.create()
        yield home
    finally:
        with _uninterrupted():
            home.stop_server()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block."""
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {
        number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for first in received[:1]:
            signal.raise_signal(first)


def store_tree(home: Home, folder: Path, size_bytes: int) -> None:
    with home.dataset(is_created=False) as dataset:
        stored_bytes = upload(dataset, folder)
    assert stored_bytes == size_bytes, f"stored {stored_bytes} of {size_bytes} bytes"


def store_entries(home: Home, entries: int, per_folder: int = 1280) -> None:
    """Fill a new dataset with files of one byte, in folders like those of ImageNet, without a source tree."""
    with home.dataset() as dataset:
        for number in range(entries):
            path = b"train/n%08d/n%08d_%07d.JPEG" % (number // per_folder, number // per_folder, number)
            dataset.put(path, b"\n", mtime_ns=1_600_000_000_000_000_000)


@contextmanager
def mounted(home: Home, mountpoint: Path, driver: str = KERNEL) -> Iterator[int]:
    """Mount the home's dataset until the end of the block; the process ID of the supervisor, the ancestor of all
    processes of the mount. Raises MountError for a missing driver.
    """
    mountpoint.mkdir(exist_ok=True)
    options = MountOptions(
        home=str(home.folder), memory_bytes=MOUNT_MEMORY_BYTES, log_file=f"{mountpoint}.log", driver=driver
    )
    try:
        with _uninterrupted():
            process = control.mount(DATASET, mountpoint, options)
        yield process
    finally:
        with _uninterrupted(), suppress(MountError):  # there may be no mount yet
            try:
                control.unmount(mountpoint)
            except MountError:  # interrupted: a file is still open
                control.unmount(mountpoint, lazily=True)
