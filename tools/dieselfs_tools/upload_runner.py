"""The work of `dlcmd put`. This module reads files and standard input, and writes a temporary file."""

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dieselfs.errors import (
    EXIT_OK,
    EXIT_PARTIAL,
    AlreadyExists,
    DieselfsError,
    InvalidInput,
    NotFound,
    StorageFull,
)
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX
from dieselfs.names import Location, is_location, printable
from dieselfs.records import DatasetRecord, Op
from dieselfs.rpc.client import ServerClient
from dieselfs.snapshot.reader import Snapshot
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.upload import Failed, SourceEntry, TreeUpload, is_stored
from dieselfs.units import count, format_size
from dieselfs_tools.entries import Entry
from dieselfs_tools.options import changeable_location
from dieselfs_tools.output import Output, name_fields
from dieselfs_tools.progress import Reading, outcome, shown
from dieselfs_tools.session import Session
from dieselfs_tools.sources import Patterns, Source, find_sources, listed_sources, walk

STANDARD_INPUT = "-"
COPY_BYTES = 1 << 20
FILE_MODE = 0o644


@dataclass(frozen=True, kw_only=True)
class PutOptions:
    """Arguments and options of `dlcmd put`. The last of `names` is the destination."""

    names: Sequence[str]
    is_recursive: bool
    is_dry_run: bool
    is_forced: bool
    excludes: Sequence[str]
    includes: Sequence[str]
    files_from: str | None
    jobs: int
    chunk_bytes: int

    @property
    def is_many(self) -> bool:
        return self.is_recursive or self.files_from is not None


@dataclass(frozen=True)
class Target:
    """`dataset` is None if it does not exist. `is_folder`: sources go into the destination, under their own names."""

    client: ServerClient
    location: Location
    dataset: DatasetRecord | None
    is_folder: bool

    def made(self) -> DatasetRecord:
        """The dataset, which is created if it does not exist."""
        if self.dataset is not None:
            return self.dataset
        try:
            return self.client.create_dataset(self.location.dataset)
        except AlreadyExists:
            return self.client.dataset(self.location.dataset)

    def holds(self, entry: SourceEntry) -> bool:
        """Whether the entry is stored with the same type, size, time and mode. Sends one request to the server."""
        if self.dataset is None:
            return False
        try:
            stored = self.client.stat(self.dataset.name, entry.path)
        except NotFound:
            return False
        found = Entry.of_server(entry.path, stored)
        return entry.is_same(found.mode, found.size, found.mtime_ns, found.target)


def find_target(client: ServerClient, location: Location) -> Target:
    """The destination at a location. Raises InvalidInput if it names a folder, and is a file."""
    try:
        dataset = client.dataset(location.dataset)
    except NotFound:
        return Target(client, location, None, location.is_folder_form)
    try:
        is_folder = Op(client.stat(dataset.name, location.path).op) == Op.DIRECTORY
    except NotFound:
        return Target(client, location, dataset, location.is_folder_form)
    if location.is_folder_form and not is_folder:
        raise InvalidInput(f"{location}: not a folder, but a file")
    return Target(client, location, dataset, is_folder)


