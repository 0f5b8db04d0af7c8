"""`dlcmd put`: store files and folders, or standard input."""

import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, InvalidInput, NotFound
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX, CHUNK_TARGET_BYTES
from dieselfs.meta.snapshot import Snapshot
from dieselfs.names import Location, printable
from dieselfs.upload import (
    DEFAULT_JOBS,
    Failed,
    SourceEntry,
    TreeUpload,
    UploadCounters,
    UploadReport,
    is_stored,
)
from dieselfs_tools import options
from dieselfs_tools.output import Output, name_fields
from dieselfs_tools.patterns import Patterns
from dieselfs_tools.progress import Reading, shown
from dieselfs_tools.session import Session
from dieselfs_tools.sources import Source, file_bytes, find_sources, listed_sources, walk
from dieselfs_tools.spool import spooled
from dieselfs_tools.target import Target, find_target
from dieselfs_tools.units import count, format_duration, format_size

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Selection:
    """What is to go: the sources, or the names in a list that are relative to the one source; and the patterns."""

    sources: Sequence[Source]
    names: Sequence[bytes] | None
    patterns: Patterns
    is_recursive: bool

    @property
    def is_many(self) -> bool:
        return self.is_recursive or self.names is not None

    def entries(self, failed: Failed) -> Iterator[SourceEntry]:
        sources: Iterator[Source] = iter(self.sources)
        if self.names is not None:
            sources = listed_sources(self.names, self.sources[0], failed)
        for source in sources:
            yield from walk(source, self.patterns, self.is_recursive, failed)


