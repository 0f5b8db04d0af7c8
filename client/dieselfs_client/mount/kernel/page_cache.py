"""Page push: stores files of one mount in the kernel's page cache before they are read, and drops them again.

This module starts a process (`page_helper`), and blocks: the kernel may wait for a page that a reader has locked, and
for the reply to a lookup. So the thread that answers the kernel's requests must never call it.

Pages are stored with FUSE_NOTIFY_STORE, which takes only inodes that the kernel knows: from a lookup, or from a
listing of their folder. They are dropped with posix_fadvise(2), not with FUSE_NOTIFY_INVAL_INODE: that also drops the
attributes, and the next read of each file would take a request (70 us instead of 6).
"""

import os
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from threading import Lock, get_ident

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers, distinct
from dieselfs.errors import MountError
from dieselfs.prefetch.extent_table import PAGE_BYTES, Extents
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.mount.kernel import page_helper, protocol
from dieselfs_client.mount.kernel.page_helper import LENGTH, read_exactly

PAGE_HELPER_END_S = 5.0
"""The page helper is killed when it does not exit within this time."""
PAGE_HELPER_ORDER_S = 45
"""The page helper is killed when one order takes longer. A locked page that it waits for is free after 30 s, when the
read of the page has failed.
"""
PAGE_HELPER_STARTS_MAX = 16
"""After this many starts, the mount continues without a page helper."""

_TIME = struct.Struct("@ll")  # struct timeval: seconds, microseconds
LISTING_WORTH = 24
"""Listing this many entries of a folder takes as long as one lookup. So files are looked up one by one until they are
one in this many of their folder. Then the folder is listed, after which the kernel knows all its files.
"""


