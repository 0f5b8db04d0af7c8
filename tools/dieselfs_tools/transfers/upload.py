"""The work of verbs that upload: sources, destination, dry run, transfer and summary. This module reads files and
standard input.
"""

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dieselfs.chunk.frames import Compression
from dieselfs.errors import DieselfsError, InvalidInput, NotFound, StorageFull, os_errors_as
from dieselfs.limits import CHUNK_TARGET_BYTES, VERSIONS_PER_REQUEST_MAX
from dieselfs.names import Location, is_location, printable
from dieselfs.records import DatasetRecord, Op
from dieselfs.rpc.client import ServerClient
from dieselfs.snapshot.reader import Snapshot
from dieselfs.transfer.equal_extents import EqualExtents
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.upload import DEFAULT_JOBS, Failed, TreeUpload, UploadEntry, is_stored
from dieselfs.units import count
from dieselfs_tools.cli.options import PROCESSES, changeable_location
from dieselfs_tools.cli.output import Output, confirm_name, name_fields
from dieselfs_tools.cli.patterns import Patterns, deletable
from dieselfs_tools.cli.progress import STANDARD_INPUT, Reading, intended, outcome, shown, spooled
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.entries import Entry
from dieselfs_tools.transfers.trees import Source, SourceTrees, StoredTree, find_sources, relative_path
from dieselfs_tools.transfers.upload_workers import Divided, UploadWorkers


class Mirror:
    """The entries of a dataset as they were before the walk of the source.

    Other writers may work meanwhile. What they add is not listed here, so it is not deleted. The versions of the
    deletions are reserved before the walk too: a file that another writer replaces later has a larger version, which
    counts.
    """

    def __init__(
        self,
        session: Session,
        location: Location,
        source: Source,
        patterns: Patterns,
        is_confirmed: bool,
        is_dry_run: bool,
    ) -> None:
        """`is_confirmed`: everything may be deleted; `is_dry_run`: `delete` is not called."""
        self._location = location
        self._source = source
        self._patterns = patterns
        self._is_asked = not (is_confirmed or is_dry_run)
        self._walked: set[bytes] = set()
        self._versions: list[range] = []
        self._snapshot: Snapshot | None = None
        try:
            self._dataset = session.dataset(location.dataset)
            self._snapshot = self._dataset.snapshot
        except NotFound:  # it would be created
            return
        entries = 0 if is_dry_run else len(self._snapshot)
        for start in range(0, entries, VERSIONS_PER_REQUEST_MAX):
            count = min(VERSIONS_PER_REQUEST_MAX, entries - start)
            first = session.client.reserve_versions(location.dataset, count)
            self._versions.append(range(first, first + count))

    def note(self, paths: Iterable[bytes]) -> None:
        """The source has these paths; they are not deleted."""
        self._walked.update(paths)

    def extraneous(self) -> Sequence[bytes]:
        """After the walk: the listed paths that the source does not have, each folder after its content, but for
        excluded ones and folders that have some.

        Raises InvalidInput if the source is empty, and the user does not confirm that.
        """
        source, snapshot = self._source, self._snapshot
        top = -1 if snapshot is None else snapshot.find(source.path)
        if snapshot is None or top < 0 or not snapshot.stat(top).is_folder:
            return ()
        below = StoredTree(snapshot, source.path).reversed_paths()
        kept = {relative_path(source, path) for path in self._walked}
        head = source.path + b"/" if source.path else b""
        removed = [head + path for path in deletable(below, self._patterns, kept)]
        is_empty = all(path == source.path for path in self._walked)
        if removed and is_empty and self._is_asked:
            location = self._location
            confirm_name(location.dataset, f"the source is empty: this deletes everything in {location}")
        return removed

    def delete(self, removed: Sequence[bytes]) -> int:
        """Delete paths of `extraneous`; returns how many are gone. Another writer has stored the others meanwhile."""
        versions = (version for each in self._versions for version in each)
        for path, version in zip(removed, versions, strict=False):
            self._dataset.writer.delete(path, version)
        self._dataset.flush()
        snapshot = self._dataset.snapshot
        return sum(snapshot.find(path) < 0 for path in removed)


