"""The work of `dlcmd put`. This module reads files and standard input."""

import os
import shlex
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, DieselfsError, InvalidInput, NotFound, StorageFull
from dieselfs.names import Location, is_location, printable
from dieselfs.snapshot.reader import Snapshot
from dieselfs.transfer.upload import (
    Failed,
    SourceEntry,
    TreeUpload,
    UploadCounters,
    UploadReport,
    file_bytes,
    is_stored,
)
from dieselfs.units import count, format_duration
from dieselfs_tools import options
from dieselfs_tools.output import Output, name_fields
from dieselfs_tools.patterns import Patterns
from dieselfs_tools.progress import Reading, shown
from dieselfs_tools.session import Session
from dieselfs_tools.sources import Source, find_sources, listed_sources, walk
from dieselfs_tools.spool import spooled
from dieselfs_tools.target import Target, find_target

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Selection:
    """The sources, or a list of names relative to the one source; and the patterns."""

    sources: Sequence[Source]
    names: Sequence[bytes] | None
    patterns: Patterns
    is_recursive: bool
    started_s: float
    is_stdin: bool

    @property
    def is_many(self) -> bool:
        return self.is_recursive or self.names is not None

    def entries(self, failed: Failed) -> Iterator[SourceEntry]:
        sources: Iterator[Source] = iter(self.sources)
        if self.names is not None:
            sources = listed_sources(self.names, self.sources[0], failed)
        for source in sources:
            yield from walk(source, self.patterns, self.is_recursive, failed)


def run_put(
    session: Session,
    words: Sequence[str],
    is_recursive: bool,
    is_dry_run: bool,
    is_forced: bool,
    patterns: Patterns,
    files_from: str | None,
    jobs: int,
    chunk_bytes: int,
) -> int:
    """Store the sources in `words`, whose last one is the destination; returns the exit code."""
    started_s = time.monotonic()
    sources, destination = _split(words, is_recursive)
    target = find_target(session.client, destination)
    is_many = is_recursive or files_from is not None
    with _found(session.output, sources, target, is_recursive, is_many) as found:
        listed = None if files_from is None else _read_names(files_from, found)
        is_stdin = STANDARD_INPUT in sources
        selection = Selection(found, listed, patterns, is_recursive, started_s, is_stdin)
        if is_dry_run:
            return _show(session, selection, target, is_forced)
        return _upload(session, selection, target, is_forced, jobs, chunk_bytes)


def _split(names: Sequence[str], is_recursive: bool) -> tuple[Sequence[str], Location]:
    """Sources and destination. Raises InvalidInput if one of them is missing."""
    if len(names) == 1:
        if is_location(names[0]):
            raise InvalidInput(f"the SOURCE is missing: dlcmd put SOURCE {names[0]}")
        again = f"dlcmd put {'-r ' if is_recursive else ''}{shlex.quote(names[0])} dl://DATASET/"
        raise InvalidInput(f"the destination of {names[0]} is missing: {again}")
    return names[:-1], options.changeable_location(names[-1])


@contextmanager
def _found(
    output: Output, sources: Sequence[str], target: Target, is_recursive: bool, is_many: bool
) -> Iterator[list[Source]]:
    """The sources, placed in the dataset. In the context, standard input is a file."""
    if STANDARD_INPUT not in sources:
        is_into = target.is_folder or len(sources) > 1
        yield find_sources(sources, target.location, is_into, is_recursive)
        return
    if len(sources) > 1 or is_many:
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


def _snapshot(session: Session, selection: Selection, target: Target, is_forced: bool) -> Snapshot | None:
    """The stored state to compare many files with; a few files are compared by requests to the server."""
    if target.dataset is None or is_forced or not selection.is_many:
        return None
    return session.dataset(target.dataset.name).snapshot


