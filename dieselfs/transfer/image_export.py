"""Writes a dataset, or a folder of one, as one EROFS image file. This module writes files.

Each chunk is fetched once, in storage order. The image is written beside its path and renamed when it is whole.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import numpy as np

from dieselfs.cache.policy import is_worth_whole
from dieselfs.columns import I64
from dieselfs.errors import AlreadyExists, DieselfsError, StorageFull
from dieselfs.names import printable
from dieselfs.snapshot.erofs_files import BLOCK_BYTES
from dieselfs.snapshot.erofs_image import ImageOwner, ImagePlan
from dieselfs.snapshot.reader import ROOT
from dieselfs.snapshot.storage_order import tree_order
from dieselfs.snapshot.stored_image import mapped_zeros
from dieselfs.sources.server import ServerSource
from dieselfs.transfer.destination import DISK_FULL, aside_name, write_at
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.spreading import Spread, in_threads

IMAGE_MODE = 0o666
"""Permission bits of the image file, without those of the umask."""


class ImageExport:
    """One export, by `run`. `report` has its progress, for any thread; it counts files when the image is whole.

    `path`: of the image, as bytes or text; `folder`: the node that becomes the root of the image.
    """

    def __init__(
        self, chunks: ServerSource, path: str | bytes, folder: int = ROOT, spread: Spread = in_threads
    ) -> None:
        """`spread`: over the workers that fetch and write. Raises InvalidInput if the image would be too large."""
        self.report = TransferReport()
        self._chunks = chunks
        self._snapshot = chunks.snapshot
        self._path = os.fsencode(path)
        self._spread = spread
        self._steps, self._is_calling = 0, False
        self._file = -1  # the image that is being written
        self._plan = ImagePlan(self._snapshot, ImageOwner(0, 0), folder)
        self._order = tree_order(self._snapshot, folder)
        self._places = np.empty(0, np.int64)  # of the extents, while it is written
        self.report.found_files = self._order.entries
        self.report.found_bytes = self._order.total_bytes
        self.report.is_all_found = True

    @property
    def size_bytes(self) -> int:
        """Size of the image file."""
        return self._plan.size_bytes

    def run(self, is_forced: bool = False) -> TransferReport:
        """Write the image; `is_forced`: replace an existing file.

        Raises AlreadyExists, Damaged (a chunk), Unavailable, StorageFull, or DieselfsError for a path that cannot be
        written. After an error and when interrupted, there is no new file, and an existing one is as it was.
        """
        if not is_forced and os.path.lexists(self._path):
            raise AlreadyExists(f"{printable(self._path)} exists; give -f to replace it")
        aside = os.path.join(os.path.dirname(self._path), aside_name())
        with self._errors():
            file = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, IMAGE_MODE)
            try:
                try:
                    self._write_metadata(file)
                    self._file = file
                    self._spread(self)
                    os.fsync(file)  # a power failure must not leave the name on an image with holes
                finally:
                    os.close(file)
                os.rename(aside, self._path)
            except BaseException:
                os.unlink(aside)
                raise
        self.report.done_files = self._order.entries
        return self.report

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, DieselfsError):
                raise
            where, reason = printable(self._path), os.strerror(error.errno or 0)
            if error.errno in DISK_FULL:
                raise StorageFull(
                    f"{where}: {reason}: the image needs up to {self.size_bytes} bytes; "
                    "free some space and run the same command again"
                ) from None
            raise DieselfsError(f"{where}: cannot be written: {reason}") from None

    @property
    def place(self) -> bytes:
        return self._path

    def pulse(self) -> tuple[int, bool]:
        return self._steps, self._is_calling

    def units(self) -> Iterator[Sequence[int]]:
        """The positions of each chunk in the order."""
        return pairwise(self._order.starts)

    def work(self, units: Iterator[Sequence[int]]) -> Iterator[int]:
        """The results are numbers of bytes."""
        for start, stop in units:
            yield self._write_chunk(slice(start, stop))

    def finish(self, result: int) -> None:
        self.report.done_bytes += result

    def _write_metadata(self, file: int) -> None:
        image = self._plan.write(partial(mapped_zeros, file))
        starts = image.first_blocks[self._order.owners].astype(np.int64) * BLOCK_BYTES
        self._places = starts + self._snapshot.column("extent_places").view(I64)[self._order.extents]
        # These columns are where the data of files will be, which has zeros between files.
        image.nodes[:] = image.blocks[:] = 0
        os.ftruncate(file, self.size_bytes)

    def _write_chunk(self, positions: slice) -> int:
        """Fetch the extents of a chunk, at positions of the order, and write each in its place."""
        extents = self._snapshot.extent_refs(self._order.extents[positions])
        chunk, total_bytes = extents[0].chunk, sum(extent.length for extent in extents)
        self._is_calling = True
        if is_worth_whole(total_bytes, self._snapshot.chunk_payload_length(chunk)):
            payload = memoryview(self._chunks.fetch_chunk(chunk))
            contents = [payload[extent.offset : extent.offset + extent.length] for extent in extents]
        else:
            contents = [memoryview(content) for content in self._chunks.fetch_extents(chunk, extents)]
        self._is_calling = False
        for content, place in zip(contents, self._places[positions].tolist(), strict=True):
            self._steps += 1
            write_at(self._file, content, place)
        return total_bytes
