"""The reserve of the server's disks: ordinary chunks leave it free, deletes and what purge moves may use it. So a store
that is full can be emptied again: a delete needs room for its chunk, its metadata and a snapshot.

This module asks file systems for their room. Other programs, and other servers in the same moment, can use the reserve.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from dieselfs.chunk.format import ChunkHeader, Op, Preamble
from dieselfs.errors import StorageFull
from dieselfs.limits import MIB
from dieselfs.units import format_size

RESERVE_SHARE = 0.02
RESERVE_BYTES_MIN = 16 * MIB
RESERVE_BYTES_MAX = 256 * MIB
"""The reserve is this share of a disk, within these bounds, and at most a quarter of it."""
PURGE_SHARE = 0.5
"""Copies that purge makes leave this share of the reserve for deletes."""


class Disk(NamedTuple):
    """Bytes of a file system: in all, and what the server may still use."""

    total_bytes: int
    free_bytes: int


def disk_of(folder: str) -> Disk:
    """The file system of a folder. Raises OSError."""
    found = os.statvfs(folder)
    return Disk(found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail)


def reserve_bytes(disk: Disk) -> int:
    bounded = min(max(int(disk.total_bytes * RESERVE_SHARE), RESERVE_BYTES_MIN), RESERVE_BYTES_MAX)
    return min(bounded, disk.total_bytes // 4)


class Room:
    """`folders` of the disks that the server writes to. Thread-safe."""

    def __init__(self, folders: Sequence[str] = (), disk: Callable[[str], Disk] = disk_of) -> None:
        self._folders = folders
        self._disk = disk

    def disks(self) -> Iterator[tuple[str, Disk]]:
        """The folders whose disks say how large they are."""
        for folder in self._folders:
            with suppress(OSError):  # one that cannot say it fails where it is written
                if (disk := self._disk(folder)).total_bytes > 0:
                    yield folder, disk

    def check(self, preamble: Preamble, header: ChunkHeader, share: float = 1.0) -> None:
        """Raise StorageFull for a chunk that would not leave this share of the reserve. Deletes always pass."""
        if (header.ops == Op.DELETE).all():
            return
        for folder, disk in self.disks():
            if disk.free_bytes - preamble.stored_length < share * reserve_bytes(disk):
                raise StorageFull(
                    f"the object store is full: {format_size(disk.free_bytes)} on the disk of {folder} are kept "
                    "for deletes; delete files (dlcmd rm), free their room "
                    "(dlcmd purge --grace 0s dl://DATASET), or enlarge the disk"
                )

    def check_ahead(self, what: str, needed_bytes: int) -> None:
        """Raise StorageFull for work that takes more bytes than there are beside the reserve."""
        for folder in self._folders:
            with suppress(OSError):
                disk = self._disk(folder)
                free_bytes = max(disk.free_bytes - reserve_bytes(disk), 0)
                if disk.total_bytes > 0 and free_bytes < needed_bytes:
                    raise StorageFull(
                        f"{what} needs {format_size(needed_bytes)} until a purge, and the disk of {folder} has "
                        f"{format_size(free_bytes)}; nothing was changed"
                    )

    @contextmanager
    def for_purge(self, preamble: Preamble, header: ChunkHeader) -> Iterator[None]:
        """An `Admission` for copies that purge makes."""
        self.check(preamble, header, PURGE_SHARE)
        yield
