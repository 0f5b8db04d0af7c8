"""The EROFS image as a file of the mount: which bytes of it are metadata, zeros, and parts of files. No I/O.

The kernel mounts EROFS on this file (docs/reference/erofs-image.md). It is in the root, where it hides an entry of the
dataset with its name, and is not listed: EROFS covers the root.
"""

import stat
from bisect import bisect_right
from typing import NamedTuple

from dieselfs.limits import READ_BYTES_MAX
from dieselfs.snapshot.erofs_files import BLOCK_BYTES
from dieselfs.snapshot.erofs_image import ErofsImage
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.reading.core import CONTROL_INODE, Attributes

IMAGE_NAME = b"image"
IMAGE_INODE = CONTROL_INODE - 1
"""Larger than the inodes of a dataset."""
_IMAGE_MODE = stat.S_IFREG | 0o400
_ZEROS = memoryview(bytes(READ_BYTES_MAX))


class ImagePart(NamedTuple):
    """A part of one read of the image: `length` bytes from `start` of the file `node`; or `content`, for node -1."""

    node: int
    start: int
    length: int
    content: memoryview = _ZEROS[:0]


class ImageLayout:
    """Safe to share between threads, except `is_opening`: while it is set, the image lists the control folder, which
    the kernel must look up once to mount on it.
    """

    def __init__(self, snapshot: Snapshot, image: ErofsImage) -> None:
        self.snapshot = snapshot
        self.image = image
        self.is_opening = False
        self._metadata = image.metadata.data.toreadonly()
        self._opening = image.opening.data.toreadonly()
        self._blocks = image.blocks.data
        self._nodes = image.nodes.data

    def attributes(self) -> Attributes:
        """The attributes of the image."""
        updated_ns = self.snapshot.header.updated_ns
        return Attributes(IMAGE_INODE, _IMAGE_MODE, self.image.size_bytes, updated_ns)

    def parts(self, offset: int, size: int) -> list[ImagePart]:
        """The parts of the image that answer a read; together, `min(size, size of the image - offset)` bytes."""
        end = min(offset + size, self.image.size_bytes)
        parts = self._metadata_parts(offset, end)
        position = offset + sum(part.length for part in parts)
        number = bisect_right(self._blocks, position // BLOCK_BYTES) - 1
        while position < end:
            if number >= 0:
                node, start = self._nodes[number], self._blocks[number] * BLOCK_BYTES
                length = min(start + self.snapshot.size(node), end) - position
                if length > 0:
                    parts.append(ImagePart(node, position - start, length))
                    position += length
            number += 1
            following = end
            if number < len(self._blocks):
                following = min(self._blocks[number] * BLOCK_BYTES, end)
            while position < following:
                length = min(following - position, len(_ZEROS))
                parts.append(ImagePart(-1, 0, length, _ZEROS[:length]))
                position += length
        return parts

    def _metadata_parts(self, offset: int, end: int) -> list[ImagePart]:
        first = self.image.opening_offset
        pieces = [(0, self._metadata)]
        if self.is_opening:
            last = first + BLOCK_BYTES
            pieces = [(0, self._metadata[:first]), (first, self._opening), (last, self._metadata[last:])]
        chosen = [piece[max(offset - start, 0) : max(end - start, 0)] for start, piece in pieces]
        return [ImagePart(-1, 0, len(piece), piece) for piece in chosen if len(piece)]
