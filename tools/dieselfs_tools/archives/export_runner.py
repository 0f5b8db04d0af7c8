"""The work of `dlcmd export` for formats but EROFS: tar, WebDataset, LMDB, folder. This module writes files."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, AlreadyExists, DieselfsError, InvalidInput, StorageFull
from dieselfs.names import Location, printable, split_path
from dieselfs.snapshot.storage_order import tree_order
from dieselfs.transfer.destination import DISK_FULL, aside_name
from dieselfs.transfer.download import TreeDownload
from dieselfs.transfer.report import TransferReport
from dieselfs.units import count, format_duration
from dieselfs_tools.archives.exporting.entry_reader import Entry, EntryReader
from dieselfs_tools.archives.exporting.lmdb_writer import LmdbWriter
from dieselfs_tools.archives.exporting.tar_writer import TarWriter
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.download_runner import report_download
from dieselfs_tools.transfers.stored_trees import selected_nodes

STANDARD_OUTPUT = "-"
SHARD_NAME = "shard-{:06}.tar"


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


def run_export(session: Session, dataset: Dataset, folder: int, options: ExportOptions) -> int:
    """Write what is in the node `folder`; returns the exit code."""
    output, target = session.output, options.target
    if target == STANDARD_OUTPUT:
        if options.format_name != "tar" or output.is_json or options.is_dry_run:
            raise InvalidInput("standard output takes a tar archive, without --json and -n")
        output.is_stdout_taken = True
    elif options.format_name != "folder":
        _check_target(target, options)
    began_s = time.monotonic()
    selected = selected_nodes(dataset.snapshot, folder, options.patterns)
    if options.format_name == "folder" and not options.is_dry_run:
        download = TreeDownload(
            dataset.chunks,
            folder,
            os.fsencode(target),
            jobs=options.jobs,
            is_forced=options.is_forced,
            selected=selected,
        )
        with shown(output, "export", lambda: Reading.of(download.report)):
            download.run()
        return report_download(output, download.report, time.monotonic() - began_s)
    order, report = tree_order(dataset.snapshot, folder, selected), TransferReport()
    entries = order.entries - 1  # the folder itself is no entry
    report.found_files, report.found_bytes, report.is_all_found = entries, order.total_bytes, True
    fields: dict[str, object] = {"target": target, "format": options.format_name, "entries": entries}
    what = f"{options.location} as {options.format_name}"
    if options.is_dry_run:
        text = f"would write {what} to {target} ({count(entries, 'entry')}, {output.size(order.total_bytes)})"
        return output.summary(text, {"dry_run": True, **fields, "bytes": order.total_bytes})
    export = Export(EntryReader(dataset, folder, selected), options, report)
    with shown(output, "export", lambda: Reading.of(report)), _errors(target):
        export.run()
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


def _check_target(target: str, options: ExportOptions) -> None:
    """Raises AlreadyExists. A folder is never replaced."""
    if options.format_name == "tar":
        if os.path.lexists(target) and (os.path.isdir(target) or not options.is_forced):
            raise AlreadyExists(f"{target} exists; give -f to replace it, if it is a file")
    elif os.path.lexists(target):
        raise AlreadyExists(f"{target} exists; remove it, or name a new folder")


class Export:
    """One export, by `run`, under a temporary name. `report` has its progress, for any thread."""

    def __init__(self, reader: EntryReader, options: ExportOptions, report: TransferReport) -> None:
        self.report = report
        self._reader = reader
        self._options = options

    def run(self) -> None:
        """Raises Damaged, Unavailable, OSError. After an error there is nothing new at the target."""
        target = os.path.abspath(self._options.target)
        writers: dict[str, Callable[[str], None]] = {
            "tar": self._write_tar,
            "webdataset": self._write_shards,
            "lmdb": self._write_lmdb,
        }
        if self._options.target == STANDARD_OUTPUT:
            self._write_members(sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        aside = os.path.join(os.path.dirname(target), os.fsdecode(aside_name()))
        try:
            writers[self._options.format_name](aside)
            os.replace(aside, target)
        except BaseException:
            if os.path.isdir(aside):
                shutil.rmtree(aside)
            elif os.path.lexists(aside):
                os.unlink(aside)
            raise

    def _write_tar(self, aside: str) -> None:
        with open(aside, "xb", buffering=1 << 20) as file:
            self._write_members(file)
            file.flush()
            os.fsync(file.fileno())

    def _write_members(self, stream: BinaryIO) -> None:
        writer = TarWriter(stream)
        for entry in self._reader.entries():
            writer.add(entry, self._parts(entry))
            self._count(entry)
        writer.close()

    def _write_shards(self, aside: str) -> None:
        """Samples, the files with one base name in a folder, are never split. A shard is full at `shard_bytes`."""
        os.mkdir(aside)
        shards = _Shards(aside, self._options.shard_bytes)
        try:
            for entry in self._reader.entries():
                if entry.status.is_folder:
                    self._count(entry)
                elif entry.status.is_link:
                    self.report.fail(printable(entry.path), "a link; WebDataset has files only")
                elif (key := sample_key(entry.path)) is None:
                    self.report.fail(printable(entry.path), "WebDataset ignores names without a suffix")
                else:
                    shards.writer(key).add(entry, self._parts(entry))
                    self._count(entry)
        finally:
            shards.close()

    def _write_lmdb(self, aside: str) -> None:
        os.mkdir(aside)
        writer = LmdbWriter(aside, self.report.found_files, self.report.found_bytes)
        try:
            for entry in self._reader.entries():
                if entry.status.is_folder:
                    self._count(entry)
                    continue
                try:
                    if entry.status.is_link:
                        raise InvalidInput("a link; LMDB has values only")
                    writer.add(entry, b"".join(self._parts(entry)))
                    self._count(entry)
                except InvalidInput as error:
                    self.report.fail(printable(entry.path), str(error))
        except BaseException:
            writer.abandon()
            raise
        writer.close()

    def _parts(self, entry: Entry) -> Iterator[bytes]:
        if entry.content is not None:
            yield entry.content
        elif entry.status.is_file:
            yield from self._reader.extents(entry)

    def _count(self, entry: Entry) -> None:
        self.report.done_files += 1
        self.report.done_bytes += entry.status.size if entry.status.is_file else 0


def sample_key(path: bytes) -> bytes | None:
    """The key of a file in WebDataset: its path up to the first dot of its name. None without a suffix."""
    folder, name = split_path(path)
    base, dot, suffix = name.partition(b".")
    return folder + b"/" + base if base and dot and suffix else None


class _Shards:
    """Shards in a folder, each begun when the one before is full and a sample ends."""

    def __init__(self, folder: str, shard_bytes: int) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._number = 0
        self._key: bytes | None = None
        self._file: BinaryIO | None = None
        self._writer: TarWriter | None = None

    def writer(self, key: bytes) -> TarWriter:
        """That of the shard for the next file, of the sample `key`."""
        if self._writer is not None and key != self._key and self._writer.position >= self._shard_bytes:
            self.close()
        self._key = key
        if self._writer is None:
            path = os.path.join(self._folder, SHARD_NAME.format(self._number))
            self._file = open(path, "xb", buffering=1 << 20)  # noqa: SIM115  # close() closes it
            self._writer = TarWriter(self._file)
            self._number += 1
        return self._writer

    def close(self) -> None:
        """End the shard that is being written."""
        if self._writer is not None and self._file is not None:
            with self._file as file:
                self._writer.close()
                file.flush()
                os.fsync(file.fileno())
            self._file = self._writer = None


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
        if error.errno in DISK_FULL:
            raise StorageFull(f"{target}: {reason}: free some space and run the same command again") from None
        raise DieselfsError(f"{target}: cannot be written: {reason}") from None
