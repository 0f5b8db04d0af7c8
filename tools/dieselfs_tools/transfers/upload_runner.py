"""The work of verbs that upload: the destination, the dry run, the transfer and its summary. No I/O of its own."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dieselfs.errors import (
    AlreadyExists,
    DieselfsError,
    InvalidInput,
    NotFound,
    StorageFull,
)
from dieselfs.names import Location, printable
from dieselfs.records import DatasetRecord, Op
from dieselfs.rpc.client import ServerClient
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.upload import Failed, TreeUpload, UploadEntry, is_stored
from dieselfs.units import count
from dieselfs_tools.cli.output import Output, name_fields
from dieselfs_tools.cli.progress import Reading, outcome, shown
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.entries import Entry
from dieselfs_tools.transfers.mirror import Mirror


@dataclass(frozen=True)
class Target:
    """`dataset` is None if it does not exist. `is_folder`: sources go into the destination, under their own names."""

    client: ServerClient
    location: Location
    dataset: DatasetRecord | None
    is_folder: bool

    def made(self) -> DatasetRecord:
        """The dataset, which is created if it does not exist."""
        if self.dataset is not None:
            return self.dataset
        try:
            return self.client.create_dataset(self.location.dataset)
        except AlreadyExists:
            return self.client.dataset(self.location.dataset)

    def holds(self, entry: UploadEntry) -> bool:
        """Whether the entry is stored with the same type, size, time and mode. Sends one request to the server."""
        if self.dataset is None:
            return False
        try:
            stored = self.client.stat(self.dataset.name, entry.path)
        except NotFound:
            return False
        found = Entry.of_server(entry.path, stored)
        return entry.is_same(found.mode, found.size, found.mtime_ns, found.target)


def find_target(client: ServerClient, location: Location) -> Target:
    """The destination at a location. Raises InvalidInput if it names a folder, and is a file."""
    try:
        dataset = client.dataset(location.dataset)
    except NotFound:
        return Target(client, location, None, location.is_folder_form)
    try:
        is_folder = Op(client.stat(dataset.name, location.path).op) == Op.DIRECTORY
    except NotFound:
        return Target(client, location, dataset, location.is_folder_form)
    if location.is_folder_form and not is_folder:
        raise InvalidInput(f"{location}: not a folder, but a file")
    return Target(client, location, dataset, is_folder)


Walk = Callable[[Failed], Iterator[UploadEntry]]
"""Yields the entries of all sources, and passes failures to its argument."""


@dataclass(frozen=True, kw_only=True)
class Upload:
    """The work of one `put` or `import`.

    `is_many`: entries are compared with a snapshot, not with a request for each;
    `is_forced`: what is stored already is stored again; `source_name`: of the first entry, instead of its own.
    `mirror`: deletes what the walk does not have, after the upload; nothing if an entry has failed.
    """

    session: Session
    target: Target
    walk: Walk
    jobs: int
    chunk_bytes: int
    is_many: bool
    is_forced: bool
    source_name: bytes | None = None
    mirror: Mirror | None = None

    def run(self, is_dry_run: bool) -> int:
        """Returns the exit code."""
        return self.show() if is_dry_run else self.upload()

    def _stored(self) -> Callable[[UploadEntry], bool] | None:
        """Whether the dataset has an entry; None if all are stored again."""
        if self.target.dataset is None or self.is_forced:
            return None
        if not self.is_many:
            return self.target.holds
        snapshot = self.session.dataset(self.target.dataset.name).snapshot
        return lambda entry: is_stored(entry, snapshot)

    def _entries(self, failed: Failed) -> Iterator[UploadEntry]:
        entries = self.walk(failed)
        return entries if self.mirror is None else self.mirror.noted(entries)

    def show(self) -> int:
        """The dry run."""
        output, report, is_held = self.session.output, TransferReport(), self._stored()
        for entry in self._entries(report.fail_source):
            if is_held is not None and is_held(entry):
                report.skip(0, entry.is_folder)
                continue
            report.find(entry.file_bytes, entry.is_folder)
            show_entry(output, self.session.verb, entry, self.target.location.dataset)
        removed = self._removed(report)
        for path in removed:
            place = Location(self.target.location.dataset, path, False)
            output.detail("deletion", f"would delete {place}", name_fields(path))
        output.failures(report.failures, report.failed_files)
        return output.summary(
            f"would store {count(report.found_files, 'entry')} ({output.size(report.found_bytes)}), "
            f"skip {report.skipped_files:,} that are already stored"
            + (f", delete {count(len(removed), 'entry')}" if removed else ""),
            {
                "dry_run": True,
                "entries": report.found_files,
                "bytes": report.found_bytes,
                "skipped": report.skipped_files,
                "deleted": len(removed),
                "failed": report.failed_files,
            },
            report.exit_code,
        )

    def upload(self) -> int:
        """Store the entries. Raises errors that end the upload, with the number of files stored by then."""
        is_held = self._stored()
        upload = TreeUpload(self.session.client, self.target.made(), is_held, self.jobs, self.chunk_bytes)
        report = upload.report
        first: list[UploadEntry] = []

        def entries(failed: Failed) -> Iterator[UploadEntry]:
            for entry in self._entries(failed):
                if not first and not entry.is_folder:
                    first.append(entry)
                yield entry

        try:
            with shown(self.session.output, self.session.verb, lambda: Reading.of(report)):
                upload.run(entries)
        except DieselfsError as error:
            stored = f"stored {_counted(report)} until then; the same command continues"
            is_full = isinstance(error, StorageFull)
            room = " when there is room: dlcmd purge, a larger disk or quota" if is_full else ""
            raise type(error)(f"{error}; {stored}{room}") from error
        removed = self._removed(report)
        deleted = self.mirror.delete(removed) if self.mirror is not None and removed else 0
        return self._report(report, first[0] if first else None, deleted)

    def _removed(self, report: TransferReport) -> Sequence[bytes]:
        """What is to be deleted."""
        removed = () if self.mirror is None else self.mirror.extraneous()
        if removed and report.failed_files:
            self.session.output.error(
                "nothing is deleted, because sources failed; run it again without failures"
            )
            return ()
        return removed

    def _report(self, report: TransferReport, first: UploadEntry | None, deleted: int) -> int:
        elapsed_s, dataset = time.monotonic() - self.session.started_s, self.target.location.dataset
        output, done = self.session.output, f"stored {_counted(report)}"
        text = outcome(output, report, done, "were already stored", elapsed_s)
        fields: dict[str, object] = {
            "dataset": dataset,
            "generation": report.generation,
            "stored": report.done_files,
            "stored_bytes": report.done_bytes,
            "skipped": report.skipped_files,
            "skipped_bytes": report.skipped_bytes,
            "deleted": deleted,
            "failed": report.failed_files,
            "seconds": round(elapsed_s, 3),
        }
        if deleted:
            text += f"; deleted {count(deleted, 'entry')}"
        if first is not None and report.done_files:
            source, path = self.source_name or first.source, first.path
            text += f"; the first: {printable(source)} -> {Location(dataset, path, False)}"
            fields |= {**name_fields(source, "first_source"), **name_fields(path, "first_path")}
        return output.summary(text, fields, report.exit_code)


def _counted(report: TransferReport) -> str:
    """The number of stored files, and of folders if there are any."""
    folders = min(report.found_folders - report.skipped_folders, report.done_files)
    files = count(report.done_files - folders, "file")
    return f"{files} and {count(folders, 'folder')}" if folders else files


def show_entry(output: Output, verb: str, entry: UploadEntry, dataset: str) -> None:
    """One entry of a dry run."""
    names = {**name_fields(entry.source, "source"), **name_fields(entry.path)}
    text = f"would {verb} {printable(entry.source)} -> {Location(dataset, entry.path, False)}"
    output.detail("entry", text, {**names, "size": entry.file_bytes})