@dataclass(frozen=True)
class Put:
    """The work of one `put`. `listed`: names relative to the one source."""

    session: Session
    options: PutOptions
    target: Target
    sources: Sequence[Source]
    listed: Sequence[bytes] | None
    started_s: float

    def entries(self, failed: Failed) -> Iterator[SourceEntry]:
        """The selected entries of all sources."""
        sources: Iterator[Source] = iter(self.sources)
        if self.listed is not None:
            sources = listed_sources(self.listed, self.sources[0], failed)
        patterns = Patterns(self.options.excludes, self.options.includes)
        for source in sources:
            yield from walk(source, patterns, self.options.is_recursive, failed)

    def snapshot(self) -> Snapshot | None:
        """The stored state to compare many files with; a few files are compared by requests to the server."""
        if self.target.dataset is None or self.options.is_forced or not self.options.is_many:
            return None
        return self.session.dataset(self.target.dataset.name).snapshot

    def show(self) -> int:
        """The dry run."""
        output, report, snapshot = self.session.output, TransferReport(), self.snapshot()
        for entry in self.entries(lambda source, reason: report.fail(printable(source), reason)):
            is_held = is_stored(entry, snapshot) if snapshot is not None else self.target.holds(entry)
            if is_held and not self.options.is_forced:
                report.skip(0, entry.is_folder)
                continue
            report.find(entry.file_bytes, entry.is_folder)
            place = Location(self.target.location.dataset, entry.path, False)
            names = {**name_fields(entry.source, "source"), **name_fields(entry.path)}
            text = f"would put {printable(entry.source)} -> {place}"
            output.detail("entry", text, {**names, "size": entry.file_bytes})
        output.failures(report.failures, report.failed_files)
        return output.summary(
            f"would store {count(report.found_files, 'entry')} ({output.size(report.found_bytes)}), "
            f"skip {report.skipped_files:,} that are already stored",
            {
                "dry_run": True,
                "entries": report.found_files,
                "bytes": report.found_bytes,
                "skipped": report.skipped_files,
                "failed": report.failed_files,
            },
            EXIT_PARTIAL if report.failed_files else EXIT_OK,
        )

    def upload(self) -> int:
        """Store the entries. Raises errors that end the upload, with the number of files stored by then."""
        options, output, target = self.options, self.session.output, self.target
        snapshot = self.snapshot()
        is_asked = not options.is_many and not options.is_forced
        upload = TreeUpload(self.session.client, target.made(), snapshot, options.jobs, options.chunk_bytes)
        report = upload.report
        first: list[SourceEntry] = []

        def entries(failed: Failed) -> Iterator[SourceEntry]:
            for entry in self.entries(failed):  # under the lock of the upload, which guards its report
                if not first and not entry.is_folder:
                    first.append(entry)
                if is_asked and target.holds(entry):
                    report.find(entry.file_bytes, entry.is_folder)
                    report.skip(entry.file_bytes, entry.is_folder)
                else:
                    yield entry

        try:
            with shown(output, "put", lambda: Reading.of(report)):
                upload.run(entries)
        except DieselfsError as error:
            stored = f"stored {_counted(report)} until then; the same command continues"
            is_full = isinstance(error, StorageFull)
            room = " when there is room: dlcmd purge, or a larger disk" if is_full else ""
            raise type(error)(f"{error}; {stored}{room}") from error
        return self._report(report, first[0] if first else None)

    def _report(self, report: TransferReport, first: SourceEntry | None) -> int:
        elapsed_s, dataset = time.monotonic() - self.started_s, self.target.location.dataset
        output, done = self.session.output, f"stored {_counted(report)}"
        text = outcome(output, report, done, "were already stored", elapsed_s)
        fields: dict[str, object] = {
            "dataset": dataset,
            "generation": report.generation,
            "stored": report.done_files,
            "stored_bytes": report.done_bytes,
            "skipped": report.skipped_files,
            "skipped_bytes": report.skipped_bytes,
            "failed": report.failed_files,
            "seconds": round(elapsed_s, 3),
        }
        if first is not None:
            is_stdin, path = STANDARD_INPUT in self.options.names, first.path
            source = b"standard input" if is_stdin else first.source
            text += f"; the first: {printable(source)} -> {Location(dataset, path, False)}"
            fields |= {**name_fields(source, "first_source"), **name_fields(path, "first_path")}
        return output.summary(text, fields, EXIT_PARTIAL if report.failed_files else EXIT_OK)


