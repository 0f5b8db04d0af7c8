"""The parts of `dlcmd export` that formats share, and what writes images and folders. This module writes files and
starts a thread.
"""

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from dieselfs.arrays import Numbers
from dieselfs.dataset import Dataset
from dieselfs.errors import (
    EXIT_OK,
    EXIT_PARTIAL,
    AlreadyExists,
    DieselfsError,
    InvalidInput,
    NotFound,
    StorageFull,
)
from dieselfs.limits import CHUNK_TARGET_BYTES, MIB
from dieselfs.names import Location
from dieselfs.snapshot.reader import Snapshot, Stat
from dieselfs.snapshot.storage_order import StorageOrder, tree_order
from dieselfs.snapshot.subtree import listed_children
from dieselfs.transfer.destination import DISK_FULL, aside_name
from dieselfs.transfer.download import TreeDownload
from dieselfs.transfer.image_export import ImageExport
from dieselfs.transfer.report import TransferReport
from dieselfs.units import count, format_duration
from dieselfs_tools.archives.formats import STANDARD_OUTPUT
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.download import report_download
from dieselfs_tools.transfers.entries import extents
from dieselfs_tools.transfers.trees import selected_nodes
from dieselfs_tools.transfers.workers import in_processes

BATCH_BYTES = 16 * MIB
"""Contents that are fetched at once; a larger file is fetched extent by extent."""

BATCH_FILES = 4096


@dataclass(frozen=True, slots=True)
class ExportedEntry:
    """`path`: relative to the exported folder; `content`: of a file, or None if it is read by `EntryReader.extents`."""

    node: int
    path: bytes
    status: Stat
    content: bytes | None = None
    target: bytes = b""


def ordered(snapshot: Snapshot, folder: int) -> Iterator[int]:
    """All nodes below a folder, in the order of an export."""
    pending = [folder]
    while pending:
        node = pending.pop()
        if node != folder:
            yield node
        below = []
        for child in listed_children(snapshot, node):
            if snapshot.stat(child).is_folder:
                below.append(child)
            else:
                yield child
        pending += reversed(below)


class EntryReader:
    """The entries below `folder`, by `entries`; of them those that are `selected`, of shape (n,)."""

    def __init__(self, dataset: Dataset, folder: int, selected: Numbers | None = None) -> None:
        self.snapshot = dataset.snapshot
        self._dataset = dataset
        self._folder = folder
        self._selected = None if selected is None else frozenset(selected.tolist())
        path = self.snapshot.path(folder)
        self._above_bytes = len(path) + 1 if path else 0

    def entries(self) -> Iterator[ExportedEntry]:
        """Raises Damaged, Unavailable."""
        with ThreadPoolExecutor(1, "dieselfs-export") as fetching:
            ahead = None
            for batch in self._batches():
                future = fetching.submit(self._fetch, batch)
                if ahead is not None:
                    yield from ahead.result()
                ahead = future
            if ahead is not None:
                yield from ahead.result()

    def extents(self, entry: ExportedEntry) -> Iterator[bytes]:
        """The verified bytes of a large file. Raises Damaged, Unavailable."""
        yield from extents(self._dataset, entry.node)

    def _batches(self) -> Iterator[list[ExportedEntry]]:
        batch: list[ExportedEntry] = []
        batch_bytes = 0
        for node in ordered(self.snapshot, self._folder):
            if self._selected is not None and node not in self._selected:
                continue
            status = self.snapshot.stat(node)
            target = self.snapshot.target(node) if status.is_link else b""
            batch.append(
                ExportedEntry(node, self.snapshot.path(node)[self._above_bytes :], status, None, target)
            )
            if status.is_file and status.size <= CHUNK_TARGET_BYTES:
                batch_bytes += status.size
            if len(batch) >= BATCH_FILES or batch_bytes >= BATCH_BYTES:
                yield batch
                batch, batch_bytes = [], 0
        yield batch

    def _fetch(self, batch: list[ExportedEntry]) -> list[ExportedEntry]:
        small = [
            entry.node for entry in batch if entry.status.is_file and entry.status.size <= CHUNK_TARGET_BYTES
        ]
        contents = dict(zip(small, self._dataset.get_nodes(small), strict=True)) if small else {}
        return [
            ExportedEntry(entry.node, entry.path, entry.status, contents[entry.node])
            if entry.node in contents
            else entry
            for entry in batch
        ]


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """`target`: a path, or `-`. `shard_bytes`: contents of a WebDataset shard."""

    location: Location
    target: str
    format_name: str
    shard_bytes: int
    is_dry_run: bool
    is_forced: bool
    jobs: int
    patterns: Patterns


Write = Callable[["Export", str], None]
"""Writes all entries of an export to a new path."""


