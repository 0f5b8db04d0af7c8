"""What a read of the image means for its files. tests/client/mount/views/test_image_pages.py lets the kernel read."""

import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from threading import current_thread, main_thread
from typing import Any

import numpy as np
import pytest
import trio

from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.snapshot.erofs_files import BLOCK_BYTES
from dieselfs.snapshot.erofs_image import ImageOwner, ImagePlan, Serving
from dieselfs.telemetry.registry import Registry
from dieselfs_client.mount.reading.core import CONTROL_FOLDER, MountCore
from dieselfs_client.mount.reading.error_log import ErrorLog, Refused
from dieselfs_client.mount.reading.read_path import Buffers
from dieselfs_client.mount.views.image_layout import IMAGE_INODE, ImageLayout
from dieselfs_client.mount.views.image_reads import ImageReads
from tests.support.dataset import TreeEntry, pack_entries

SIZES = [5000, 10, 4096, 300, 20_000, 1]
GUARDED = b"f3"


class Files:
    """A read path that has the bytes of `held` files, and fetches the others."""

    def __init__(self, core: MountCore) -> None:
        self.metrics = Registry()
        self.core = core
        self.held: set[int] = set()
        self.asked: list[tuple[bytes, int, int, bool]] = []
        self.ahead: list[bytes] = []
        self.fault: DieselfsError | None = None

    def at_once(self, inode: int, offset: int, size: int, is_ahead: bool = False) -> Buffers | None:
        self.asked.append((self.core.snapshot.path(inode - 1), offset, size, is_ahead))
        return self._bytes(inode, offset, size) if inode - 1 in self.held else None

    def fetch_ahead(self, inode: int, offset: int, size: int) -> None:
        self.ahead.append(self.core.snapshot.path(inode - 1))

    async def fetch(self, inode: int, offset: int, size: int) -> Buffers:
        if self.fault is not None:
            raise self.fault
        return self._bytes(inode, offset, size)

    def _bytes(self, inode: int, offset: int, size: int) -> Buffers:
        left = self.core.snapshot.size(inode - 1) - offset
        return [memoryview(bytes([inode % 256]) * min(size, left))]


class Rig:
    def __init__(self) -> None:
        packed = pack_entries(
            [TreeEntry(b"f%d" % n, 0o100644, 0, b"x" * size) for n, size in enumerate(SIZES)]
        )
        snapshot = self.snapshot = packed.snapshot
        guarded = np.arange(len(snapshot)) == snapshot.require(GUARDED)
        image = ImagePlan(snapshot, ImageOwner(0, 0), serving=Serving(CONTROL_FOLDER, guarded)).write()
        self.layout, self.errors = ImageLayout(snapshot, image), ErrorLog()
        self.files = Files(MountCore(snapshot))
        self.missed: list[int] = []
        files: Any = self.files
        self.reads = ImageReads(self.layout, files, self.errors, self.missed.append)

    def start(self, path: bytes) -> int:
        image = self.layout.image
        return int(image.starts[image.nodes.tolist().index(self.snapshot.require(path))])

    def hold(self, *paths: bytes) -> None:
        self.files.held |= {self.snapshot.require(path) for path in paths}


@pytest.fixture
def rig() -> Rig:
    return Rig()


def run(read: Callable[[int, int, int], Awaitable[Buffers]], offset: int, size: int) -> bytes:
    async def main() -> Buffers:
        return await read(IMAGE_INODE, offset, size)

    return b"".join(trio.run(main))


def test_metadata_is_answered_at_once_and_told(rig: Rig) -> None:
    buffers = rig.reads.at_once(IMAGE_INODE, 0, 8192)
    assert buffers is not None and b"".join(buffers) == rig.layout.image.metadata[:8192].tobytes()
    assert rig.missed == [0] and not rig.files.asked