@options.verb(
    "put",
    "dlcmd put -r ./imagenet/ dl://imagenet/        # with the slash: what is in it, as dl://imagenet/train/...",
    "dlcmd put -r ./imagenet dl://sets/             # without: the folder itself, as dl://sets/imagenet/train/...",
    "dlcmd put cat.jpg dog.jpg dl://pets/train/     # into a folder, each under its own name",
    "tar c logs | dlcmd put - dl://runs/logs.tar    # standard input, under this name",
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("destination", type=options.CHANGEABLE, metavar="dl://DATASET/PATH")
@click.option("-r", "--recursive", "is_recursive", is_flag=True, help="Folders, with all that is in them.")
@options.dry_run
@click.option("-f", "--force", "is_forced", is_flag=True, help="Store again what is stored already.")
@click.option(
    "--exclude", "excludes", multiple=True, metavar="PATTERN", help="Leave out what matches, e.g. '*.tmp'."
)
@click.option(
    "--include", "includes", multiple=True, metavar="PATTERN", help="Take what matches, though excluded."
)
@click.option(
    "--files-from",
    metavar="FILE",
    help="Only the names in FILE ('-': standard input), one a line, relative to the one SOURCE folder.",
)
@options.jobs(DEFAULT_JOBS)
@click.option(
    "--chunk-size",
    "chunk_bytes",
    type=options.SIZE,
    default=CHUNK_TARGET_BYTES,
    help=f"How much goes into one chunk. [{format_size(CHUNK_TARGET_BYTES)}]",
)
def put(
    session: Session,
    sources: Sequence[str],
    destination: Location,
    is_recursive: bool,
    is_dry_run: bool,
    is_forced: bool,
    excludes: Sequence[str],
    includes: Sequence[str],
    files_from: str | None,
    jobs: int,
    chunk_bytes: int,
) -> int:
    """Store files in a dataset, which is made if need be.

    A SOURCE folder that ends in a slash stands for what is in it, one that does not for the folder itself. A
    destination that ends in a slash is a folder to put into; else it is the new name of a single file.

    What is stored already (same size, time and mode) is skipped, so the same command continues an upload that was
    interrupted. What cannot be read is listed at the end, and the rest goes through (exit code 2).
    """
    if not 0 < chunk_bytes <= CHUNK_PAYLOAD_BYTES_MAX:
        raise InvalidInput(f"--chunk-size: a chunk takes 1 byte to {format_size(CHUNK_PAYLOAD_BYTES_MAX)}")
    target = find_target(session.client, destination)
    with _found(sources, target, is_recursive, is_many=is_recursive or files_from is not None) as found:
        names = None if files_from is None else _read_names(files_from, found)
        selection = Selection(found, names, Patterns(excludes, includes), is_recursive)
        if is_dry_run:
            return _show(session, selection, target, is_forced)
        return _upload(session, selection, target, is_forced, jobs, chunk_bytes)


@contextmanager
def _found(
    sources: Sequence[str], target: Target, is_recursive: bool, is_many: bool
) -> Iterator[list[Source]]:
    """The sources, placed in the dataset. Standard input is there as a file while the context lasts."""
    if STANDARD_INPUT not in sources:
        is_into = target.is_folder or len(sources) > 1
        yield find_sources(sources, target.location, is_into, is_recursive)
        return
    if len(sources) > 1 or is_many:
        raise InvalidInput("standard input ('-') is put alone, without -r and --files-from")
    if target.is_folder:
        raise InvalidInput(
            f"{target.location}: give what comes from standard input a name: {target.location}NAME"
        )
    with spooled(sys.stdin.buffer) as path:
        yield [Source(os.fsencode(path), target.location.path, False)]


def _read_names(files_from: str, found: Sequence[Source]) -> list[bytes]:
    if len(found) != 1 or not found[0].is_folder:
        raise InvalidInput("--files-from goes with one SOURCE, a folder, to which its names are relative")
    try:
        content = sys.stdin.buffer.read() if files_from == STANDARD_INPUT else Path(files_from).read_bytes()
    except OSError as error:
        raise NotFound(f"--files-from {files_from}: {error.strerror}") from None
    return [name for name in content.split(b"\n") if name]


def _snapshot(session: Session, selection: Selection, target: Target, is_forced: bool) -> Snapshot | None:
    """What is stored already, where many files are to be compared with it; of few, the server is asked one by one."""
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
        f"skip {counters.skipped_files:,} that are stored already",
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
    started_s = time.monotonic()
    snapshot = _snapshot(session, selection, target, is_forced)
    is_asked = not selection.is_many and not is_forced
    upload = TreeUpload(session.client, target.made(), snapshot, jobs, chunk_bytes)
    counters = upload.report.counters
    first: list[SourceEntry] = []

    def entries(failed: Failed) -> Iterator[SourceEntry]:
        for entry in selection.entries(
            failed
        ):  # the upload takes from here under its lock, so its counters may be changed
            if not first:
                first.append(entry)
            if is_asked and target.holds(entry):
                counters.found_files += 1
                counters.skipped_files += 1
                counters.skipped_bytes += file_bytes(entry.status)
            else:
                yield entry

    with shown(session.output, "put", lambda: _reading(counters)):
        report = upload.run(entries)
    return _report(session.output, report, first, target.location.dataset, time.monotonic() - started_s)


def _reading(counters: UploadCounters) -> Reading:
    return Reading(
        counters.stored_files + counters.skipped_files,
        counters.stored_bytes + counters.skipped_bytes,
        counters.found_files,
        counters.found_bytes,
        counters.failed_files,
        counters.is_walked,
    )


def _report(
    output: Output, report: UploadReport, first: Sequence[SourceEntry], dataset: str, elapsed_s: float
) -> int:
    counters = report.counters
    output.failures(report.failures, counters.failed_files)
    parts = [f"stored {count(counters.stored_files, 'entry')} ({output.size(counters.stored_bytes)})"]
    if counters.skipped_files:
        parts.append(f"skipped {counters.skipped_files:,} that were stored already")
    if counters.failed_files:
        parts.append(f"{counters.failed_files:,} failed")
    text = f"{', '.join(parts)} in {format_duration(elapsed_s)}"
    fields: dict[str, object] = {
        "dataset": dataset,
        "generation": report.generation,
        "stored": counters.stored_files,
        "stored_bytes": counters.stored_bytes,
        "skipped": counters.skipped_files,
        "skipped_bytes": counters.skipped_bytes,
        "failed": counters.failed_files,
        "seconds": round(elapsed_s, 3),
    }
    if first:
        is_folder = stat.S_ISDIR(first[0].status.st_mode)
        text += f"; the first: {printable(first[0].source)} -> {Location(dataset, first[0].path, is_folder)}"
        fields |= {**name_fields(first[0].source, "first_source"), **name_fields(first[0].path, "first_path")}
    return output.summary(text, fields, EXIT_PARTIAL if counters.failed_files else EXIT_OK)