def _show(session: Session, selection: Selection, target: Target, is_forced: bool) -> int:
    """The dry run."""
    output, counters = session.output, UploadCounters()
    failures: list[tuple[str, str]] = []
    snapshot = _snapshot(session, selection, target, is_forced)
    for entry in selection.entries(lambda source, reason: failures.append((printable(source), reason))):
        is_held = is_stored(entry, snapshot) if snapshot is not None else target.holds(entry)
        if is_held and not is_forced:
            counters.skipped_files += 1
            continue
        size_bytes = file_bytes(entry.status)
        counters.found_files += 1
        counters.found_bytes += size_bytes
        output.detail(
            "entry",
            f"would put {printable(entry.source)} -> {Location(target.location.dataset, entry.path, False)}",
            {**name_fields(entry.source, "source"), **name_fields(entry.path), "size": size_bytes},
        )
    output.failures(failures, len(failures))
    return output.summary(
        f"would store {count(counters.found_files, 'entry')} ({output.size(counters.found_bytes)}), "
        f"skip {counters.skipped_files:,} that are already stored",
        {
            "dry_run": True,
            "entries": counters.found_files,
            "bytes": counters.found_bytes,
            "skipped": counters.skipped_files,
            "failed": len(failures),
        },
        EXIT_PARTIAL if failures else EXIT_OK,
    )


def _upload(
    session: Session, selection: Selection, target: Target, is_forced: bool, jobs: int, chunk_bytes: int
) -> int:
    snapshot = _snapshot(session, selection, target, is_forced)
    is_asked = not selection.is_many and not is_forced
    upload = TreeUpload(session.client, target.made(), snapshot, jobs, chunk_bytes)
    counters = upload.report.counters
    first: list[SourceEntry] = []

    def entries(failed: Failed) -> Iterator[SourceEntry]:
        for entry in selection.entries(
            failed
        ):  # called under the lock of the upload, which guards its counters
            if not first and not stat.S_ISDIR(entry.status.st_mode):
                first.append(entry)
            if is_asked and target.holds(entry):
                counters.find(entry.status)
                counters.skip(entry.status)
            else:
                yield entry

    try:
        with shown(session.output, "put", lambda: _reading(counters)):
            report = upload.run(entries)
    except DieselfsError as error:
        stored = f"stored {_counted(counters)} until then; the same command continues"
        room = " when there is room: dlcmd purge, or a larger disk" if isinstance(error, StorageFull) else ""
        raise type(error)(f"{error}; {stored}{room}") from error
    source = b"standard input" if selection.is_stdin else first[0].source if first else b""
    place = first[0].path if first else b""
    elapsed_s = time.monotonic() - selection.started_s
    return _report(session.output, report, source, Location(target.location.dataset, place, False), elapsed_s)


def _counted(counters: UploadCounters) -> str:
    """The number of stored files, and of folders if there are any."""
    folders = min(counters.found_folders - counters.skipped_folders, counters.stored_files)
    files = count(counters.stored_files - folders, "file")
    return f"{files} and {count(folders, 'folder')}" if folders else files


def _reading(counters: UploadCounters) -> Reading:
    return Reading(
        counters.stored_files + counters.skipped_files,
        counters.stored_bytes + counters.skipped_bytes,
        counters.found_files,
        counters.found_bytes,
        counters.failed_files,
        counters.is_walked,
        skipped_bytes=counters.skipped_bytes,
    )


def _report(output: Output, report: UploadReport, source: bytes, place: Location, elapsed_s: float) -> int:
    counters = report.counters
    output.failures(report.failures, counters.failed_files)
    stored, size = _counted(counters), output.size(counters.stored_bytes)
    parts = [f"stored {stored} ({size})"]
    if counters.skipped_files:
        parts.append(f"skipped {counters.skipped_files:,} that were already stored")
    if counters.failed_files:
        parts.append(f"{counters.failed_files:,} failed")
    text = f"{', '.join(parts)} in {format_duration(elapsed_s)}"
    fields: dict[str, object] = {
        "dataset": place.dataset,
        "generation": report.generation,
        "stored": counters.stored_files,
        "stored_bytes": counters.stored_bytes,
        "skipped": counters.skipped_files,
        "skipped_bytes": counters.skipped_bytes,
        "failed": counters.failed_files,
        "seconds": round(elapsed_s, 3),
    }
    if source:
        text += f"; the first: {printable(source)} -> {place}"
        fields |= {**name_fields(source, "first_source"), **name_fields(place.path, "first_path")}
    return output.summary(text, fields, EXIT_PARTIAL if counters.failed_files else EXIT_OK)
