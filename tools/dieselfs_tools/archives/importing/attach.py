"""The work of `dlcmd attach`: records of archives become files whose bytes stay there. This module reads files."""

import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from dieselfs.attached.interface import OpenSource
from dieselfs.attached.opening import open_source
from dieselfs.attached.web_url import is_web_url
from dieselfs.bucket.url import is_object_url
from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.cost import FoldersAbove
from dieselfs.chunk.format import ENTRY_BYTES
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import InvalidInput
from dieselfs.limits import (
    ATTACHED_HEADER_BYTES_MAX,
    CHUNK_ENTRIES_MAX,
    CHUNK_EXTENTS_PER_PAYLOAD_MAX,
    CHUNK_PAYLOAD_BYTES_MAX,
    KIB,
    MIB,
    PATH_BYTES_MAX,
)
from dieselfs.names import Location, printable
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.sender import ChunkSender
from dieselfs.transfer.upload import Failed
from dieselfs.units import count, format_duration
from dieselfs_tools.archives.importing.record import COPIED_BYTES_MAX, Range, Record
from dieselfs_tools.archives.importing.records import RecordOptions, Records
from dieselfs_tools.cli.progress import STANDARD_INPUT, Reading, shown
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.upload import Target, find_target, show_entry

if TYPE_CHECKING:
    from dieselfs_tools.archives.importing.bucket_files import RemoteStream


KEPT_BYTES_MAX = 96 * MIB
"""What is kept of the bytes of a source that were read last, for digests. Earlier ones are fetched again."""

OPEN_MAX = 2
"""Sources that stay open: the last records of one are attached when the next one is read."""


class KeptSource:
    """An `OpenSource` that remembers the last bytes of its stream."""

    def __init__(self, opened: OpenSource) -> None:
        self._opened = opened
        self.source, self.mtime_ns, self.descriptor = opened.source, opened.mtime_ns, opened.descriptor
        self._parts: deque[tuple[int, bytes]] = deque()  # one after the other
        self._kept_bytes = 0

    def stream(self) -> "RemoteStream":
        """All bytes, from the begin."""
        from dieselfs_tools.archives.importing.bucket_files import RemoteStream

        self._parts.clear()
        self._kept_bytes = 0
        return RemoteStream(
            lambda begin, end: self._opened.read(begin, end - begin),
            self.source.size_bytes,
            self.mtime_ns,
            self._keep,
        )

    def _keep(self, begin: int, part: bytes) -> None:
        self._parts.append((begin, part))
        self._kept_bytes += len(part)
        while self._kept_bytes > KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._parts.popleft()[1])

    def read(self, offset: int, length: int) -> bytes:
        end = offset + length
        if (
            not self._parts
            or offset < self._parts[0][0]
            or end > self._parts[-1][0] + len(self._parts[-1][1])
        ):
            return self._opened.read(offset, length)
        return b"".join(
            part[max(offset - begin, 0) : end - begin]
            for begin, part in self._parts
            if begin < end and offset < begin + len(part)
        )

    def check(self) -> None:
        self._opened.check()

    def close(self) -> None:
        self._opened.close()


class KeptSources:
    """For one thread. `name`: of a local file, or a URL. Close it at the end."""

    def __init__(self) -> None:
        self._open: dict[str, KeptSource] = {}  # the last one used is the last one here

    def opened(self, name: str) -> KeptSource:
        """The source with this name. Raises what `open_source` does."""
        found = self._open.pop(name, None)
        if found is None:
            while len(self._open) >= OPEN_MAX:
                self._open.pop(next(iter(self._open))).close()
            location = name if is_object_url(name) or is_web_url(name) else os.path.abspath(name)
            found = KeptSource(open_source(os.fsencode(location), lambda _: None))
        self._open[name] = found
        return found

    def stream(self, name: str) -> "RemoteStream":
        """The bytes of a source at a URL, from its begin."""
        return self.opened(name).stream()

    def close(self) -> None:
        for source in self._open.values():
            source.close()
        self._open.clear()


GAP_BYTES_MAX = 64 * KIB
"""The largest gap between two members in one chunk. It is read with them, and unused."""

SORTED_AT_ONCE = 1 << 17
"""Pieces that are sorted by their places: an LMDB file has them in another order than their keys, and rows of an array
may be in several chunks.
"""

BATCH_BYTES = 32 * MIB
"""Bytes of records to attach at once if they are in the order of their places, soon after they were read."""

