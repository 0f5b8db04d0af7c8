"""The records of the sources of an import or attach, their names in the dataset, and the work of `dlcmd import`."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from itertools import count as counted

from dieselfs.attached.web_url import is_web_url
from dieselfs.bucket.url import is_object_url
from dieselfs.errors import Damaged, DieselfsError, InvalidInput
from dieselfs.names import is_location, printable
from dieselfs.transfer.upload import Failed, UploadEntry
from dieselfs.units import format_size
from dieselfs_tools.archives.formats import Format
from dieselfs_tools.archives.importing.inputs import OpenRemote, label_of
from dieselfs_tools.archives.importing.naming import Names, Template, cleaned
from dieselfs_tools.archives.importing.reader import Readers
from dieselfs_tools.archives.importing.record import Record
from dieselfs_tools.cli.options import changeable_location
from dieselfs_tools.cli.progress import STANDARD_INPUT
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.upload import Upload, UploadOptions, find_target


@dataclass(frozen=True, kw_only=True)
class RecordOptions(UploadOptions):
    """Arguments and options of verbs that read records. The last of `names` is the destination. `records_max` and
    `bytes_max`: of all sources together.
    """

    names: Sequence[str]
    format_name: str
    template: str | None
    is_renaming: bool
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
        self._readers = Readers(session.output, open_remote)
        self.close = self._readers.close
        self._records = self._bytes = 0
        self._template = None if options.template is None else Template(options.template)
        self._names = Names(self.destination.path, options.is_renaming)

    def check(self, name: str) -> tuple[Format, bool]:
        """The format of a source, and whether it has the bytes as they are. Raises NotFound, and InvalidInput if it
        cannot be read.
        """
        with self._readers.read(name, self._options.format_name, is_check=True) as source:
            return source.format, source.is_plain

    def of(self, name: str, failed: Failed) -> Iterator[Record]:
        """The selected records of one source that can be stored. Its failures, and those of records, go to `failed`."""
        origin, patterns = os.fsencode(name), self._options.patterns
        try:
            with self._readers.read(name, self._options.format_name, self._has_contents) as source:
                namer = _Namer(source.format, self._template, self._names, os.fsencode(label_of(name)))
                for record in source:
                    self._count(record)
                    record.origin = origin
                    if self._template is not None and record.is_folder:
                        continue  # the template says which folders there are
                    number = namer.number(record)
                    if patterns and not patterns.is_wanted(cleaned(record.name), record.is_folder):
                        continue
                    if fault := namer.place(record, number):
                        failed(record.source, fault)
                    else:
                        yield record
        except (DieselfsError, OSError) as error:
            text = str(error) if isinstance(error, DieselfsError) else error.strerror or str(error)
            failed(origin, text.removeprefix(f"{printable(origin)}: "), isinstance(error, Damaged))

    def _count(self, record: Record) -> None:
        """Raises InvalidInput for one that is too many."""
        options = self._options
        self._records += 1
        self._bytes += record.size
        if self._records > options.records_max or self._bytes > options.bytes_max:
            raise InvalidInput(
                f"more than {options.records_max:,} records or {format_size(options.bytes_max)} in all sources, at "
                f"{printable(record.name)}; if that is right, raise --max-records or --max-size"
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


def run_import(session: Session, options: RecordOptions) -> int:
    """Store the records of all sources; returns the exit code."""
    with closing(Records(session, options)) as records:
        if records.sources.count(STANDARD_INPUT) > 1:
            raise InvalidInput("standard input ('-') can be one source only")
        for name in records.sources:  # all of them, before the first byte is stored
            if not is_web_url(name) and not is_object_url(name) and name != STANDARD_INPUT:
                records.check(name)

        def walk(failed: Failed) -> Iterator[UploadEntry]:
            return chain.from_iterable(records.of(source, failed) for source in records.sources)

        target = find_target(session.client, replace(records.destination, is_folder_form=True))
        return Upload(session, target, options, walk).run()
