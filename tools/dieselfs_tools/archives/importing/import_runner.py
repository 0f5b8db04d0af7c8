"""The work of `dlcmd import`: the records of all sources as entries of one upload. No I/O of its own."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from dieselfs.attached.web_url import is_web_url
from dieselfs.bucket.url import is_object_url
from dieselfs.errors import InvalidInput
from dieselfs.transfer.upload import Failed, UploadEntry
from dieselfs_tools.archives.importing.records import RecordOptions, Records
from dieselfs_tools.cli.session import Session
from dieselfs_tools.cli.spool import STANDARD_INPUT
from dieselfs_tools.transfers.upload_runner import Upload, find_target


@dataclass(frozen=True, kw_only=True)
class ImportOptions(RecordOptions):
    """Arguments and options of `dlcmd import`."""

    is_forced: bool
    jobs: int


def run_import(session: Session, options: ImportOptions) -> int:
    """Store the records of all sources; returns the exit code."""
    records = Records(session, options)
    if records.sources.count(STANDARD_INPUT) > 1:
        raise InvalidInput("standard input ('-') can be one source only")
    for name in records.sources:  # all of them, before the first byte is stored
        if not is_web_url(name) and not is_object_url(name) and name != STANDARD_INPUT:
            records.check(name)

    def walk(failed: Failed) -> Iterator[UploadEntry]:
        return chain.from_iterable(records.of(source, failed) for source in records.sources)

    upload = Upload(
        session=session,
        target=find_target(session.client, replace(records.destination, is_folder_form=True)),
        walk=walk,
        jobs=options.jobs,
        chunk_bytes=options.chunk_bytes,
        is_many=True,
        is_forced=options.is_forced,
    )
    return upload.run(options.is_dry_run)