class PageCache:
    """Used from at most `workers` threads. What it knows of folders may be out of date, as the kernel may forget them.
    `device` is the connection's `/dev/fuse`, which the caller closes after `close`.

    Methods raise MountError when the kernel has ended the connection, or when the helper hangs or died too often.
    """

    def __init__(
        self,
        device: int,
        mountpoint: str,
        snapshot: Snapshot,
        buffer_pool: BufferPool,
        image_file: int | None = None,
        workers: int = 1,
    ) -> None:
        """Payloads in the `buffer_pool` are not copied. Its slots have room for the largest chunk. `image_file`: the
        descriptor of a stored image, for `ImagePages`; the caller closes it after `close`.

        Each of the `workers` starts a helper at its first order, if all others are busy.
        """
        self._device = device
        self._buffer_pool = buffer_pool
        self._image_file = image_file
        self._copy = buffer_pool.take(largest_payload_bytes(snapshot))  # for payloads from elsewhere
        self._root = os.fsencode(mountpoint) + b"/"
        self._snapshot = snapshot
        self._parents = snapshot.column("parents")
        self._listed: set[int] = set()
        self._found_known: set[int] = set()  # folders whose files the kernel knew before a push
        self._looked_up: Counter[int] = Counter()  # files, by their folders
        self._copying = Lock()  # guards _copy, during a push
        self._lock = Lock()  # guards the ones below
        self._idle: list[_Helper] = []
        self._starts = 0
        self._starts_max = PAGE_HELPER_STARTS_MAX + workers - 1
        self._storing: dict[int, memoryview] = {}  # payloads, by thread
        self._abandoned: list[memoryview] = []

    def moved(self, mountpoint: str) -> None:
        """The mount is on this path now. May be called in any thread."""
        self._root = os.fsencode(mountpoint) + b"/"

    def store(self, extents: Extents, payload: memoryview, starts: npt.NDArray[np.int64]) -> int:
        """Store extents; the bytes of extent `i` begin at `starts[i]` in `payload`, which is no larger than the largest
        chunk. Returns how many bytes the kernel took.

        Files that the kernel does not know are looked up or listed first. A file for which this fails is omitted, as
        are partial pages at the ends of an extent: reads of them go through the daemon.
        """
        chosen, firsts, lengths = whole_pages(extents)
        nodes = extents.nodes[chosen]
        headers = protocol.encode_stores(nodes + 1, firsts, lengths)
        with self._placed(payload) as place:
            begins = starts[chosen] + firsts - extents.places[chosen] + place
            places = np.stack([begins, lengths], axis=1).astype(np.uint64)
            self._make_known(self._unknown_nodes(nodes, headers, places))
            unknown = self._store(headers, places)
            if len(unknown):  # the kernel has forgotten these inodes
                self._forget(nodes[unknown])
                self._make_known(nodes[unknown])
                unknown = unknown[self._store(headers[unknown], places[unknown])]
        return int(lengths.sum()) - int(lengths[unknown].sum())

    def _store(
        self,
        headers: npt.NDArray[np.void],
        pieces: npt.NDArray[np.uint64],
        counts: npt.NDArray[np.uint32] | None = None,
    ) -> npt.NDArray[np.uint32]:
        """Returns the numbers of those whose inode the kernel does not know. `pieces`: shape (pieces, 2), address and
        length; `counts`: of the pieces of each notice, by default one.
        """
        if not len(headers):
            return np.empty(0, np.uint32)
        if counts is None:
            counts = np.ones(len(headers), np.uint32)
        parts = headers.tobytes(), counts.tobytes(), pieces.tobytes()
        return self._order(b"S", LENGTH.pack(len(headers)), *parts)

    def _unknown_nodes(
        self,
        nodes: npt.NDArray[np.int64],
        headers: npt.NDArray[np.void],
        places: npt.NDArray[np.uint64],
    ) -> npt.NDArray[np.int64]:
        """The files that the kernel probably does not know. A test of one takes half as long as storing it. So in each
        new folder, only one file is tested, which stores it if the kernel knows it.
        """
        folders, samples, which = np.unique(self._parents[nodes], return_index=True, return_inverse=True)
        tried = np.flatnonzero(
            [folder not in self._listed and folder not in self._found_known for folder in folders.tolist()]
        )
        is_unknown = np.zeros(len(folders), np.bool_)
        is_unknown[tried[self._store(headers[samples[tried]], places[samples[tried]])]] = True
        self._found_known.update(folders[tried][~is_unknown[tried]].tolist())
        return nodes[is_unknown[which]]

    def _forget(self, nodes: npt.NDArray[np.int64]) -> None:
        """Note that the kernel has forgotten files: after a listing, or after they were looked up."""
        for folder in distinct(self._parents[nodes]).tolist():
            self._listed.discard(folder)
            self._found_known.discard(folder)
            self._looked_up[folder] = 0

    def _make_known(self, nodes: npt.NDArray[np.int64]) -> None:
        """Make the kernel look these files up: one by one, or by a listing of their folder where that is faster."""
        snapshot = self._snapshot
        by_folder: dict[int, list[int]] = {}
        for node in nodes.tolist():
            by_folder.setdefault(snapshot.parent(node), []).append(node)
        folders, single = [], []
        for folder, files in by_folder.items():
            self._looked_up[folder] += len(files)
            is_worth = self._looked_up[folder] * LISTING_WORTH >= len(snapshot.children(folder))
            if is_worth and folder not in self._listed:
                # The kernel caches the listing: a second one would send no request.
                self._listed.add(folder)
                folders.append(folder)
            else:
                single += files
        self._order(b"F", self._paths(folders))
        self._order(b"L", self._paths(single))

    def uncover(self, nodes: npt.NDArray[np.integer]) -> None:
        """Drop the pages of tripwires wherever the kernel has them, so that the next read of one reaches the daemon."""
        self.drop(nodes)

    def drop(self, nodes: npt.NDArray[np.integer]) -> None:
        """Drop the pages of files, except pages that are mapped or being read."""
        self._order(b"D", self._paths(nodes.tolist()))

    def drop_parts(self, extents: Extents) -> None:
        """Drop the pages of extents, except pages that are mapped or being read."""
        for node in distinct(extents.nodes).tolist():
            of_file = extents[extents.nodes == node]
            path, places = self._files_of(np.array([node]), of_file.places)
            ranges = np.stack([places, of_file.lengths], axis=1)
            self._order(b"A", path, ranges.astype(np.uint64).tobytes())

    def reclaimed(self, extents: Extents, of_readers: bool = False) -> npt.NDArray[np.bool_]:
        """As `Pages.reclaimed`. False also if that is unknown: the file cannot be opened, or the helper just died."""
        chosen, firsts, lengths = whole_pages(extents)
        is_reclaimed = np.zeros(len(extents), np.bool_)
        if len(chosen):
            files_of = partial(PageCache._files_of, self) if of_readers else self._files_of
            paths, firsts = files_of(extents.nodes[chosen], firsts)
            ranges = np.stack([firsts, lengths], axis=1).astype(np.uint64)
            lost = self._order(b"R", LENGTH.pack(len(chosen)), ranges.tobytes(), paths)
            is_reclaimed[chosen[lost]] = True
        return is_reclaimed

    def _files_of(self, nodes: npt.NDArray[np.integer], offsets: Numbers) -> tuple[bytes, Numbers]:
        """The files whose pages hold those of `nodes` at these offsets, and the offsets in them."""
        return self._paths(nodes.tolist()), offsets

    def _paths(self, nodes: Iterable[int]) -> bytes:
        root, path = self._root, self._snapshot.path
        return b"".join([root + path(node) + b"\0" for node in nodes])

    # -- the helper --------------------------------------------------------------------------------------

    @contextmanager
    def _placed(self, payload: memoryview) -> Iterator[int]:
        """The offset of a payload in the memory shared with the helpers, during the block."""
        place, thread = self._buffer_pool.place(payload), get_ident()
        with self._copying if place is None else nullcontext():
            if place is None:
                assert self._copy is not None
                self._copy[: len(payload)] = payload
                place = self._buffer_pool.place(self._copy)
            assert place is not None
            self._storing[thread] = payload
            try:
                yield place
            finally:
                del self._storing[thread]

    def _order(self, kind: bytes, *parts: bytes) -> npt.NDArray[np.uint32]:
        """Send an order to the helper; returns the numbers of the items that failed."""
        if not any(parts):
            return np.empty(0, np.uint32)
        helper = self._taken()
        try:
            failed = helper.order(b"".join([kind, *parts]))
        except (OSError, EOFError):
            code = helper.close()
            if code is None:
                # The helper may still read this payload, so no slot of one must be reused.
                self._abandoned += [*self._storing.values()]
                self._starts = self._starts_max
            if code == page_helper.EXIT_GONE:
                raise MountError("page cache: the mount has ended") from None
            if self._starts >= self._starts_max:
                raise MountError(
                    "page cache: the page helper hangs or died too often; files are not pushed any more"
                ) from None
            return np.empty(0, np.uint32)  # reads of files that were not stored go through the daemon
        with self._lock:
            self._idle.append(helper)
        return failed

    def _taken(self) -> "_Helper":
        """An idle helper, or a new one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self._starts += 1
            try:
                return _Helper(self._device, self._buffer_pool, self._image_file)
            except OSError as error:  # then all reads go through the daemon
                reason = f"the page helper cannot be started: {error.strerror}"
                raise MountError(f"page cache: {reason}") from None

    def prepare(self) -> None:
        """Start a helper, if there is none: an order would wait for its interpreter."""
        with self._lock, suppress(OSError):  # an order reports it
            if not self._idle and not self._storing and self._starts < self._starts_max:
                self._idle.append(_Helper(self._device, self._buffer_pool, self._image_file))
                self._starts += 1

    def close(self) -> None:
        """End the helpers that carry out no order: they take 4 MB each. The next order starts another one."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._starts -= len(idle)
        for helper in idle:
            helper.close()


