"""The work of `dlcmd attach`: records of all sources, as extents of the sources. This module opens files."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from threading import Lock

from dieselfs.chunk.builder import SealedChunk
from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, EXIT_PARTIAL, InvalidInput
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX
from dieselfs.names import Location, is_location, printable
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.sender import ChunkSender
from dieselfs.transfer.upload import Failed
from dieselfs.units import count, format_duration, format_size
from dieselfs_tools.archives.attach_sources import AttachSources
from dieselfs_tools.archives.attaching import Attaching, batches, is_copied
from dieselfs_tools.archives.formats import format_of
from dieselfs_tools.archives.import_runner import expanded_source, records_of
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.naming import Names, Template
from dieselfs_tools.archives.importing.record import Record
from dieselfs_tools.cli.options import changeable_location
from dieselfs_tools.cli.output import Output, name_fields
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session
from dieselfs_tools.cli.spool import STANDARD_INPUT
from dieselfs_tools.transfers.upload_runner import Target, find_target


@dataclass(frozen=True, kw_only=True)
class AttachOptions:
    """Arguments and options of `dlcmd attach`. The last of `names` is the destination."""

    names: Sequence[str]
    format_name: str
    template: str | None
    is_renaming: bool
    patterns: Patterns
    is_dry_run: bool
    chunk_bytes: int


@dataclass(eq=False)
class _Totals:
    """Of the stored chunks. Guarded by `lock`: several threads store."""

    report: TransferReport
    attached_files: int = 0
    attached_bytes: int = 0
    copied_files: int = 0
    copied_bytes: int = 0

    def __post_init__(self) -> None:
        self.lock = Lock()

    def add(self, chunk: SealedChunk, generation: int) -> None:
        files, size = chunk.whole_entries, sum(entry[7] for entry in chunk.entries)
        with self.lock:
            self.report.done_files += files
            self.report.done_bytes += size
            self.report.generation = max(self.report.generation, generation)
            if chunk.source is None:
                self.copied_files += files
                self.copied_bytes += len(chunk.payload)
            else:
                self.attached_files += files
                self.attached_bytes += size


def run_attach(session: Session, options: AttachOptions) -> int:
    """Attach the records of all sources; returns the exit code."""
    started_s = time.monotonic()
    if not 0 < options.chunk_bytes <= CHUNK_PAYLOAD_BYTES_MAX:
        raise InvalidInput(f"--chunk-size: a chunk takes 1 byte to {format_size(CHUNK_PAYLOAD_BYTES_MAX)}")
    names = [one for name in options.names[:-1] for one in expanded_source(name)]
    if not names or not is_location(options.names[-1]):
        raise InvalidInput("name sources and a destination: dlcmd attach SOURCE... dl://DATASET/")
    destination = changeable_location(options.names[-1])
    template = None if options.template is None else Template(options.template)
    placed = Names(destination.path, options.is_renaming)
    report = TransferReport()
    target = find_target(session.client, replace(destination, is_folder_form=True))

    def failed(source: bytes, reason: str, is_damaged: bool = False) -> None:
        report.fail(printable(source), reason)
        report.is_damaged |= is_damaged

    with closing(AttachSources()) as sources:

        def records(name: str) -> Iterator[Record]:
            return records_of(
                name,
                options.format_name,
                template,
                placed,
                options.patterns,
                session.output,
                failed,
                sources.stream,
            )

        for name in names:  # all of them, before the first one is attached
            _check(name, options.format_name, session.output, sources)
        if options.is_dry_run:
            return _show(session.output, destination, chain.from_iterable(map(records, names)), report)
        totals = _Totals(report)
        with shown(session.output, "attach", lambda: Reading.of(report)):
            _attach(session, target, map(records, names), sources, totals, failed, options.chunk_bytes)
    return _summary(session.output, destination, names, totals, time.monotonic() - started_s)


def _check(name: str, format_name: str, output: Output, sources: AttachSources) -> None:
    """Raise InvalidInput for a source that cannot be attached, NotFound if there is none."""
    if name == STANDARD_INPUT:
        raise InvalidInput("-: standard input is no file that stays; store its records with dlcmd import")
    with ExitStack() as stack:
        source = Input(name, stack, output, open_remote=sources.stream)
        found = format_of(source, format_name)
        shown_name = printable(os.fsencode(name))
        if not found.is_attachable:
            raise InvalidInput(
                f"{shown_name}: the values of {found.title} are no ranges of the file; store them with dlcmd import"
            )
        if not source.is_plain:
            raise InvalidInput(f"{shown_name}: it is compressed; store its records with dlcmd import")
        found.read()


def _attach(
    session: Session,
    target: Target,
    found: Iterable[Iterator[Record]],
    sources: AttachSources,
    totals: _Totals,
    failed: Failed,
    chunk_bytes: int,
) -> None:
    """`found`: the records of each source. Raises the first error of the server. What is attached by then stays; the
    same command attaches all.
    """
    sender = ChunkSender(session.client, target.made(), totals.add)
    try:
        attaching = Attaching(sender.submit, sender.reserve_version, sources.opened, failed, chunk_bytes)
        for records in found:
            for batch in batches(_counted(records, totals.report)):
                attaching.add(batch)
            attaching.finish()
        totals.report.is_all_found = True
        sender.wait_stored()
    except BaseException:
        sender.abandon()
        raise
    sender.close()


def _counted(records: Iterator[Record], report: TransferReport) -> Iterator[Record]:
    for record in records:
        report.find(record.file_bytes, record.is_folder)
        if record.place is not None and record.size:
            record.content = None  # it is read again, with its neighbours
        elif not record.size and not record.is_folder and not record.target:
            record.content = b""
        yield record


def _show(output: Output, destination: Location, records: Iterator[Record], report: TransferReport) -> int:
    """The dry run."""
    for record in records:
        if record.place is None and not is_copied(record):
            report.fail(printable(record.source), "the source has it in another form; use dlcmd import")
            continue
        report.find(record.file_bytes, record.is_folder)
        verb = "copy" if record.place is None or not record.size else "attach"
        place = Location(destination.dataset, record.path, False)
        names = {**name_fields(record.source, "source"), **name_fields(record.path)}
        text = f"would {verb} {printable(record.source)} -> {place}"
        output.detail("entry", text, {**names, "size": record.file_bytes})
    output.failures(report.failures, report.failed_files)
    return output.summary(
        f"would attach {count(report.found_files, 'entry')} ({output.size(report.found_bytes)})",
        {
            "dry_run": True,
            "entries": report.found_files,
            "bytes": report.found_bytes,
            "failed": report.failed_files,
        },
        _exit_code(report),
    )


def _summary(
    output: Output, destination: Location, sources: Sequence[str], totals: _Totals, elapsed_s: float
) -> int:
    report = totals.report
    output.failures(report.failures, report.failed_files)
    text = f"attached {count(totals.attached_files, 'file')} ({output.size(totals.attached_bytes)})"
    if totals.copied_files:
        text += f", copied {count(totals.copied_files, 'entry')} ({output.size(totals.copied_bytes)})"
    if report.failed_files:
        text += f", {report.failed_files:,} failed"
    text += f" in {format_duration(elapsed_s)}; keep {sources[0] if len(sources) == 1 else 'the sources'} unchanged"
    fields = {
        "dataset": destination.dataset,
        "generation": report.generation,
        "attached": totals.attached_files,
        "attached_bytes": totals.attached_bytes,
        "copied": totals.copied_files,
        "copied_bytes": totals.copied_bytes,
        "failed": report.failed_files,
        "seconds": round(elapsed_s, 3),
    }
    return output.summary(text, fields, _exit_code(report))


def _exit_code(report: TransferReport) -> int:
    if report.is_damaged:
        return EXIT_DAMAGED
    return EXIT_PARTIAL if report.failed_files else EXIT_OK
