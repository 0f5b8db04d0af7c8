"""Embedded servers with a dataset, and mounts of it: stopped and unmounted in the end, also when interrupted.

This module starts servers and mounts.
"""

import os
import select
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.trees import SourceTree
from dieselfs.config import Settings
from dieselfs.dataset import Dataset
from dieselfs.embedded import socket_path
from dieselfs.errors import MountError, Unavailable
from dieselfs.limits import LIBRARY_MEMORY_BYTES
from dieselfs.rpc.address import UnixAddress
from dieselfs.rpc.connection import open_socket
from dieselfs.upload import TreeUpload, walk_source
from dieselfs_client import control
from dieselfs_client.options import KERNEL, MountOptions

DATASET = "bench"
MOUNT_MEMORY_BYTES = 2 << 30
_STOP_TIMEOUT_S = 20.0
_TIME_NS = 1_600_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Home:
    """Embedded data: the home of a server, which starts at the first use."""

    folder: Path

    @property
    def settings(self) -> Settings:
        return Settings(home=self.folder, cache=self.folder / "cache")

    def dataset(self, is_created: bool = True, memory_bytes: int = LIBRARY_MEMORY_BYTES) -> Dataset:
        return Dataset(self.settings, DATASET, is_created=is_created, memory_bytes=memory_bytes)

    def server_process(self) -> int:
        """Process ID of the server, which must run: it is who listens on the socket. Raises Unavailable."""
        with open_socket(UnixAddress(str(socket_path(self.folder))), None) as connection:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        process, _, _ = struct.unpack("3i", credentials)
        return int(process)

    def stop_server(self) -> None:
        """Stop the server if it runs, and wait until it is gone."""
        with suppress(Unavailable, ProcessLookupError):
            process = self.server_process()
            watch = os.pidfd_open(process)
            try:
                signal.pidfd_send_signal(watch, signal.SIGTERM)
                select.select([watch], [], [], _STOP_TIMEOUT_S)
            finally:
                os.close(watch)


@contextmanager
def running_home(folder: Path) -> Iterator[Home]:
    """A home in a new or empty folder, whose server runs, and is stopped in the end."""
    folder.mkdir(exist_ok=True)
    home = Home(folder)
    try:
        with uninterrupted(), home.dataset(is_created=False) as dataset:
            dataset.create()
        yield home
    finally:
        with uninterrupted():
            home.stop_server()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C and SIGTERM to the end of the block: one that starts or ends what nobody else would end."""
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


def upload_tree(home: Home, tree: SourceTree) -> None:
    """What `dlcmd put -r` does, with its defaults, for a dataset that holds nothing yet."""
    with home.dataset(is_created=False) as dataset:
        upload = TreeUpload(dataset.client, dataset.create(), None)
        report = upload.run(lambda failed: walk_source(os.fsencode(tree.folder), b"", failed))
    stored_bytes = report.counters.stored_bytes
    assert stored_bytes == tree.size_bytes, (
        f"stored {stored_bytes} of {tree.size_bytes} bytes: {report.failures}"
    )


def upload_entries(home: Home, entries: int, per_folder: int) -> None:
    """Fill a new dataset with files of one byte each, in folders as ImageNet has them; there is no source to read."""
    with home.dataset() as dataset:
        for number in range(entries):
            path = b"train/n%08d/n%08d_%07d.JPEG" % (number // per_folder, number // per_folder, number)
            dataset.put(path, b"\n", mtime_ns=_TIME_NS)


@dataclass(frozen=True, slots=True)
class MountedDataset:
    """`process` is the supervisor; the daemon and what else serves are its descendants."""

    folder: Path
    process: int


@contextmanager
def mounted(home: Home, mountpoint: Path, driver: str = KERNEL) -> Iterator[MountedDataset]:
    """The home's dataset, mounted until the end of the block. Raises MountError for a driver that is not there."""
    mountpoint.mkdir(exist_ok=True)
    options = MountOptions(
        home=str(home.folder),
        memory_bytes=MOUNT_MEMORY_BYTES,
        log_file=f"{mountpoint}.log",
        driver=driver,
    )
    try:
        with uninterrupted():
            process = control.mount(DATASET, mountpoint, options)
        yield MountedDataset(mountpoint, process)
    finally:
        with uninterrupted(), suppress(MountError):  # there may be no mount yet
            _unmount(mountpoint)


def _unmount(mountpoint: Path) -> None:
    try:
        control.unmount(mountpoint)
    except MountError:  # interrupted: somebody still has a file open
        control.unmount(mountpoint, lazily=True)
