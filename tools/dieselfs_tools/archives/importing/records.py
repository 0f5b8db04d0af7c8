"""The records of the sources of an import or attach, and their names in the dataset. This module maps memory."""

import os
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count as counted
from itertools import islice
from mmap import mmap
from typing import NamedTuple

from dieselfs.bucket.url import is_object_url
from dieselfs.errors import Damaged, DieselfsError, InvalidInput
from dieselfs.names import is_location, printable
from dieselfs.transfer.upload import Failed
from dieselfs.units import format_size
from dieselfs_tools.archives.formats import Format
from dieselfs_tools.archives.importing.inputs import OpenRemote, label_of
from dieselfs_tools.archives.importing.naming import Names, Template, cleaned
from dieselfs_tools.archives.importing.reader import Readers
from dieselfs_tools.archives.importing.record import PART_BYTES, ArrayForm, Record
from dieselfs_tools.cli.options import changeable_location
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.upload import UploadOptions

RECORDS_PER_LOOK = 64
"""So often the limits of an import are compared with the counts of all processes."""
PARTS_MAX = 512
"""Starts of parts in all sources together."""
SOURCES_PER_JOB = 8
"""More sources than that keep all processes busy: none of them is divided."""


class Part(NamedTuple):
    """What one process reads of the source with the number `source`. `number`: of the part, in the order of all;
    `begin` and `end`: as of `Input`.
    """

    number: int
    source: int
    begin: int = 0
    end: int = 0


@dataclass(frozen=True, kw_only=True)
class RecordOptions(UploadOptions):
    """Arguments and options of verbs that read records. The last of `names` is the destination. `is_by_row`:
    as of `ArrayForm`. `records_max` and `bytes_max`: of all sources together.
    """

    names: Sequence[str]
    format_name: str
    template: str | None
    is_renaming: bool
    is_by_row: bool | None = None
    records_max: int = sys.maxsize
    bytes_max: int = sys.maxsize


