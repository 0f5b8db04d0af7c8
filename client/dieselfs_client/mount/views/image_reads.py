"""Reads of the EROFS image, through the read path of its files.

A read of the image names a range, and so files. The first file is one that a reader waits for; the others are the
kernel's read-ahead, and say nothing of a reader's position in a plan.
"""

import errno
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from dieselfs.errors import DieselfsError
from dieselfs_client.mount.reading.error_log import ErrorLog, Refused
from dieselfs_client.mount.reading.read_path import Buffers, ReadPath
from dieselfs_client.mount.views.image_layout import IMAGE_INODE, ImageLayout, ImagePart

REFUSED_MAX = 1024
"""Offsets of refused reads that are remembered."""


class ImageReads:
    """As `ReadPath`, also for the image. Used from one trio thread. `metadata_missed` gets the offset of each read of
    the metadata area.
    """

    def __init__(
        self, layout: ImageLayout, reads: ReadPath, errors: ErrorLog, metadata_missed: Callable[[int], None]
    ) -> None:
        self.metrics = reads.metrics
        self._layout = layout
        self._reads = reads
        self._errors = errors
        self._metadata_missed = metadata_missed
        self._filling = trio.CapacityLimiter(1)
        self._refused: OrderedDict[int, None] = OrderedDict()

    def at_once(self, inode: int, offset: int, size: int) -> Buffers | None:
        """As `ReadPath.at_once`. Raises Refused for an error of a file, which has been noted."""
        if inode != IMAGE_INODE:
            return self._reads.at_once(inode, offset, size)
        parts = self._layout.parts(offset, size)
        if offset < len(self._layout.image.metadata):
            self._metadata_missed(offset)
            if not self._layout.image.has(offset, offset + size):
                return None
        elif self._is_speculative(offset, parts):
            raise Refused(errno.EIO)
        buffers: Buffers = []
        is_whole, is_ahead = True, False
        for node, start, length, content in parts:
            if node < 0:
                buffers.append(content)
                continue
            with self._noted(node):
                found = self._reads.at_once(node + 1, start, length, is_ahead)
            is_ahead = True
            if found is None:
                is_whole = False
            else:
                buffers += found
        return buffers if is_whole else None

    def is_read_around(self, inode: int, offset: int, size: int) -> bool:
        """False: the kernel would ask for each page of the range, because EROFS waits for all of it."""
        return False

    def is_pushing(self) -> bool:
        """As `ReadPath.is_pushing`."""
        return self._reads.is_pushing()

    async def fetch(self, inode: int, offset: int, size: int) -> Buffers:
        """As `ReadPath.fetch`. Raises as `at_once`."""
        if inode != IMAGE_INODE:
            return await self._reads.fetch(inode, offset, size)
        image = self._layout.image
        if not image.has(offset, offset + size):
            await trio.to_thread.run_sync(image.fill, offset, offset + size, limiter=self._filling)
        parts = self._layout.parts(offset, size)
        files = [part for part in parts if part.node >= 0]
        for node, start, length, _ in files[1:]:
            with self._noted(node):
                self._reads.fetch_ahead(node + 1, start, length)
        buffers: Buffers = []
        for node, start, length, content in parts:
            if node < 0:
                buffers.append(content)
                continue
            with self._noted(node):
                buffers += await self._reads.fetch(node + 1, start, length)
        return buffers

    def _is_speculative(self, offset: int, parts: list[ImagePart]) -> bool:
        """Whether a read begins in the gap before a guarded file: no reader asks for that, so it is read-ahead.

        If it is refused, the file stays out of the page cache, and the kernel asks for it once a reader does. It could
        ask for the gap again with the file, so the same read is not refused twice.
        """
        if len(parts) < 2 or parts[0].node >= 0 or self._refused.pop(offset, 0) is None:
            return False
        self._refused[offset] = None
        if len(self._refused) > REFUSED_MAX:
            self._refused.popitem(last=False)
        return True

    @contextmanager
    def _noted(self, node: int) -> Iterator[None]:
        """Note an error under the path of its file, for the kernel names only the image."""
        try:
            yield
        except DieselfsError as error:
            raise Refused(self._errors.code(self._reads.core, "read", node + 1, error)) from None
