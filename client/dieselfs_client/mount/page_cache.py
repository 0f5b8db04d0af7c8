"""The kernel's page cache of one mount: puts bytes of files into it before anybody reads them, and drops them again.

This module calls the kernel, and blocks: the kernel may wait for a page that a reader has locked, and for an answer to
a lookup. So it must never be called by the thread that answers the kernel's requests.

Pages are stored with FUSE_NOTIFY_STORE, which takes only inodes that the kernel knows: from a lookup, or from a
listing of their folder. They are dropped with posix_fadvise(2), not with FUSE_NOTIFY_INVAL_INODE: that also forgets the
attributes, and the next read of each file would cost a request (70 us instead of 6).
"""

import errno
import os
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from dieselfs.errors import MountError
from dieselfs.meta.snapshot import Snapshot
from dieselfs_client.mount import kernel_protocol as protocol
from dieselfs_client.pieces import PAGE_BYTES, Pieces

LISTING_WORTH = 8
"""A folder is listed to make some of its files known when they are one in so many of it; else each is looked up."""

_GONE = frozenset({errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED, errno.EBADF})


class PageCache:
    """Used from one thread at a time. `device` is the connection's `/dev/fuse`, which the caller closes after the last
    use. Methods raise MountError once the mount is gone.
    """

    def __init__(self, device: int, mountpoint: str, snapshot: Snapshot) -> None:
        self._device = device
        self._root = os.fsencode(mountpoint)
        self._snapshot = snapshot
        self._listed: set[int] = set()

    def store(self, pieces: Pieces, payload: memoryview, starts: npt.NDArray[np.int64]) -> int:
        """Store pieces; the bytes of piece `i` begin at `starts[i]` in `payload`. Returns how many bytes were taken.

        Files that the kernel does not know are made known first. A file that cannot be is left out, and so are the
        parts of a page at either end of a piece: whoever reads them asks.
        """
        first = -(-pieces.places // PAGE_BYTES) * PAGE_BYTES
        ends = pieces.places + pieces.lengths
        last = np.where(ends < pieces.sizes, ends // PAGE_BYTES * PAGE_BYTES, ends)
        chosen = np.flatnonzero(last > first)
        lengths = (last - first)[chosen]
        begins = (starts + first - pieces.places)[chosen]
        headers = protocol.encode_stores(pieces.nodes[chosen] + 1, first[chosen], lengths)
        slices = [
            payload[begin : begin + length]
            for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)
        ]
        unknown = self._store(headers, slices, range(len(slices)))
        if unknown:
            self._make_known(pieces.nodes[chosen[unknown]])
            unknown = self._store(headers, slices, unknown)
        return int(lengths.sum()) - int(lengths[unknown].sum())

    def _store(self, headers: list[bytes], slices: list[memoryview], chosen: Iterable[int]) -> list[int]:
        """Returns which of the chosen the kernel does not know."""
        device, write, unknown = self._device, os.writev, []
        for index in chosen:
            try:
                write(device, (headers[index], slices[index]))
            except OSError as error:
                if error.errno in _GONE:
                    raise MountError(f"page cache: {error.strerror}") from None
                unknown.append(index)
        return unknown

    def _make_known(self, nodes: npt.NDArray[np.int64]) -> None:
        """Have the kernel ask for these files: by a listing where many of a folder are wanted, else one by one."""
        snapshot = self._snapshot
        by_folder: dict[int, list[int]] = {}
        for node in nodes.tolist():
            by_folder.setdefault(snapshot.parent(node), []).append(node)
        for folder, files in by_folder.items():
            is_worth = len(files) * LISTING_WORTH >= len(snapshot.children(folder))
            if is_worth and folder not in self._listed:
                # The kernel keeps the listing: a second one would not reach us, and make nothing known.
                self._listed.add(folder)
                with suppress(OSError), os.scandir(self._path(folder)) as entries:
                    for _ in entries:
                        pass
            else:
                for node in files:
                    with suppress(OSError):
                        os.stat(self._path(node), follow_symlinks=False)

    def drop(self, nodes: npt.NDArray[np.integer]) -> None:
        """Give back the pages of files. What somebody has mapped, or reads at this moment, stays."""
        for node in nodes.tolist():
            try:
                descriptor = os.open(self._path(node), os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if error.errno in _GONE:
                    raise MountError(f"page cache: {error.strerror}") from None
                continue
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def _path(self, node: int) -> bytes:
        return self._root + b"/" + self._snapshot.path(node)
