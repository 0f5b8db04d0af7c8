"""Packs records of archives into attached chunks: which ranges of the sources they take, and what is copied.

This module reads the sources.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from dieselfs.attached.opening import OpenSource
from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.source import AttachedSource
from dieselfs.limits import (
    CHUNK_ENTRIES_MAX,
    CHUNK_PATH_BYTES_MAX,
    CHUNK_PAYLOAD_BYTES_MAX,
    KIB,
    MIB,
    PATH_BYTES_MAX,
)
from dieselfs.transfer.upload import Failed
from dieselfs_tools.archives.importing.record import Place, Record

GAP_BYTES_MAX = 64 * KIB
"""Of a source between two members in one chunk. It is read with them, and unused."""

COPIED_BYTES_MAX = 4 * KIB
"""Of a value that an import converts, as a number to an .npy file: no range of the source has it, so it is copied."""

SORTED_AT_ONCE = 1 << 17
"""Records that are sorted by their places, because an LMDB file has them in another order than their keys."""

BATCH_BYTES = 32 * MIB
"""Of records that are in the order of their places: they are attached soon after they were read."""

_REFUSED = "the source has it compressed or in another form; store it with dlcmd import"


@dataclass(eq=False)
class Run:
    """Records whose contents follow each other in `file`, from `begin` to `end`, with small gaps."""

    file: str
    begin: int
    end: int
    path_bytes: int = 0
    records: list[tuple[Record, Place]] = field(default_factory=list)

    def takes(self, record: Record, place: Place, chunk_bytes: int) -> bool:
        """Whether the chunk of this run has room for one more record, which does not begin before the others."""
        end = max(self.end, place.offset + record.size)
        return (
            place.file == self.file
            and place.offset - self.end <= GAP_BYTES_MAX
            and self.end - self.begin < chunk_bytes
            and end - self.begin <= CHUNK_PAYLOAD_BYTES_MAX
            and len(self.records) < CHUNK_ENTRIES_MAX
            and self.path_bytes + len(record.path) <= CHUNK_PATH_BYTES_MAX - PATH_BYTES_MAX
        )

    def add(self, record: Record, place: Place) -> None:
        self.records.append((record, place))
        self.end = max(self.end, place.offset + record.size)
        self.path_bytes += len(record.path)


def runs(placed: Iterable[tuple[Record, Place]], chunk_bytes: int) -> Iterator[Run]:
    """The runs of records, in the order of their places. A record of more than `chunk_bytes` is alone in one."""
    run: Run | None = None
    for record, place in sorted(placed, key=lambda one: one[1][:2]):
        is_large = record.size > chunk_bytes
        if run is not None and (is_large or not run.takes(record, place, chunk_bytes)):
            yield run
            run = None
        if run is None:
            run = Run(place.file, place.offset, place.offset)
        run.add(record, place)
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
        reserve_version: Callable[[], int],
        open_source: Callable[[str], OpenSource],
        failed: Failed,
        chunk_bytes: int,
    ) -> None:
        """`submit` stores a chunk; `open_source` is called for each use of a source; `failed` gets records that cannot
        be attached.
        """
        self._submit = submit
        self._reserve_version = reserve_version
        self._open_source = open_source
        self._failed = failed
        self._chunk_bytes = chunk_bytes
        self._copied = ChunkBuilder(chunk_bytes)
        self._waiting: list[tuple[Record, Place]] = []
        self._crc32 = 0  # of the extents of a record so far

    def add(self, records: Iterable[Record]) -> None:
        """Attach records; those that have no bytes, and small converted ones, are stored in ordinary chunks. The last
        ones wait for those that follow, because their chunk may have room.
        """
        placed = self._waiting
        for record in records:
            if record.place is not None and record.size:
                if record.place.offset + record.size > self._open_source(record.place.file).source.size_bytes:
                    self._failed(record.source, "damaged: the source ends before its end", True)
                else:
                    placed.append((record, record.place))
            elif is_copied(record):
                record.pack(self._copied)
                if self._copied.is_full:
                    self._submit(self._copied.seal())
            else:
                self._failed(record.source, _REFUSED)
        found = list(runs(placed, self._chunk_bytes))
        self._waiting = found.pop().records if found else []
        for run in found:
            self._attach(run)

    def finish(self) -> None:
        """Submit what is left of a source."""
        for run in runs(self._waiting, self._chunk_bytes):
            self._attach(run)
        self._waiting = []
        self._submit(self._copied.seal())

    def _attach(self, run: Run) -> None:
        source = self._open_source(run.file)
        record = run.records[0][0]
        if record.size > self._chunk_bytes:
            version = self._reserve_version()
            for place in range(0, record.size, self._chunk_bytes):
                length = min(self._chunk_bytes, record.size - place)
                self._pack(source, run.begin + place, length, [(record, run.begin, place, length)], version)
            return
        rows = [(record, place.offset, 0, record.size) for record, place in run.records]
        self._pack(source, run.begin, run.end - run.begin, rows, 0)

    def _pack(
        self,
        source: OpenSource,
        begin: int,
        length: int,
        rows: Iterable[tuple[Record, int, int, int]],
        version: int,
    ) -> None:
        """`rows`: record, its place in the source, the place of the extent in it, and the extent's length."""
        builder, payload = ChunkBuilder(self._chunk_bytes), source.read(begin, length)
        source.check()
        view = memoryview(payload)
        for record, offset, place, size in rows:
            start = offset + place - begin
            content = view[start : start + size]
            if self._is_wrong(record, place, content):
                self._failed(record.source, "damaged: its checksum is wrong", True)
                continue  # without its last extent, a large file does not count
            builder.add_file(
                record.path, content, record.mode, record.mtime_ns, record.size, place, version, start
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
    """Records to attach at once: SORTED_AT_ONCE of them, or BATCH_BYTES in the order of their places."""
    batch: list[Record] = []
    size_bytes, is_ordered, end = 0, True, ("", 0)
    for record in records:
        batch.append(record)
        size_bytes += record.size
        if record.place is not None:
            is_ordered &= record.place.file != end[0] or record.place.offset >= end[1]
            end = record.place.file, record.place.offset
        if len(batch) >= SORTED_AT_ONCE or (is_ordered and size_bytes >= BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def is_copied(record: Record) -> bool:
    """Whether a record without a range of the source is stored: a folder, a link, an empty file, a converted value."""
    return not record.size or (record.content is not None and record.size <= COPIED_BYTES_MAX)