def run_put(session: Session, options: PutOptions) -> int:
    """Store the sources; returns the exit code."""
    started_s = time.monotonic()
    if not 0 < options.chunk_bytes <= CHUNK_PAYLOAD_BYTES_MAX:
        raise InvalidInput(f"--chunk-size: a chunk takes 1 byte to {format_size(CHUNK_PAYLOAD_BYTES_MAX)}")
    sources, destination = _split(options.names, options.is_recursive)
    target = find_target(session.client, destination)
    with _found(session.output, sources, target, options) as found:
        listed = None if options.files_from is None else _read_names(options.files_from, found)
        put = Put(session, options, target, found, listed, started_s)
        return put.show() if options.is_dry_run else put.upload()


def _split(names: Sequence[str], is_recursive: bool) -> tuple[Sequence[str], Location]:
    """Sources and destination. Raises InvalidInput if one of them is missing."""
    if len(names) == 1:
        if is_location(names[0]):
            raise InvalidInput(f"the SOURCE is missing: dlcmd put SOURCE {names[0]}")
        again = f"dlcmd put {'-r ' if is_recursive else ''}{shlex.quote(names[0])} dl://DATASET/"
        raise InvalidInput(f"the destination of {names[0]} is missing: {again}")
    return names[:-1], changeable_location(names[-1])


@contextmanager
def _found(
    output: Output, sources: Sequence[str], target: Target, options: PutOptions
) -> Iterator[list[Source]]:
    """The sources, placed in the dataset. In the context, standard input is a file."""
    if STANDARD_INPUT not in sources:
        is_into = target.is_folder or len(sources) > 1
        yield find_sources(sources, target.location, is_into, options.is_recursive)
        return
    if len(sources) > 1 or options.is_many:
        raise InvalidInput("standard input ('-') must be the only source, without -r and --files-from")
    if target.is_folder:
        raise InvalidInput(
            f"{target.location} is a folder: standard input needs a name: {target.location}NAME"
        )
    with spooled(sys.stdin.buffer, output) as path:
        yield [Source(os.fsencode(path), target.location.path, False)]


def _read_names(files_from: str, found: Sequence[Source]) -> list[bytes]:
    if len(found) != 1 or not found[0].is_folder:
        raise InvalidInput("--files-from needs one SOURCE, a folder, to which its names are relative")
    try:
        content = sys.stdin.buffer.read() if files_from == STANDARD_INPUT else Path(files_from).read_bytes()
    except OSError as error:
        raise NotFound(f"--files-from {files_from}: {error.strerror}") from None
    return [name for name in content.split(b"\n") if name]


def _counted(report: TransferReport) -> str:
    """The number of stored files, and of folders if there are any."""
    folders = min(report.found_folders - report.skipped_folders, report.done_files)
    files = count(report.done_files - folders, "file")
    return f"{files} and {count(folders, 'folder')}" if folders else files


@contextmanager
def spooled(stream: BinaryIO, output: Output) -> Iterator[str]:
    """Copy a stream into a temporary file, because a chunk records the size of a file before its bytes. Shows the
    progress; yields the path. The context removes the file.

    Raises DieselfsError if there is no space for it.
    """
    with ExitStack() as stack:
        try:
            # In a folder of this user alone: the mode of the file is what the dataset records.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlcmd-"))
            file = stack.enter_context(open(os.path.join(folder, "standard-input"), "xb"))
            with shown(output, "read standard input", lambda: _reading(file.fileno())):
                while block := stream.read(COPY_BYTES):
                    file.write(block)
                file.flush()
            os.fchmod(file.fileno(), FILE_MODE)
        except OSError as error:
            raise DieselfsError(
                f"standard input cannot be stored in {tempfile.gettempdir()}: {error.strerror}; "
                "set TMPDIR to a folder with more space"
            ) from None
        yield file.name


def _reading(descriptor: int) -> Reading:
    size_bytes = os.fstat(descriptor).st_size
    return Reading(0, size_bytes, 0, size_bytes, is_total_known=False, noun="")