def test_metadata_that_is_missing_is_computed_in_another_thread(rig: Rig) -> None:
    content, filled = rig.layout.image.metadata[:8192].tobytes(), list[tuple[int, int, bool]]()
    rig.layout.image = replace(
        rig.layout.image,
        has=lambda first, end: bool(filled),
        fill=lambda first, end: filled.append((first, end, current_thread() is main_thread())),
    )
    assert rig.reads.at_once(IMAGE_INODE, 0, 8192) is None and rig.missed == [0]
    assert run(rig.reads.fetch, 0, 8192) == content
    assert filled == [(0, 8192, False)]
    assert rig.reads.at_once(IMAGE_INODE, 0, 8192) is not None


def test_a_reader_waits_for_the_first_file_only(rig: Rig) -> None:
    rig.hold(b"f0", b"f1", b"f2")
    start = rig.start(b"f0")
    buffers = rig.reads.at_once(IMAGE_INODE, start + BLOCK_BYTES, 3 * BLOCK_BYTES)
    assert rig.files.asked == [
        (b"f0", BLOCK_BYTES, 5000 - BLOCK_BYTES, False),
        (b"f1", 0, 10, True),
        (b"f2", 0, 4096, True),
    ]
    inodes = [rig.snapshot.require(path) + 1 for path in (b"f0", b"f1", b"f2")]
    wanted = bytes([inodes[0]]) * 904 + bytes(3192) + bytes([inodes[1]]) * 10 + bytes(4086)
    assert buffers is not None and b"".join(buffers) == wanted + bytes([inodes[2]]) * 4096
    assert rig.missed == []


def test_what_is_not_in_memory_is_fetched_with_the_files_behind_it(rig: Rig) -> None:
    rig.hold(b"f0", b"f2")
    start = rig.start(b"f0")
    assert rig.reads.at_once(IMAGE_INODE, start, 4 * BLOCK_BYTES) is None
    found = run(rig.reads.fetch, start, 4 * BLOCK_BYTES)
    assert len(found) == 4 * BLOCK_BYTES and found[2 * BLOCK_BYTES] == rig.snapshot.require(b"f1") + 1
    assert rig.files.ahead == [b"f1", b"f2"]


def test_read_ahead_does_not_reach_a_guarded_file(rig: Rig) -> None:
    rig.hold(GUARDED)
    start = rig.start(GUARDED)
    with pytest.raises(Refused) as refused:
        rig.reads.at_once(IMAGE_INODE, start - BLOCK_BYTES, 3 * BLOCK_BYTES)
    assert refused.value.code == errno.EIO and not rig.files.asked and rig.errors.text() == ""
    # A kernel with large pages may have no other way to read the file.
    assert rig.reads.at_once(IMAGE_INODE, start - BLOCK_BYTES, 3 * BLOCK_BYTES) is not None
    assert rig.reads.at_once(IMAGE_INODE, start, BLOCK_BYTES) is not None
    assert rig.files.asked[-1] == (GUARDED, 0, 300, False)


def test_a_gap_alone_is_zeros(rig: Rig) -> None:
    buffers = rig.reads.at_once(IMAGE_INODE, rig.start(GUARDED) - BLOCK_BYTES, BLOCK_BYTES)
    assert buffers is not None and b"".join(buffers) == bytes(BLOCK_BYTES)


def test_an_error_names_the_file(rig: Rig) -> None:
    rig.files.fault = Unavailable("no server")
    with pytest.raises(Refused) as refused:
        run(rig.reads.fetch, rig.start(b"f4"), BLOCK_BYTES)
    assert refused.value.code == errno.EIO
    assert rig.errors.text().endswith("\tf4\tno server\n")


def test_files_of_the_mount_are_read_as_before(rig: Rig) -> None:
    rig.hold(b"f4")
    inode = rig.snapshot.require(b"f4") + 1
    assert rig.reads.at_once(inode, 5, 7) == [memoryview(bytes([inode]) * 7)]
    assert rig.reads.at_once(rig.snapshot.require(b"f1") + 1, 0, 1) is None