def export_archive(
    session: Session,
    dataset: Dataset,
    folder: int,
    options: ExportOptions,
    write: Write,
    write_stream: Callable[["Export", BinaryIO], None] | None = None,
) -> int:
    """Write what is in the node `folder`; returns the exit code. `write_stream`: for standard output and archives that
    are one file, which -f replaces; a folder is never replaced.
    """
    output, target = session.output, options.target
    if target == STANDARD_OUTPUT:
        if write_stream is None or output.is_json or options.is_dry_run:
            raise InvalidInput("standard output takes a tar archive, without --json and -n")
        output.is_stdout_taken = True
    elif os.path.lexists(target):
        if write_stream is None:
            raise AlreadyExists(f"{target} exists; remove it, or name a new folder")
        if os.path.isdir(target) or not options.is_forced:
            raise AlreadyExists(f"{target} exists; give -f to replace it, if it is a file")
    began_s = time.monotonic()
    selected = selected_nodes(dataset.snapshot, folder, options.patterns)
    order, report = tree_order(dataset.snapshot, folder, selected), TransferReport()
    if options.is_dry_run:
        return show_export(output, order, options)
    entries = order.entries - 1  # the folder itself is no entry
    report.found_files, report.found_bytes, report.is_all_found = entries, order.total_bytes, True
    fields: dict[str, object] = {"target": target, "format": options.format_name, "entries": entries}
    what = f"{options.location} as {options.format_name}"
    export = Export(EntryReader(dataset, folder, selected), options, report)
    with shown(output, "export", lambda: Reading.of(report)), _errors(target):
        if target == STANDARD_OUTPUT and write_stream is not None:
            write_stream(export, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            _write_aside(export, write)
    output.failures(report.failures, report.failed_files)
    elapsed_s = time.monotonic() - began_s
    failed = f", {report.failed_files:,} failed" if report.failed_files else ""
    text = (
        f"wrote {what} to {'standard output' if target == STANDARD_OUTPUT else target} "
        f"({count(report.done_files, 'entry')}, {output.size(report.done_bytes)}){failed} "
        f"in {format_duration(elapsed_s)}"
    )
    fields |= {"entries": report.done_files, "bytes": report.done_bytes, "failed": report.failed_files}
    fields["seconds"] = round(elapsed_s, 3)
    return output.summary(text, fields, EXIT_PARTIAL if report.failed_files else EXIT_OK)


def show_export(output: Output, order: StorageOrder, options: ExportOptions) -> int:
    """The dry run; returns the exit code."""
    entries = order.entries - 1  # the folder itself is no entry
    what = f"{options.location} as {options.format_name} to {options.target}"
    text = f"would write {what} ({count(entries, 'entry')}, {output.size(order.total_bytes)})"
    fields = {"target": options.target, "format": options.format_name, "entries": entries}
    return output.summary(text, {"dry_run": True, **fields, "bytes": order.total_bytes})


class Export:
    """What a writer of a format needs. `report` has the progress, for any thread."""

    def __init__(self, reader: EntryReader, options: ExportOptions, report: TransferReport) -> None:
        self.reader = reader
        self.options = options
        self.report = report

    def parts(self, entry: ExportedEntry) -> Iterator[bytes]:
        """The content of a file. Raises Damaged, Unavailable."""
        if entry.content is not None:
            yield entry.content
        elif entry.status.is_file:
            yield from self.reader.extents(entry)

    def count(self, entry: ExportedEntry) -> None:
        """Note that an entry is written."""
        self.report.done_files += 1
        self.report.done_bytes += entry.status.size if entry.status.is_file else 0


def _write_aside(export: Export, write: Write) -> None:
    """Raises Damaged, Unavailable, OSError. After an error there is nothing new at the target."""
    target = os.path.abspath(export.options.target)
    aside = os.path.join(os.path.dirname(target), os.fsdecode(aside_name()))
    try:
        write(export, aside)
        os.replace(aside, target)
    except BaseException:
        if os.path.isdir(aside):
            shutil.rmtree(aside)
        elif os.path.lexists(aside):
            os.unlink(aside)
        raise


@contextmanager
def _errors(target: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if isinstance(error, DieselfsError):
            raise
        reason = os.strerror(error.errno or 0)
        if error.errno == errno.ENOENT:
            raise NotFound(f"{target}: {reason}: make its folder first") from None
        if error.errno in DISK_FULL:
            raise StorageFull(f"{target}: {reason}: free some space and run the same command again") from None
        raise DieselfsError(f"{target}: cannot be written: {reason}") from None


def export_image(session: Session, dataset: Dataset, folder: int, options: ExportOptions) -> int:
    """Write the image; returns the exit code."""
    if options.patterns:
        raise InvalidInput("an EROFS image has a whole folder; --include and --exclude need another --format")
    output, image = session.output, options.target
    run = ImageExport(dataset.chunks, image, folder, in_processes("export", options.jobs))
    fields = {"image": image, "entries": run.report.found_files, "image_bytes": run.size_bytes}
    what = f"{options.location} as {image} ({count(run.report.found_files, 'entry')}, {output.size(run.size_bytes)})"
    if options.is_dry_run:
        return output.summary(f"would write {what}", {"dry_run": True, **fields})
    began_s = time.monotonic()
    with shown(output, "export", lambda: Reading.of(run.report)):
        run.run(options.is_forced)
    elapsed_s = time.monotonic() - began_s
    fields["seconds"] = round(elapsed_s, 3)
    return output.summary(f"wrote {what} in {format_duration(elapsed_s)}", fields)


def export_folder(session: Session, dataset: Dataset, folder: int, options: ExportOptions) -> int:
    """Write the entries; returns the exit code."""
    output, started_s = session.output, time.monotonic()
    selected = selected_nodes(dataset.snapshot, folder, options.patterns)
    if options.is_dry_run:
        return show_export(output, tree_order(dataset.snapshot, folder, selected), options)
    download = TreeDownload(
        dataset.chunks,
        folder,
        os.fsencode(options.target),
        spread=in_processes("export", options.jobs),
        is_forced=options.is_forced,
        selected=selected,
    )
    with shown(output, "export", lambda: Reading.of(download.report)):
        download.run()
    return report_download(output, download.report, time.monotonic() - started_s)
