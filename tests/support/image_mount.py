"""The EROFS image of a dataset, served by a thread of this process through a FUSE mount, and mounted by the kernel.

No test may touch a page of it by a memory mapping: a page fault does not release the interpreter lock.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import trio

from dieselfs.prefetch.extent_table import ExtentTable
from dieselfs.snapshot.erofs_image import ImageOwner, Serving
from dieselfs.snapshot.stored_image import stored_image
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.mount.control.tree import ControlTree
from dieselfs_client.mount.drivers.kernel_driver import KernelDriver
from dieselfs_client.mount.kernel.page_cache import largest_payload_bytes
from dieselfs_client.mount.points.mounting import mount_device
from dieselfs_client.mount.reading.core import CONTROL_FOLDER, MountCore
from dieselfs_client.mount.reading.error_log import ErrorLog
from dieselfs_client.mount.views.image_layout import IMAGE_NAME, ImageLayout
from dieselfs_client.mount.views.image_pages import ImagePages
from dieselfs_client.mount.views.image_reads import ImageReads
from lab.network import clear
from tests.support.dataset import PackedDataset
from tests.support.erofs import mounted_image
from tests.support.no_read_ahead import plain_reads

GUARDED_EVERY = 10


class NoContents:
    """A mount without plans, and nothing to say of itself."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(name)


class ImageMount:
    """`path`: the EROFS mount; `metadata_reads`: the offsets of reads of the metadata area."""

    def __init__(self, folder: Path, packed: PackedDataset, device: int) -> None:
        snapshot = packed.snapshot
        self.path, self.image_path = folder / "view", folder / "fuse" / os.fsdecode(IMAGE_NAME)
        self.device, self.snapshot, self.source = device, snapshot, packed.source()
        self.is_guarded = np.arange(len(snapshot)) % GUARDED_EVERY == 0
        serving = Serving(CONTROL_FOLDER, self.is_guarded)
        self.image, self._image_file = stored_image(snapshot, ImageOwner(0, 0), serving)
        self.buffer_pool = BufferPool(largest_payload_bytes(snapshot), 3)
        self.pages = ImagePages(
            device,
            str(self.path),
            snapshot,
            self.buffer_pool,
            self.image,
            self._image_file,
            str(self.image_path),
        )
        self.layout = ImageLayout(snapshot, self.image)
        self.core = MountCore(snapshot, unlisted={IMAGE_NAME: self.layout.attributes()})
        self.errors = ErrorLog()
        self.table = ExtentTable(snapshot)
        self.metadata_reads: list[int] = []
        self.driver: KernelDriver | None = None

    def serve(self) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                chunk_cache = ChunkCache(self.snapshot, self.source, 1 << 20, nursery)
                control = ControlTree(self.snapshot, NoContents(), self.errors)  # type: ignore[arg-type]  # never asked
                plain = plain_reads(self.core, chunk_cache)
                reads = ImageReads(self.layout, plain, self.errors, self.metadata_reads.append)
                self.driver = KernelDriver(self.device, self.core, reads, control, 0, 0)
                await self.driver.run()
                nursery.cancel_scope.cancel()

        trio.run(main)

    def requests(self) -> int:
        """How many the kernel has sent since the mount."""
        assert self.driver is not None
        return sum(int(counter.value) for counter in self.driver._requests.values())

    def store_chunks(self, is_left_out: npt.NDArray[np.bool_] | None = None) -> int:
        """Push all chunks without the files of `is_left_out`, by node; returns how many bytes were taken."""
        taken = 0
        for chunk in range(self.snapshot.chunk_count):
            extents = self.table.of_chunk(chunk)
            if is_left_out is not None:
                extents = extents[~is_left_out[extents.nodes]]
            taken += self.pages.store(extents, memoryview(self.source.fetch_chunk(chunk)), extents.offsets)
        return taken

    def close(self) -> None:
        self.pages.close()
        self.buffer_pool.close()
        os.close(self._image_file)


@contextmanager
def image_mount_of(packed: PackedDataset, folder: Path) -> Iterator[ImageMount]:
    """Skipped where the kernel cannot mount an EROFS file."""
    fuse = folder / "fuse"
    fuse.mkdir(parents=True)
    device = mount_device(str(fuse), "packed")
    mount = ImageMount(folder, packed, device)
    server = threading.Thread(target=mount.serve, daemon=True)
    server.start()
    try:
        with mounted_image(mount.image_path, mount.path):
            yield mount
    finally:
        mount.close()
        clear(fuse)
        server.join(20)
        os.close(device)
