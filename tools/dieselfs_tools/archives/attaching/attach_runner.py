"""The work of `dlcmd attach`: records of all sources, as extents of the sources. This module opens files."""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Lock

from dieselfs.chunk.builder import SealedChunk
from dieselfs.errors import InvalidInput
from dieselfs.names import Location, printable
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.sender import ChunkSender
from dieselfs.units import count, format_duration
from dieselfs_tools.archives.attaching.kept_sources import KeptSources
from dieselfs_tools.archives.attaching.packing import Attaching, batches, is_copied
from dieselfs_tools.archives.importing.record import Record
from dieselfs_tools.archives.importing.records import RecordOptions, Records
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session
from dieselfs_tools.cli.spool import STANDARD_INPUT
from dieselfs_tools.transfers.upload_runner import Target, find_target, show_entry


@dataclass(eq=False)
class _Totals:
    """What is stored so far. Guarded by `lock`: several threads store."""

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


def run_attach(session: Session, options: RecordOptions) -> int:
    """Attach the records of all sources; returns the exit code."""
    report = TransferReport()
    with closing(KeptSources()) as sources:
        records = Records(session, options, sources.stream)
        target = find_target(session.client, replace(records.destination, is_folder_form=True))
        for name in records.sources:  # all of them, before the first one is attached
            _check(records, name)
        if options.is_dry_run:
            found = (record for name in records.sources for record in records.of(name, report.fail_source))
            return _show(session, records.destination, found, report)
        totals = _Totals(report)
        with shown(session.output, session.verb, lambda: Reading.of(report)):
            _attach(session, target, records, sources, totals, options.chunk_bytes)
    return _summary(session, records, totals)


def _check(records: Records, name: str) -> None:
    """Raise InvalidInput for a source that cannot be attached, NotFound if there is none."""
    if name == STANDARD_INPUT:
        raise InvalidInput("-: standard input is no file that stays; store its records with dlcmd import")
    found, is_plain = records.check(name)
    shown_name = printable(os.fsencode(name))
    if not found.is_attachable:
        raise InvalidInput(
            f"{shown_name}: the values of {found.title} are no ranges of the file; store them with dlcmd import"
        )
    if not is_plain:
        raise InvalidInput(f"{shown_name}: it is compressed; store its records with dlcmd import")


def _attach(
    session: Session,
    target: Target,
    records: Records,
    sources: KeptSources,
    totals: _Totals,
    chunk_bytes: int,
) -> None:
    """Raises the first error of the server. What is attached by then stays; the same command attaches all."""
    failed = totals.report.fail_source
    sender = ChunkSender(session.client, target.made(), totals.add)
    try:
        attaching = Attaching(sender.submit, sender.reserve_version, sources.opened, failed, chunk_bytes)
        for name in records.sources:
            for batch in batches(_counted(records.of(name, failed), totals.report)):
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


def _show(session: Session, destination: Location, records: Iterator[Record], report: TransferReport) -> int:
    """The dry run."""
    output = session.output
    for record in records:
        if record.place is None and not is_copied(record):
            report.fail(printable(record.source), "the source has it in another form; use dlcmd import")
            continue
        report.find(record.file_bytes, record.is_folder)
        verb = "copy" if record.place is None or not record.size else "attach"
        show_entry(output, verb, record, destination.dataset)
    output.failures(report.failures, report.failed_files)
    return output.summary(
        f"would attach {count(report.found_files, 'entry')} ({output.size(report.found_bytes)})",
        {
            "dry_run": True,
            "entries": report.found_files,
            "bytes": report.found_bytes,
            "failed": report.failed_files,
        },
        report.exit_code,
    )


def _summary(session: Session, records: Records, totals: _Totals) -> int:
    output, report, sources = session.output, totals.report, records.sources
    elapsed_s = time.monotonic() - session.started_s
    output.failures(report.failures, report.failed_files)
    text = f"attached {count(totals.attached_files, 'file')} ({output.size(totals.attached_bytes)})"
    if totals.copied_files:
        text += f", copied {count(totals.copied_files, 'entry')} ({output.size(totals.copied_bytes)})"
    if report.failed_files:
        text += f", {report.failed_files:,} failed"
    text += f" in {format_duration(elapsed_s)}; keep {sources[0] if len(sources) == 1 else 'the sources'} unchanged"
    fields = {
        "dataset": records.destination.dataset,
        "generation": report.generation,
        "attached": totals.attached_files,
        "attached_bytes": totals.attached_bytes,
        "copied": totals.copied_files,
        "copied_bytes": totals.copied_bytes,
        "failed": report.failed_files,
        "seconds": round(elapsed_s, 3),
    }
    return output.summary(text, fields, report.exit_code)
