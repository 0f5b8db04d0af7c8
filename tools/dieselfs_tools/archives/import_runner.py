"""The work of `dlcmd import`: records of all sources, with their names, as entries of one upload. No I/O of its own."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count as counted

from dieselfs.attached.web_url import is_web_url
from dieselfs.bucket.url import is_object_url
from dieselfs.errors import Damaged, DieselfsError, InvalidInput
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX
from dieselfs.names import is_location, printable
from dieselfs.transfer.upload import Failed, UploadEntry
from dieselfs.units import format_size
from dieselfs_tools.archives.formats import Format, format_of
from dieselfs_tools.archives.importing.inputs import Input, OpenRemote
from dieselfs_tools.archives.importing.naming import Names, Template, cleaned
from dieselfs_tools.archives.importing.record import Record
from dieselfs_tools.cli.options import changeable_location
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.session import Session
from dieselfs_tools.cli.spool import STANDARD_INPUT
from dieselfs_tools.transfers.upload_runner import Upload, find_target


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Arguments and options of `dlcmd import`. The last of `names` is the destination."""

    names: Sequence[str]
    format_name: str
    template: str | None
    is_renaming: bool
    is_dry_run: bool
    is_forced: bool
    patterns: Patterns
    jobs: int
    chunk_bytes: int


def run_import(session: Session, options: ImportOptions) -> int:
    """Store the records of all sources; returns the exit code."""
    started_s = time.monotonic()
    if not 0 < options.chunk_bytes <= CHUNK_PAYLOAD_BYTES_MAX:
        raise InvalidInput(f"--chunk-size: a chunk takes 1 byte to {format_size(CHUNK_PAYLOAD_BYTES_MAX)}")
    sources = [one for name in options.names[:-1] for one in expanded_source(name)]
    if not sources or not is_location(options.names[-1]):
        raise InvalidInput("name sources and a destination: dlcmd import SOURCE... dl://DATASET/")
    if sources.count(STANDARD_INPUT) > 1:
        raise InvalidInput("standard input ('-') can be one source only")
    destination = changeable_location(options.names[-1])
    template = None if options.template is None else Template(options.template)
    for name in sources:
        if not is_web_url(name) and not is_object_url(name) and name != STANDARD_INPUT:
            with ExitStack() as stack:  # all sources are looked at before the first byte is stored
                format_of(Input(name, stack, session.output), options.format_name).read()
    target = find_target(session.client, replace(destination, is_folder_form=True))

    def walk(failed: Failed) -> Iterator[UploadEntry]:
        names = Names(destination.path, options.is_renaming)
        for source in sources:
            yield from records_of(
                source, options.format_name, template, names, options.patterns, session.output, failed
            )

    upload = Upload(
        session=session,
        target=target,
        walk=walk,
        verb="import",
        jobs=options.jobs,
        chunk_bytes=options.chunk_bytes,
        is_many=True,
        is_forced=options.is_forced,
        started_s=started_s,
    )
    return upload.run(options.is_dry_run)


def expanded_source(name: str) -> list[str]:
    """The sources that a name stands for: those of a bucket, or itself."""
    if not is_object_url(name):
        return [name]
    from dieselfs_tools.archives.importing.bucket_files import expanded

    return expanded(name)


def records_of(
    name: str,
    format_name: str,
    template: Template | None,
    names: Names,
    patterns: Patterns,
    output: Output,
    failed: Failed,
    open_remote: OpenRemote | None = None,
) -> Iterator[Record]:
    """The selected records of one source that can be stored. Its failures, and those of records, go to `failed`.
    `open_remote` opens what is at a URL.
    """
    origin = os.fsencode(name)
    try:
        with ExitStack() as stack:
            source = Input(name, stack, output, open_remote=open_remote)
            chosen = format_of(source, format_name)
            namer = _Namer(chosen, template, names, os.fsencode(source.label))
            for record in chosen.read()(source):
                record.origin = origin
                if template is not None and record.is_folder:
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
