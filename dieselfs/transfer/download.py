"""Downloads a file or a folder of a dataset: each chunk is fetched once, in storage order. This module writes files.

Existing files with the same size and time are skipped, so the same command continues an interrupted download. Damaged
files are reported, and all others are written. Memory is bounded: one payload per worker.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

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
from dieselfs.transfer.spreading import Spread, in_threads

Content = bytes | memoryview


def is_there(status: os.stat_result | None, stored: Stat) -> bool:
    """Whether the destination has this file already, by type, size and time."""
    return (
        status is not None
        and stat.S_ISREG(status.st_mode)
        and (status.st_size, status.st_mtime_ns) == (stored.size, stored.mtime_ns)
    )


@dataclass
class _Spanning:
    """A file of several extents, which different workers may write.

    `aside` is the name of the unfinished file; None if nothing is to be written, and afterwards.
    """

    left_bytes: int
    aside: bytes | None


class TreeDownload:
    """One download, by `run`. `report` has its progress, for any thread."""

    def __init__(
        self,
        chunks: ServerSource,
        node: int,
        folder: bytes,
        name: bytes = b"",
        spread: Spread = in_threads,
        is_forced: bool = False,
        report: TransferReport | None = None,
        is_preserving: bool = False,
        selected: Numbers | None = None,
    ) -> None:
        """The content of the folder `node` is written to `folder`, or the file `node` as `name` in `folder`.

        `spread`: over the workers that fetch and write. `is_forced`: existing files are written again. `report`: of
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
        self._spread = spread
        self._is_forced = is_forced
        self._steps, self._is_calling = 0, False
        self._destination: Destination
        self._spanning: dict[int, _Spanning] = {}
        self._failed_folders: set[int] = set()
        self.report.found_files += self._order.entries
        self.report.found_bytes += self._order.total_bytes
        self.report.is_all_found = True

    def run(self) -> TransferReport:
        """Returns when all files are written or have failed.

        Raises errors that end the whole download (Unavailable, AccessDenied, StorageFull). Then, and when
        interrupted, every file is whole or as it was, and the next run continues.
        """
        is_new = not os.path.isdir(self.folder)
        self._destination = destination = open_destination(self.folder, self._permissions)
        try:
            self._make_folders(destination)
            for node in self._order.empty_files.tolist():
                if not self._is_skipped(destination, node, self.report):
                    self._write_whole(destination, node, b"", self.report)
            has_many = len(self._order.starts) > 2
            (self._spread if has_many else in_threads)(self)
            self._make_links(destination)
            self._finish_folders(destination, is_new)
        finally:
            for node in self._spanning:
                self._discard(node)
            destination.close()
        return self.report

    @property
    def place(self) -> bytes:
        return self.folder

    def pulse(self) -> tuple[int, bool]:
        return self._steps, self._is_calling

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
                self._failed_folders.add(node)
                self._fail(node, error, self.report)

    def _make_links(self, destination: Destination) -> None:
        """After all files, so no file is written through a link of the dataset."""
        for node in self._order.links.tolist():
            mtime_ns = self.snapshot.stat(node).mtime_ns
            try:
                destination.make_link(self.relative(node), self.snapshot.target(node), mtime_ns)
                self.report.done_files += 1
            except (OSError, DieselfsError) as error:
                self._fail(node, error, self.report)

    def _finish_folders(self, destination: Destination, is_new: bool) -> None:
        """The deepest first, because finishing a folder changes nothing above it."""
        for node in reversed(self._order.folders.tolist()):
            path = self.relative(node)
            if node in self._failed_folders:
                continue
            if not path and not is_new:  # the user's folder keeps its mode
                self.report.skip(0, is_folder=True)
                continue
            try:
                destination.finish_folder(path, self.snapshot.stat(node))
                self.report.done_files += 1
            except (OSError, DieselfsError) as error:
                self._fail(node, error, self.report)

    # -- files -------------------------------------------------------------------------------------------

    def units(self) -> Iterator[Sequence[Any]]:
        """For each chunk, its positions in the order, and the unfinished files for those that span chunks."""
        snapshot, owners = self.snapshot, self._order.owners
        lengths = snapshot.column("extent_lengths")[self._order.extents]
        is_part = lengths != snapshot.column("sizes")[owners]
        for start, stop in pairwise(self._order.starts):
            begun = []
            for node in dict.fromkeys(owners[start:stop][is_part[start:stop]].tolist()):
                if node not in self._spanning:
                    self._spanning[node] = _Spanning(snapshot.size(node), self._begin(node))
                if (aside := self._spanning[node].aside) is not None:
                    begun.append((node, aside))
            yield start, stop, begun

    def work(self, units: Iterator[Sequence[Any]]) -> Iterator[Any]:
        """The results are counts and failures, and of each part of a file, `(node, bytes, reason, is_damaged)`."""
        with closing(open_destination(self.folder, self._permissions)) as destination:
            for start, stop, begun in units:
                yield self._write_chunk(destination, range(start, stop), dict(begun))

    def _write_chunk(self, destination: Destination, positions: range, begun: dict[int, bytes]) -> Any:
        """Fetch the missing extents of a chunk and write them."""
        report, parts = TransferReport(), []
        missing, rows = [], slice(positions.start, positions.stop)
        nodes = self._order.owners[rows].tolist()
        for node, extent in zip(nodes, self.snapshot.extent_refs(self._order.extents[rows]), strict=True):
            self._steps += 1
            if extent.length == self.snapshot.size(node):
                is_missing = not self._is_skipped(destination, node, report)
            else:
                is_missing = node in begun
            if is_missing:
                missing.append((node, extent))
        contents: Sequence[Content | DieselfsError] = ()
        if missing:
            self._is_calling = True
            contents = self._fetch(missing[0][1].chunk, [extent for _, extent in missing])
            self._is_calling = False
        for (node, extent), content in zip(missing, contents, strict=True):
            self._steps += 1
            if node in begun:
                aside = begun[node]
                parts.append((node, *self._write_part(destination, node, aside, extent.place, content)))
            elif isinstance(content, DieselfsError):
                self._fail(node, content, report)
            else:
                self._write_whole(destination, node, content, report)
        return report.counts(), report.failures, parts

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

    def _is_skipped(self, destination: Destination, node: int, report: TransferReport) -> bool:
        """Whether nothing is to be written for a file: it exists already, or its path cannot be reached."""
        stored = self.snapshot.stat(node)
        try:
            if self._is_forced or not is_there(destination.status(self.relative(node)), stored):
                return False
            report.skip(stored.size, is_folder=False)
        except (OSError, DieselfsError) as error:
            self._fail(node, error, report)
        return True

    def _write_whole(
        self, destination: Destination, node: int, content: Content, report: TransferReport
    ) -> None:
        try:
            destination.write_file(self.relative(node), content, self.snapshot.stat(node))
        except (OSError, DieselfsError) as error:
            self._fail(node, error, report)
            return
        report.done_files += 1
        report.done_bytes += len(content)

    # -- files that span chunks: begun and finished by one process, written by any -------------------------

    def _begin(self, node: int) -> bytes | None:
        """The name of the unfinished file for the extents of `node`; None if nothing is to be written."""
        end_bytes = 0
        for extent in self.snapshot.extents(node):
            if extent.place != end_bytes:
                break
            end_bytes += extent.length
        if end_bytes != self.snapshot.size(node):
            self._fail(node, Damaged("its extents do not cover the file"), self.report)
        elif not self._is_skipped(self._destination, node, self.report):
            try:
                return self._destination.begin_file(self.relative(node))
            except (OSError, DieselfsError) as error:
                self._fail(node, error, self.report)
        return None

    def _write_part(
        self, destination: Destination, node: int, aside: bytes, place: int, content: Content | DieselfsError
    ) -> tuple[int, str, bool]:
        """`(bytes, reason, is_damaged)`: what is written, or why not. Raises StorageFull."""
        try:
            if isinstance(content, DieselfsError):
                raise content
            destination.write_extent(self.relative(node), aside, content, place)
        except StorageFull:
            raise
        except (OSError, DieselfsError) as error:
            return 0, reason_of(error), isinstance(error, Damaged)
        return len(content), "", False

    def finish(self, result: Any) -> None:
        counts, failures, parts = result
        self.report.add(counts, failures)
        for node, written, reason, is_damaged in parts:
            file = self._spanning[node]
            if file.aside is None:  # another part has failed
                continue
            file.left_bytes -= written
            self.report.done_bytes += written
            try:
                if reason:
                    raise (Damaged if is_damaged else DieselfsError)(reason)
                if file.left_bytes == 0:
                    path, status = self.relative(node), self.snapshot.stat(node)
                    self._destination.finish_file(path, file.aside, status)
                    file.aside = None
                    self.report.done_files += 1
            except (OSError, DieselfsError) as error:
                self._discard(node)
                self._fail(node, error, self.report)

    def _discard(self, node: int) -> None:
        """Remove the unfinished file of `node`, if there is one."""
        file = self._spanning[node]
        if file.aside is not None:
            self._destination.discard_file(self.relative(node), file.aside)
            file.aside = None

    def _fail(self, node: int, error: OSError | DieselfsError, report: TransferReport) -> None:
        """Record the failure of a path. Raises errors that affect all other paths too."""
        if isinstance(error, StorageFull):
            raise error
        report.damaged_files += isinstance(error, Damaged)
        report.fail(printable(self.snapshot.path(node)), reason_of(error))


def reason_of(error: OSError | DieselfsError) -> str:
    """Why a path could not be written."""
    if isinstance(error, DieselfsError):
        return str(error)
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "a link or a file exists where a folder must be"
    if error.errno == errno.EISDIR:
        return "a folder with this name exists"
    return error.strerror or str(error)