@dataclass(frozen=True)
class Target:
    """`dataset` is None if it does not exist. `is_folder`: sources go into the destination, under their own names."""

    client: ServerClient
    location: Location
    dataset: DatasetRecord | None
    is_folder: bool

    def made(self) -> DatasetRecord:
        """The dataset, which is created if it does not exist."""
        return self.dataset or self.client.ensure_dataset(self.location.dataset)

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
class UploadOptions:
    """Options of all verbs that upload. `is_forced`: what is stored already is stored again; `patterns`: select;
    `is_encrypted`: a dataset without files becomes an encrypted one. `compression`: of new chunks. `is_sharing`: files
    with equal bytes share them; then one process reads all.
    """

    is_dry_run: bool
    patterns: Patterns
    is_forced: bool = False
    is_encrypted: bool = False
    jobs: int = PROCESSES
    chunk_bytes: int = CHUNK_TARGET_BYTES
    compression: Compression | None = None
    is_sharing: bool = False


@dataclass(frozen=True)
class Upload:
    """The work of one `put` or `import`.

    `is_many`: entries are compared with a snapshot, not with a request for each; `source_name`: of the first entry,
    instead of its own. `mirror`: deletes what the walk does not have, after the upload; nothing if an entry has failed.
    `is_divided`: also one process takes a `Divided` walk in passes.
    """

    session: Session
    target: Target
    options: UploadOptions
    walk: Walk
    is_many: bool = True
    source_name: bytes | None = None
    mirror: Mirror | None = None
    is_divided: bool = False

    def run(self) -> int:
        """Returns the exit code."""
        return self._show() if self.options.is_dry_run else self._upload()

    def _stored(self) -> Callable[[UploadEntry], bool]:
        """Whether the dataset has an entry that is not to be stored again."""
        if self.target.dataset is None or self.options.is_forced:
            return lambda entry: False
        if not self.is_many:
            return self.target.holds
        snapshot = self.session.dataset(self.target.dataset.name).snapshot
        return lambda entry: is_stored(entry, snapshot)

    def _show(self) -> int:
        """The dry run."""
        output, report, is_held = self.session.output, TransferReport(), self._stored()
        for entry in self.walk(report.fail_source):
            if is_held(entry):
                report.skip(0, entry.is_folder)
                continue
            report.find(entry.file_bytes, entry.is_folder)
            show_entry(output, self.session.verb, entry, self.target.location.dataset)
        removed = self._removed(report)
        for path in removed:
            place = Location(self.target.location.dataset, path, False)
            output.detail("deletion", f"would delete {place}", name_fields(path))
        return intended(output, report, "store", "are already stored", len(removed))

    def _upload(self) -> int:
        """Store the entries. Raises errors that end the upload, with the number of files stored by then."""
        client, dataset = self.session.client, self.target.made()
        if self.options.is_encrypted:
            client.encrypt(dataset)
        chosen = {"--compress": self.options.compression, "--dedup": self.options.is_sharing}
        for option, value in chosen.items():
            if value and client.cipher(dataset) is not None:
                raise InvalidInput(
                    f"dl://{dataset.name} is encrypted, and encrypted bytes do not shrink: leave out {option}"
                )
        upload, run = self._prepared(client, dataset)
        report = upload.report
        try:
            with shown(self.session.output, self.session.verb, lambda: Reading.of(report)):
                run()
        except DieselfsError as error:
            stored = f"stored {_counted(report)} until then; the same command continues"
            is_full = isinstance(error, StorageFull)
            room = " when there is room: dlcmd purge, a larger disk or quota" if is_full else ""
            raise type(error)(f"{error}; {stored}{room}") from error
        removed = self._removed(report)
        deleted = self.mirror.delete(removed) if self.mirror is not None and removed else 0
        return self._report(report, upload.first, deleted)

    def _prepared(
        self, client: ServerClient, dataset: DatasetRecord
    ) -> tuple[TreeUpload | UploadWorkers, Callable[[], object]]:
        """The upload, and what runs it: in several processes, or only in this one."""
        is_stored, chunk_bytes = self._stored(), self.options.chunk_bytes
        compression = self.options.compression
        jobs = 1 if self.options.is_sharing else self.options.jobs
        opened = cache(lambda: self.session.dataset(dataset.name))  # by the process that uploads

        def stored() -> Snapshot:
            opened().refresh()
            return opened().snapshot

        def made(progressed: Callable[[], object] = lambda: None, threads: int = 1) -> TreeUpload:
            equals = EqualExtents(stored) if self.options.is_sharing else None
            return TreeUpload(
                client, dataset, is_stored, threads, chunk_bytes, progressed, compression, equals
            )

        if isinstance(self.walk, Divided) and self.is_many and (jobs > 1 or self.is_divided):
            workers = UploadWorkers(self.walk, jobs, made)
            return workers, workers.run
        upload = made(threads=min(jobs, DEFAULT_JOBS))
        return upload, lambda: upload.run(self.walk)

    def _removed(self, report: TransferReport) -> Sequence[bytes]:
        """What is to be deleted."""
        removed = () if self.mirror is None else self.mirror.extraneous()
        if removed and report.failed_files:
            self.session.output.error(
                "nothing is deleted, because sources failed; run it again without failures"
            )
            return ()
        return removed

    def _report(self, report: TransferReport, first: tuple[bytes, bytes] | None, deleted: int) -> int:
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
        if report.shared_bytes:
            text += f"; {output.size(report.shared_bytes)} saved, as files are equal"
            fields["shared_bytes"] = report.shared_bytes
        if report.sent_bytes + report.shared_bytes < report.done_bytes:
            text += f"; compressed to {output.size(report.sent_bytes)}"
            fields["compressed_bytes"] = report.sent_bytes
        if deleted:
            text += f"; deleted {count(deleted, 'entry')}"
        if first is not None and report.done_files:
            source, path = self.source_name or first[0], first[1]
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


