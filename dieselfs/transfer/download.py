"""Downloads a file or a folder of a dataset: each chunk is fetched once, in storage order. This module starts threads.

Existing files with the same size and time are skipped, so the same command continues an interrupted download. Damaged
files are reported, and all others are written. Memory is bounded: one payload per thread.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Event, Lock

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.cache.policy import is_worth_whole
from dieselfs.errors import Damaged, DieselfsError, NotFound, StorageFull
from dieselfs.names import printable
from dieselfs.snapshot.reader import ExtentRef, Stat
from dieselfs.snapshot.storage_order import tree_order
from dieselfs.sources.server import ServerSource
from dieselfs.transfer.destination import PERMISSIONS_KEPT, Destination, open_destination, permissions_allowed
from dieselfs.transfer.report import TransferReport

Content = bytes | memoryview

DEFAULT_JOBS = 2
"""One thread fetches while another writes; more threads are slower."""


def is_there(status: os.stat_result | None, stored: Stat) -> bool:
    """Whether the destination has this file already, by type, size and time."""
    return (
        status is not None
        and stat.S_ISREG(status.st_mode)
        and (status.st_size, status.st_mtime_ns) == (stored.size, stored.mtime_ns)
    )


def in_threads(work: Callable[[Iterator[range]], None], starts: Sequence[int], jobs: int, name: str) -> None:
    """Call `work` in each of `jobs` threads. They share the ranges between `starts`, chunks of an order. After
    an error, which is raised, and after an interrupt, each ends with its chunk.
    """
    lock = Lock()  # guards the ranges
    ranges = pairwise(starts)
    is_ending = Event()

    def left() -> Iterator[range]:
        while not is_ending.is_set():
            with lock:
                found = next(ranges, None)
            if found is None:
                return
            yield range(*found)

    def loop() -> None:
        try:
            work(left())
        except BaseException:
            is_ending.set()
            raise

    with ThreadPoolExecutor(jobs, name) as threads:
        try:
            for future in [threads.submit(loop) for _ in range(jobs)]:
                future.result()
        finally:
            is_ending.set()


@dataclass
class _Spanning:
    """A file of several extents, which different threads may write.

    `aside` is the name of the unfinished file; None before, afterwards, and if nothing is to be written.
    """

    left_bytes: int
    is_begun: bool = False
    aside: bytes | None = None
    # Guards the three above; never taken while holding the lock of the download.
    lock: Lock = field(default_factory=Lock)


class TreeDownload:
    """One download, by `run`. `report` has its progress, for any thread."""

    def __init__(
        self,
        chunks: ServerSource,
        node: int,
        folder: bytes,
        name: bytes = b"",
        jobs: int = DEFAULT_JOBS,
        is_forced: bool = False,
        report: TransferReport | None = None,
        is_preserving: bool = False,
        selected: Numbers | None = None,
    ) -> None:
        """The content of the folder `node` is written to `folder`, or the file `node` as `name` in `folder`.

        `jobs`: threads that fetch and write. `is_forced`: existing files are written again. `report`: of
        the downloads before this one, to add to. `is_preserving`: permissions as stored, also those that the umask
        forbids. `selected`: as for `tree_order`.
        """
        self.report = report or TransferReport()
        self._chunks = chunks
        self.snapshot = chunks.snapshot
        self.node = node
        self.folder = folder
        self._permissions = PERMISSIONS_KEPT if is_preserving else permissions_allowed()
        self._name = name
        self._base_bytes = len(self.snapshot.path(node))
        self._order = tree_order(self.snapshot, node, selected)
        self._jobs = jobs
        self._is_forced = is_forced
        self._lock = Lock()  # guards the report and the two below
        self._spanning: dict[int, _Spanning] = {}
        self._failed_nodes: set[int] = set()
        self.report.found_files += self._order.entries
        self.report.found_bytes += self._order.total_bytes
        self.report.is_all_found = True

    def run(self) -> TransferReport:
        """Returns when all files are written or have failed.

        Raises errors that end the whole download (Unavailable, AccessDenied, StorageFull). Then, and when
        interrupted, every file is whole or as it was, and the next run continues.
        """
        is_new = not os.path.isdir(self.folder)
        destination = open_destination(self.folder, self._permissions)
        try:
            self._make_folders(destination)
            for node in self._order.empty_files.tolist():
                if not self._is_skipped(destination, node):
                    self._write_whole(destination, node, b"")
            in_threads(self._work, self._order.starts, self._jobs, "dieselfs-get")
            self._make_links(destination)
            self._finish_folders(destination, is_new)
        finally:
            for node, spanning in self._spanning.items():
                if spanning.aside is not None:
                    destination.discard_file(self.relative(node), spanning.aside)
            destination.close()
        return self.report

    def nodes(self) -> list[int]:
        """What is downloaded: folders, files and links."""
        order = self._order
        return sorted(
            {*np.concatenate((order.folders, order.links, order.empty_files, order.owners)).tolist()}
        )

    def relative(self, node: int) -> bytes:
        """The path of a node in the destination folder."""
        return self._name or self.snapshot.path(node)[self._base_bytes :].lstrip(b"/")

    # -- folders and links -------------------------------------------------------------------------------

    def _make_folders(self, destination: Destination) -> None:
        for node in self._order.folders.tolist():
            try:
                if path := self.relative(node):
                    destination.make_folder(path)
            except (OSError, DieselfsError) as error:
                self._fail(node, error)

    def _make_links(self, destination: Destination) -> None:
        """After all files, so no file is written through a link of the dataset."""
        for node in self._order.links.tolist():
            mtime_ns = self.snapshot.stat(node).mtime_ns
            try:
                destination.make_link(self.relative(node), self.snapshot.target(node), mtime_ns)
                self._count_written()
            except (OSError, DieselfsError) as error:
                self._fail(node, error)

    def _finish_folders(self, destination: Destination, is_new: bool) -> None:
        """The deepest first, because finishing a folder changes nothing above it."""
        for node in reversed(self._order.folders.tolist()):
            path = self.relative(node)
            if node in self._failed_nodes:
                continue
            if not path and not is_new:  # the user's folder keeps its mode
                self.report.skip(0, is_folder=True)
                continue
            try:
                destination.finish_folder(path, self.snapshot.stat(node))
                self._count_written()
            except (OSError, DieselfsError) as error:
                self._fail(node, error)

    # -- files -------------------------------------------------------------------------------------------

    def _work(self, chunks: Iterator[range]) -> None:
        """The loop of one thread."""
        with closing(open_destination(self.folder, self._permissions)) as destination:
            for positions in chunks:
                self._write_chunk(destination, positions)

    def _write_chunk(self, destination: Destination, positions: range) -> None:
        """Fetch the missing extents of a chunk and write them."""
        missing, rows = [], slice(positions.start, positions.stop)
        nodes = self._order.owners[rows].tolist()
        for node, extent in zip(nodes, self.snapshot.extent_refs(self._order.extents[rows]), strict=True):
            if extent.length == self.snapshot.size(node):
                is_missing = not self._is_skipped(destination, node)
            else:
                is_missing = self._is_extent_missing(destination, node)
            if is_missing:
                missing.append((node, extent))
        if not missing:
            return
        contents = self._fetch(missing[0][1].chunk, [extent for _, extent in missing])
        for (node, extent), content in zip(missing, contents, strict=True):
            if isinstance(content, DieselfsError):
                self._discard(destination, node)
                self._fail(node, content)
            elif extent.length == self.snapshot.size(node):
                self._write_whole(destination, node, content)
            else:
                self._write_extent(destination, node, extent.place, content)

    def _fetch(self, chunk: int, extents: Sequence[ExtentRef]) -> Sequence[Content | DieselfsError]:
        """The bytes of each extent, or its error. Raises Unavailable."""
        extent_bytes = sum(extent.length for extent in extents)
        if is_worth_whole(extent_bytes, self.snapshot.chunk_payload_length(chunk)):
            try:
                payload = memoryview(self._chunks.fetch_chunk(chunk))
                return [payload[extent.offset : extent.offset + extent.length] for extent in extents]
            except (Damaged, NotFound):
                pass  # some of the extents may still be whole
        return self._fetch_extents(chunk, extents)

    def _fetch_extents(self, chunk: int, extents: Sequence[ExtentRef]) -> Sequence[Content | DieselfsError]:
        try:
            return self._chunks.fetch_extents(chunk, extents)
        except NotFound as error:
            return [Damaged(f"the server has lost the chunk: {error}")] * len(extents)
        except Damaged as error:
            if len(extents) == 1:
                return [error]
            middle = len(extents) // 2
            return [
                *self._fetch_extents(chunk, extents[:middle]),
                *self._fetch_extents(chunk, extents[middle:]),
            ]

    def _is_skipped(self, destination: Destination, node: int) -> bool:
        """Whether nothing is to be written for a file: it exists already, or its path cannot be reached."""
        stored = self.snapshot.stat(node)
        try:
            if self._is_forced or not is_there(destination.status(self.relative(node)), stored):
                return False
        except (OSError, DieselfsError) as error:
            self._fail(node, error)
            return True
        with self._lock:
            self.report.skip(stored.size, is_folder=False)
        return True

    def _write_whole(self, destination: Destination, node: int, content: Content) -> None:
        try:
            destination.write_file(self.relative(node), content, self.snapshot.stat(node))
        except (OSError, DieselfsError) as error:
            self._fail(node, error)
            return
        self._count_written(len(content))

    # -- files that span chunks --------------------------------------------------------------------------

    def _is_extent_missing(self, destination: Destination, node: int) -> bool:
        """Whether extents of this file are to be written; its first extent begins the file."""
        with self._lock:
            spanning = self._spanning.setdefault(node, _Spanning(self.snapshot.size(node)))
        with spanning.lock:
            if not spanning.is_begun:
                spanning.is_begun = True
                spanning.aside = self._begin(destination, node)
            return spanning.aside is not None

    def _begin(self, destination: Destination, node: int) -> bytes | None:
        """The name of the unfinished file for the extents of `node`; None if nothing is to be written."""
        end_bytes = 0
        for extent in self.snapshot.extents(node):
            if extent.place != end_bytes:
                break
            end_bytes += extent.length
        if end_bytes != self.snapshot.size(node):
            self._fail(node, Damaged("its extents do not cover the file"))
        elif not self._is_skipped(destination, node):
            try:
                return destination.begin_file(self.relative(node))
            except (OSError, DieselfsError) as error:
                self._fail(node, error)
        return None

    def _write_extent(self, destination: Destination, node: int, place: int, content: Content) -> None:
        spanning, path = self._spanning[node], self.relative(node)
        aside = spanning.aside
        if aside is None:  # another extent has failed
            return
        try:
            destination.write_extent(path, aside, content, place)
            with spanning.lock:
                spanning.left_bytes -= len(content)
                if spanning.left_bytes == 0 and spanning.aside is not None:
                    destination.finish_file(path, aside, self.snapshot.stat(node))
                    spanning.aside = None
                    self._count_written()
        except (OSError, DieselfsError) as error:
            self._discard(destination, node)
            self._fail(node, error)
            return
        with self._lock:
            self.report.done_bytes += len(content)

    def _discard(self, destination: Destination, node: int) -> None:
        """Remove the unfinished file, if `node` has several extents."""
        if (spanning := self._spanning.get(node)) is not None:
            with spanning.lock:
                aside, spanning.aside = spanning.aside, None
            if aside is not None:
                destination.discard_file(self.relative(node), aside)

    # -- the report --------------------------------------------------------------------------------------

    def _count_written(self, size_bytes: int = 0) -> None:
        with self._lock:
            self.report.done_files += 1
            self.report.done_bytes += size_bytes

    def _fail(self, node: int, error: OSError | DieselfsError) -> None:
        """Record the first failure of a path. Raises errors that affect all other paths too."""
        if isinstance(error, StorageFull):
            raise error
        with self._lock:
            if node in self._failed_nodes:
                return
            self._failed_nodes.add(node)
            self.report.damaged_files += isinstance(error, Damaged)
            self.report.fail(printable(self.snapshot.path(node)), reason_of(error))


def reason_of(error: OSError | DieselfsError) -> str:
    """Why a path could not be written."""
    if isinstance(error, DieselfsError):
        return str(error)
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "a link or a file exists where a folder must be"
    if error.errno == errno.EISDIR:
        return "a folder with this name exists"
    return error.strerror or str(error)