_REFUSED = "the source has it compressed or in another form; store it with dlcmd import"


class Piece(NamedTuple):
    """A range of a source with the bytes of a record from `at` on. `version`: of a record in several pieces."""

    record: Record
    where: Range
    at: int = 0
    version: int = 0


@dataclass(eq=False)
class Run:
    """Pieces that follow each other in `file`, from `begin` to `end`, with small gaps."""

    file: str
    begin: int
    end: int
    header_bytes: int = 0
    extents_bytes: int = 0
    pieces: list[Piece] = field(default_factory=list)
    folders: FoldersAbove = field(default_factory=FoldersAbove)

    def takes(self, where: Range, chunk_bytes: int) -> bool:
        """Whether the chunk of this run has room for one more piece, which does not begin before the others."""
        end = max(self.end, where.offset + where.length)
        return (
            where.file == self.file
            and where.offset - self.end <= GAP_BYTES_MAX
            and self.end - self.begin < chunk_bytes
            and end - self.begin <= CHUNK_PAYLOAD_BYTES_MAX
            and len(self.pieces) < CHUNK_ENTRIES_MAX
            and self.header_bytes + 2 * PATH_BYTES_MAX <= ATTACHED_HEADER_BYTES_MAX
            and self.extents_bytes + where.length <= CHUNK_EXTENTS_PER_PAYLOAD_MAX * (end - self.begin)
            and self.folders.have_room(len(self.pieces))
        )

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.end = max(self.end, piece.where.offset + piece.where.length)
        self.header_bytes += ENTRY_BYTES + len(piece.record.path)
        self.extents_bytes += piece.where.length
        self.folders.add(piece.record.path)


def runs(placed: Iterable[Piece], chunk_bytes: int) -> Iterator[Run]:
    """The runs of pieces, in the order of their places. A piece of more than `chunk_bytes` is alone in one."""
    run: Run | None = None
    for piece in sorted(placed, key=lambda one: one.where[:2]):
        is_large = piece.where.length > chunk_bytes
        if run is not None and (is_large or not run.takes(piece.where, chunk_bytes)):
            yield run
            run = None
        if run is None:
            run = Run(piece.where.file, piece.where.offset, piece.where.offset)
        run.add(piece)
        if is_large:
            yield run
            run = None
    if run is not None:
        yield run