@dataclass(frozen=True, kw_only=True)
class PutOptions(UploadOptions):
    """Arguments and options of `dlcmd put` and `dlcmd sync`. The last of `names` is the destination.

    `is_mirror`: delete what the sources do not have; `is_confirmed`: also everything.
    """

    names: Sequence[str]
    is_recursive: bool = True
    files_from: str | None = None
    is_mirror: bool = False
    is_confirmed: bool = False

    @property
    def is_many(self) -> bool:
        return self.is_recursive or self.files_from is not None


def run_put(session: Session, options: PutOptions) -> int:
    """Store the sources; returns the exit code."""
    sources, destination = _split(options.names, options.is_recursive)
    target = find_target(session.client, destination)
    with _found(session.output, sources, target, options) as found:
        listed = None if options.files_from is None else _read_names(options.files_from, found)
        mirror = None
        if options.is_mirror:
            mirror = Mirror(
                session, target.location, found[0], options.patterns, options.is_confirmed, options.is_dry_run
            )
        noted = None if mirror is None else mirror.note
        walk = SourceTrees(found, options.patterns, options.is_recursive, listed, noted)
        name = b"standard input" if STANDARD_INPUT in sources else None
        return Upload(session, target, options, walk, options.is_many, name, mirror).run()


def _split(names: Sequence[str], is_recursive: bool) -> tuple[Sequence[str], Location]:
    """Sources and destination. Raises InvalidInput if one of them is missing."""
    if len(names) == 1:
        if is_location(names[0]):
            raise InvalidInput(f"the SOURCE is missing: dlcmd put SOURCE {names[0]}")
        again = f"dlcmd put {'-r ' if is_recursive else ''}{shlex.quote(names[0])} dl://DATASET/"
        raise InvalidInput(f"the destination of {names[0]} is missing: {again}")
    if any(map(is_location, names[:-1])) and not is_location(names[-1]):
        stored, place = " ".join(names[:-1]), shlex.quote(names[-1])
        raise InvalidInput(
            f"put stores files of this machine; to write stored files here: dlcmd get {stored} {place}"
        )
    return names[:-1], changeable_location(names[-1])


@contextmanager
def _found(
    output: Output, sources: Sequence[str], target: Target, options: PutOptions
) -> Iterator[list[Source]]:
    """The sources, placed in the dataset. In the context, standard input is a file."""
    if STANDARD_INPUT not in sources:
        is_into = target.is_folder or len(sources) > 1
        yield find_sources(sources, target.location, is_into, options.is_recursive)
        return
    if len(sources) > 1 or options.is_many:
        raise InvalidInput("standard input ('-') must be the only source, without -r and --files-from")
    if target.is_folder:
        raise InvalidInput(
            f"{target.location} is a folder: standard input needs a name: {target.location}NAME"
        )
    with spooled(sys.stdin.buffer, output) as path:
        yield [Source(os.fsencode(path), target.location.path, False)]


def _read_names(files_from: str, found: Sequence[Source]) -> list[bytes]:
    if len(found) != 1 or not found[0].is_folder:
        raise InvalidInput("--files-from needs one SOURCE, a folder, to which its names are relative")
    with os_errors_as(NotFound, f"--files-from {files_from}"):
        content = sys.stdin.buffer.read() if files_from == STANDARD_INPUT else Path(files_from).read_bytes()
    return [name for name in content.split(b"\n") if name]
