"""Page push into the EROFS image of a mount: the pages of many files with one notice.

The files of a chunk are one range of the image, except tripwires. EROFS keeps a copy of each page that was read;
`uncover` drops it as well. As `page_cache`, this module blocks, and must not run in the thread that answers the kernel.
"""

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.prefetch.extent_table import PAGE_BYTES, Extents
from dieselfs.snapshot.erofs_files import BLOCK_BYTES, FILE_GUARD_BLOCKS
from dieselfs.snapshot.erofs_image import PART_BYTES, ErofsImage
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.stored_image import METADATA_OFFSET
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.mount.kernel import protocol
from dieselfs_client.mount.kernel.page_cache import PageCache, whole_pages
from dieselfs_client.mount.kernel.page_helper import IMAGE_BASE, ZEROS_BASE
from dieselfs_client.mount.views.image_layout import IMAGE_INODE

_PIECES_MAX = 500
"""Extents of one notice that do not follow each other in a payload. Each takes two of the 1,024 buffers of `writev`."""


class ImagePages(PageCache):
    """As `PageCache`, for a mount that is covered by EROFS on `mountpoint`. `image_path`: the image on the mount that
    it covers, with the device.
    """

    def __init__(
        self,
        device: int,
        mountpoint: str,
        snapshot: Snapshot,
        buffer_pool: BufferPool,
        image: ErofsImage,
        image_file: int,
        image_path: str,
        workers: int = 1,
    ) -> None:
        super().__init__(device, mountpoint, snapshot, buffer_pool, image_file, workers)
        self.image = image
        self._image_path = image_path.encode("utf-8", "surrogateescape") + b"\0"
        self._sizes = snapshot.column("sizes")
        self._blocks = image.first_blocks
        if not len(self._blocks):
            self._blocks = np.zeros(len(snapshot), np.uint32)
            self._blocks[image.nodes] = image.blocks

    def _places(self, nodes: npt.NDArray[np.integer]) -> Numbers:
        """Where files begin in the image."""
        places: Numbers = self._blocks[nodes].astype(np.int64) * BLOCK_BYTES
        return places

    def store(self, extents: Extents, payload: memoryview, starts: npt.NDArray[np.int64]) -> int:
        chosen, firsts, lengths = whole_pages(extents)
        if not len(chosen):
            return 0
        places = self._places(extents.nodes[chosen]) + firsts
        with self._placed(payload) as place:
            begins = starts[chosen] + firsts - extents.places[chosen] + place
            return self._store_pieces(places, begins, lengths)

    def _store_pieces(self, places: Numbers, begins: Numbers, lengths: Numbers) -> int:
        """Store bytes at addresses of the helper, from page borders on; zeros fill the last page of each. Returns how
        many bytes the kernel took.
        """
        order = np.argsort(places)
        offsets, heads, pieces, counts = _notices(places[order], begins[order], lengths[order])
        sizes = np.add.reduceat(pieces[:, 1].astype(np.int64), heads)
        headers = protocol.encode_stores(np.full(len(offsets), IMAGE_INODE), offsets, sizes)
        if len(self._store(headers, pieces, counts)):  # the kernel has forgotten the inode
            self._order(b"L", self._image_path)
            if len(self._store(headers, pieces, counts)):
                return 0
        return int(lengths.sum())

    def drop(self, nodes: npt.NDArray[np.integer]) -> None:
        """Drop the pages of files from the image, except pages that are mapped or being read."""
        nodes = nodes[self._sizes[nodes] > 0]
        if not len(nodes):
            return
        nodes = nodes[np.argsort(self._blocks[nodes])]
        starts = self._places(nodes)
        ends = starts + _in_pages(self._sizes[nodes].astype(np.int64))
        is_apart = starts[1:] > ends[:-1] + FILE_GUARD_BLOCKS * BLOCK_BYTES
        heads = np.flatnonzero(np.concatenate([[True], is_apart]))
        lasts = np.append(heads[1:], len(starts)) - 1
        ranges = np.stack([starts[heads], ends[lasts] - starts[heads]], axis=1)
        self._order(b"A", self._image_path, ranges.astype(np.uint64).tobytes())

    def _files_of(self, nodes: npt.NDArray[np.integer], offsets: Numbers) -> tuple[bytes, Numbers]:
        return self._image_path * len(nodes), self._places(nodes) + offsets

    def uncover(self, nodes: npt.NDArray[np.integer]) -> None:
        self.drop(nodes)
        super().drop(nodes)

    def store_metadata(self, offset: int) -> None:
        """Store the part of the metadata area, of PART_BYTES, that begins at `offset`. Raises Damaged as
        `ErofsImage.fill`.
        """
        length = min(PART_BYTES, len(self.image.metadata) - offset)
        self.image.fill(offset, offset + length)
        address = IMAGE_BASE + METADATA_OFFSET + offset
        self._store_pieces(*(np.array([number]) for number in (offset, address, length)))

    def close_root(self) -> None:
        """Drop the listing of the root, which had the control folder."""
        self._order(b"D", self._root + b"\0")


def _in_pages(lengths: Numbers) -> Numbers:
    return -(-lengths // PAGE_BYTES) * PAGE_BYTES


def _notices(
    places: Numbers, begins: Numbers, lengths: Numbers
) -> tuple[Numbers, Numbers, npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """As few notices as possible for bytes that belong to ascending `places` of the image.

    Returns the offset of each notice in the image, its first piece, all pieces, and how many each notice has.
    """
    padding = _in_pages(lengths) - lengths
    is_joined = places[1:] == (places + lengths + padding)[:-1]
    is_one_piece = is_joined & (padding[:-1] == 0) & (begins[1:] == (begins + lengths)[:-1])
    heads = np.flatnonzero(np.concatenate([[True], ~is_one_piece]))
    lasts = np.append(heads[1:], len(places)) - 1
    # Notices begin where the image has a gap, and after _PIECES_MAX pieces.
    runs = np.cumsum(np.concatenate([[0], ~is_joined]))[heads]
    in_run = np.arange(len(heads)) - np.searchsorted(runs, runs)
    is_first = (in_run % _PIECES_MAX) == 0
    pieces = np.empty((len(heads), 2, 2), np.uint64)
    pieces[:, 0, 0], pieces[:, 0, 1] = begins[heads], np.add.reduceat(lengths, heads)
    pieces[:, 1, 0], pieces[:, 1, 1] = ZEROS_BASE, padding[lasts]
    is_used = pieces[:, :, 1] > 0
    notices = np.cumsum(is_first) - 1
    counts = np.bincount(notices, is_used.sum(axis=1)).astype(np.uint32)
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    return places[heads[is_first]], firsts, pieces[is_used], counts