class Records:
    """The records of all `sources` that a command line names, for one pass. `destination`: where they are stored. Close
    it at the end.
    """

    def __init__(
        self,
        session: Session,
        options: RecordOptions,
        open_remote: OpenRemote | None = None,
        has_contents: bool = True,
    ) -> None:
        """Raises InvalidInput. `open_remote` opens what is at a URL; `has_contents`: their content is read."""
        self.sources = [one for name in options.names[:-1] for one in _expanded(name)]
        if not self.sources or not is_location(options.names[-1]):
            raise InvalidInput(
                f"name sources and a destination: dlcmd {session.verb} SOURCE... dl://DATASET/"
            )
        self.destination = changeable_location(options.names[-1])
        self._options = options
        self._has_contents = has_contents and not options.is_dry_run
        form = ArrayForm(options.is_by_row, is_in_place=not has_contents)
        self._readers = Readers(session.output, open_remote, form)
        self.start, self.close = self._readers.start, self._readers.close
        self._divisible: set[str] = set()
        self._has_failed = mmap(-1, len(self.sources))  # by the number of a source; any process sets it
        # Pairs of records and bytes, by the number of a part; each is written by the process that reads the part.
        self._counts = memoryview(mmap(-1, 16 * (len(self.sources) + PARTS_MAX))).cast("q")
        self._template = None if options.template is None else Template(options.template)

    def names(self) -> Names:
        """For the names of some of the sources, which are then different."""
        return Names(self.destination.path, self._options.is_renaming)

    @property
    def steps(self) -> int:
        """Rises while a source is read."""
        return self._readers.steps

    def check(self, name: str) -> tuple[Format, bool]:
        """The format of a source, and whether it has the bytes as they are. Raises NotFound, and InvalidInput if it
        cannot be read.
        """
        with self._readers.read(name, self._options.format_name, jobs=1) as source:
            has_index = (
                self._template is not None and self._template.has_index
            )  # records before a part are not known
            is_large = os.path.isfile(name) and os.path.getsize(name) > 2 * PART_BYTES
            if is_large and source.is_plain and source.format.is_divisible and not has_index:
                self._divisible.add(name)
            return source.format, source.is_plain

    @property
    def has_divisible(self) -> bool:
        """After `check` of all: whether several processes can read one of the sources."""
        return bool(self._divisible)

    def parts(self, jobs: int = 1) -> Iterator[Part]:
        """All sources, in order: parts for as many processes, found while they are taken."""
        number, left = 0, PARTS_MAX
        for source, name in enumerate(self.sources):
            begin = 0
            with closing(self._starts(name, jobs)) as starts:
                for start in islice(starts, left):
                    yield Part(number, source, begin, start)
                    number, left, begin = number + 1, left - 1, start
            yield Part(number, source, begin)
            number += 1

    def _starts(self, name: str, jobs: int) -> Generator[int]:
        if jobs == 1 or name not in self._divisible or len(self.sources) > SOURCES_PER_JOB * jobs:
            return
        with (
            suppress(DieselfsError, OSError),  # who reads the part from there reports it
            self._readers.read(name, self._options.format_name, jobs=jobs) as source,
        ):
            yield from source.starts()

    def all(self, failed: Failed) -> Iterator[Record]:
        """The records of all sources, in order; as `of`."""
        names = self.names()
        for part in self.parts():
            yield from self.of(part, failed, names)

    def of(self, part: Part, failed: Failed, names: Names) -> Iterator[Record]:
        """The selected records of a part that can be stored. Failures of records go to `failed`, and the first one of
        the source.
        """
        number, patterns, name = part.number, self._options.patterns, self.sources[part.source]
        origin = os.fsencode(name)
        try:
            with self._readers.read(
                name, self._options.format_name, self._has_contents, begin=part.begin, end=part.end
            ) as source:
                namer = _Namer(source.format, self._template, names, os.fsencode(label_of(name)))
                for record in self._counted(number, source):
                    record.origin = origin
                    if self._template is not None and record.is_folder:
                        continue  # the template says which folders there are
                    place = namer.number(record)
                    if patterns and not patterns.is_wanted(cleaned(record.name), record.is_folder):
                        continue
                    if fault := namer.place(record, place):
                        failed(record.source, fault)
                    else:
                        yield record
        except (DieselfsError, OSError) as error:
            if self._has_failed[part.source]:
                return
            self._has_failed[part.source] = True
            text = str(error) if isinstance(error, DieselfsError) else error.strerror or str(error)
            failed(origin, text.removeprefix(f"{printable(origin)}: "), isinstance(error, Damaged))

    def _counted(self, number: int, records: Iterable[Record]) -> Iterator[Record]:
        """The records of a part. Raises InvalidInput for one that is too many: other processes read others meanwhile,
        and their counts are seen now and then, and at the end of the part.
        """
        options, counts, first = self._options, self._counts, 2 * number
        counts[first] = counts[first + 1] = records_before = bytes_before = 0
        for place, record in enumerate(records):
            if place % RECORDS_PER_LOOK == 0:
                records_before = sum(counts[::2]) - counts[first]
                bytes_before = sum(counts[1::2]) - counts[first + 1]
            counts[first] += 1
            counts[first + 1] += record.size
            if (
                counts[first] + records_before > options.records_max
                or counts[first + 1] + bytes_before > options.bytes_max
            ):
                raise self._too_many(f"at {printable(record.name)}")
            yield record
        if sum(counts[::2]) > options.records_max or sum(counts[1::2]) > options.bytes_max:
            raise self._too_many("with this one")

    def _too_many(self, where: str) -> InvalidInput:
        options = self._options
        return InvalidInput(
            f"more than {options.records_max:,} records or {format_size(options.bytes_max)} in all sources, {where}; "
            "if that is right, raise --max-records or --max-size"
        )


def _expanded(name: str) -> list[str]:
    """The sources that a name stands for: those of a bucket, or itself."""
    if not is_object_url(name):
        return [name]
    from dieselfs_tools.archives.importing.bucket_files import expanded

    return expanded(name)


class _Namer:
    """Places the records of one source."""

    def __init__(self, chosen: Format, template: Template | None, names: Names, label: bytes) -> None:
        self._has_template = template is not None
        self._template = template or Template(chosen.template)
        self._names = names
        self._label = label
        self._numbers = counted()

    def number(self, record: Record) -> int:
        """The number of a file in its source, whether it is selected or not; -1 for others."""
        return -1 if record.is_folder or record.fault else next(self._numbers)

    def place(self, record: Record, number: int) -> str:
        """Set the path of a record; returns why it cannot be imported, or nothing."""
        if record.fault:
            return record.fault
        if record.is_hard_link and self._has_template:
            return "a hard link, whose target has another name by --name"
        try:
            filled = self._template.fill(record.name, self._label, number, record.fields)
            record.path = self._names.place(filled, record.is_folder)
        except InvalidInput as error:
            return str(error)
        return ""