def whole_pages(extents: Extents) -> tuple[Numbers, Numbers, Numbers]:
    """The numbers of the extents that cover a whole page, or the end of a file, with the first byte in the file and the
    length of what they cover.
    """
    firsts = -(-extents.places // PAGE_BYTES) * PAGE_BYTES
    ends = extents.places + extents.lengths
    lasts = np.where(ends < extents.sizes, ends // PAGE_BYTES * PAGE_BYTES, ends)
    chosen = np.flatnonzero(lasts > firsts)
    return chosen, firsts[chosen], (lasts - firsts)[chosen]


def largest_payload_bytes(snapshot: Snapshot) -> int:
    """The largest payload of all chunks, at least a page."""
    return int(snapshot.column("chunk_payload_lengths").max(initial=PAGE_BYTES))


class _Helper:
    """The process, and the socket for its orders."""

    def __init__(self, device: int, buffer_pool: BufferPool, image_file: int | None) -> None:
        self._socket, theirs = socket.socketpair()
        for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, direction, _TIME.pack(PAGE_HELPER_ORDER_S, 0))
        descriptors = [theirs.fileno(), device, buffer_pool.descriptor]
        of_image = [] if image_file is None else [image_file]
        with theirs:
            # -S and -E: without site packages and environment it starts faster.
            command = [sys.executable, "-S", "-E", page_helper.__file__]
            command += map(str, [*descriptors, buffer_pool.length_bytes, *of_image])
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[*descriptors, *of_image]
            )

    def order(self, message: bytes) -> npt.NDArray[np.uint32]:
        """Raises OSError or EOFError when the helper is dead, or does not reply within PAGE_HELPER_ORDER_S."""
        self._socket.sendall(LENGTH.pack(len(message)) + message)
        (length,) = LENGTH.unpack(read_exactly(self._socket.fileno(), LENGTH.size))
        return np.frombuffer(read_exactly(self._socket.fileno(), length), np.uint32)

    def close(self) -> int | None:
        """Returns the exit code; None if the process has not ended after a kill."""
        self._socket.close()
        try:
            return self._process.wait(PAGE_HELPER_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                # It waits for a page, until the end of the mount.
                self._process.wait(PAGE_HELPER_END_S)
            return self._process.poll()