class Attaching:
    """Makes the chunks of one attach; for one thread."""

    def __init__(
        self,
        submit: Callable[[SealedChunk], None],
        reserve_version: Callable[[int], int],
        open_source: Callable[[str], OpenSource],
        failed: Failed,
        chunk_bytes: int,
    ) -> None:
        """`submit` stores a chunk; `reserve_version` reserves a number of versions and gives the first;
        `open_source` is called for each use of a source; `failed` gets records that cannot be attached.
        """
        self._submit = submit
        self._reserve_version = reserve_version
        self._open_source = open_source
        self._failed = failed
        self._chunk_bytes = chunk_bytes
        self._copied = ChunkBuilder(chunk_bytes)
        self._waiting: list[Piece] = []
        self._crc32 = 0  # of the extents of a record so far

    def add(self, records: Collection[Record]) -> None:
        """Attach records; those that have no bytes, and small converted ones, are stored in ordinary chunks. The last
        ones wait for those that follow, because their chunk may have room.
        """
        files = {where.file for record in records for where in record.ranges}
        sizes = {file: self._open_source(file).source.size_bytes for file in files}
        divided = sum(len(record.pieces) > 1 for record in records)
        placed, version = self._waiting, self._reserve_version(divided) if divided else 0
        for record in records:
            ranges = record.ranges
            if any(where.offset + where.length > sizes[where.file] for where in ranges):
                self._failed(record.source, "damaged: the source ends before its end", True)
            elif len(ranges) == 1:
                placed.append(Piece(record, ranges[0]))
            elif ranges:
                ends = accumulate((where.length for where in ranges), initial=0)
                placed += [Piece(record, *each, version) for each in zip(ranges, ends, strict=False)]
                version += 1
            elif is_copied(record):
                record.pack(self._copied)
                if self._copied.is_full:
                    self._submit(self._copied.seal())
            else:
                self._failed(record.source, _REFUSED)
        found = list(runs(placed, self._chunk_bytes))
        self._waiting = found.pop().pieces if found else []
        for run in found:
            self._attach(run)

    def finish(self) -> None:
        """Submit what is left of a source."""
        for run in runs(self._waiting, self._chunk_bytes):
            self._attach(run)
        self._waiting = []
        self._submit(self._copied.seal())

    def _attach(self, run: Run) -> None:
        source, first, step = self._open_source(run.file), run.pieces[0], self._chunk_bytes
        if first.where.length <= step:
            self._pack(source, run.begin, run.end - run.begin, run.pieces)
            return
        version = first.version or self._reserve_version(1)
        for place in range(0, first.where.length, step):
            where = Range(run.file, run.begin + place, min(step, first.where.length - place))
            self._pack(source, *where[1:], [Piece(first.record, where, first.at + place, version)])

    def _pack(self, source: OpenSource, begin: int, length: int, pieces: Iterable[Piece]) -> None:
        builder, payload = ChunkBuilder(self._chunk_bytes), source.read(begin, length)
        source.check()
        view = memoryview(payload)
        for record, where, at, version in pieces:
            start = where.offset - begin
            content = view[start : start + where.length]
            if self._is_wrong(record, at, content):
                self._failed(record.source, "damaged: its checksum is wrong", True)
                continue  # without its last extent, a large file does not count
            builder.add_file(
                record.path, content, record.mode, record.mtime_ns, record.size, at, version, start
            )
        found = source.source
        self._submit(
            builder.seal(payload, AttachedSource(found.location, found.size_bytes, found.mark, begin))
        )

    def _is_wrong(self, record: Record, place: int, content: memoryview) -> bool:
        """Whether the checksum of a record is wrong, at the last of its extents, which come one after the other."""
        if record.place is None or record.place.crc32 is None:
            return False
        self._crc32 = zlib.crc32(content, self._crc32 if place else 0)
        return place + len(content) == record.size and self._crc32 != record.place.crc32


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records to attach at once: SORTED_AT_ONCE of their pieces, or BATCH_BYTES in the order of their places."""
    batch: list[Record] = []
    pieces, size_bytes, is_ordered, end = 0, 0, True, ("", 0)
    for record in records:
        batch.append(record)
        size_bytes += record.size
        pieces += max(len(record.pieces), 1)
        is_ordered &= not record.pieces
        if record.place is not None:
            is_ordered &= record.place.file != end[0] or record.place.offset >= end[1]
            end = record.place.file, record.place.offset
        if pieces >= SORTED_AT_ONCE or (is_ordered and size_bytes >= BATCH_BYTES):
            yield batch
            batch, pieces, size_bytes = [], 0, 0
    if batch:
        yield batch


def is_copied(record: Record) -> bool:
    """Whether a record without a range of the source is stored: a folder, a link, an empty file, a converted value."""
    return not record.size or (record.content is not None and record.size <= COPIED_BYTES_MAX)


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
    with (
        closing(KeptSources()) as sources,
        closing(Records(session, options, sources.stream, has_contents=False)) as records,
    ):
        target = find_target(session.client, replace(records.destination, is_folder_form=True))
        for name in records.sources:  # all of them, before the first one is attached
            _check(records, name)
        if options.is_dry_run:
            return _show(session, records.destination, records.all(report.fail_source), report)
        totals = _Totals(report)
        with shown(session.output, session.verb, lambda: Reading.of(report)):
            _attach_all(session, target, records, sources, totals, options.chunk_bytes)
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


def _attach_all(
    session: Session,
    target: Target,
    records: Records,
    sources: KeptSources,
    totals: _Totals,
    chunk_bytes: int,
) -> None:
    """Raises the first error of the server. What is attached by then stays; the same command attaches all."""
    failed, names = totals.report.fail_source, records.names()
    sender = ChunkSender(session.client, target.made(), totals.add)
    try:
        attaching = Attaching(sender.submit, sender.reserve_version, sources.opened, failed, chunk_bytes)
        for part in records.parts():
            for batch in batches(_counted(records.of(part, failed, names), totals.report)):
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
        if record.ranges:
            record.content = None  # it is read again, with its neighbours
        elif not record.size and not record.is_folder and not record.target:
            record.content = b""
        yield record


def _show(session: Session, destination: Location, records: Iterator[Record], report: TransferReport) -> int:
    """The dry run."""
    output = session.output
    for record in records:
        if not record.ranges and not is_copied(record):
            report.fail(printable(record.source), "the source has it in another form; use dlcmd import")
            continue
        report.find(record.file_bytes, record.is_folder)
        verb = "attach" if record.ranges else "copy"
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
