"""The work of `dlcmd get`, and of `sync` to a local folder. This module reads, writes and deletes files."""

import os
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from dieselfs.errors import EXIT_OK, DieselfsError, InvalidInput
from dieselfs.names import Location, is_location, parse_location, printable, split_path
from dieselfs.snapshot.reader import Snapshot
from dieselfs.transfer.destination import open_destination, permissions_allowed
from dieselfs.transfer.download import TreeDownload, is_there
from dieselfs.transfer.report import TransferReport
from dieselfs.units import count, format_duration
from dieselfs_tools.cli.output import Output, confirm_name, name_fields
from dieselfs_tools.cli.patterns import ALL, Patterns, deletable
from dieselfs_tools.cli.progress import Reading, intended, outcome, shown
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.entries import Entry, write_contents
from dieselfs_tools.transfers.trees import (
    ATTRIBUTES,
    REMOVED,
    LocalTree,
    Source,
    StoredTree,
    differences,
    selected,
    selected_nodes,
    with_folders,
)
from dieselfs_tools.transfers.upload import PutOptions
from dieselfs_tools.transfers.workers import in_processes

STANDARD_OUTPUT = "-"


def run_get(
    session: Session,
    names: Sequence[str],
    is_recursive: bool,
    is_dry_run: bool,
    is_forced: bool,
    is_preserving: bool,
    jobs: int,
    patterns: Patterns,
) -> int:
    """Write the locations in `names`, whose last one may be the destination; returns the exit code."""
    given = list(names)
    destination = "." if is_location(given[-1]) else given.pop()
    if not given:
        raise InvalidInput(f"the source, dl://DATASET/PATH, is missing; {destination} is the destination")
    locations = [parse_location(name) for name in given]
    if destination == STANDARD_OUTPUT:
        if is_recursive or is_dry_run:
            raise InvalidInput("standard output takes the content of files, without -r and -n")
        write_contents(session, locations)
        return EXIT_OK
    # Looks up all locations before anything is written.
    datasets = {name: session.dataset(name) for name in dict.fromkeys(place.state for place in locations)}
    is_into = len(locations) > 1 or destination.endswith("/") or os.path.isdir(destination)
    started_s, report = time.monotonic(), TransferReport()
    downloads = []
    for place in locations:
        chunks = datasets[place.state].chunks
        node, folder, name = _found_place(
            chunks.snapshot, place, os.fsencode(destination), is_into, is_recursive
        )
        selected = selected_nodes(chunks.snapshot, node, patterns)
        spread = in_processes("download", jobs)
        downloads.append(
            TreeDownload(chunks, node, folder, name, spread, is_forced, report, is_preserving, selected)
        )
    if is_dry_run:
        return _show_downloads(session.output, downloads, is_forced)
    with shown(session.output, "get", lambda: Reading.of(report)):
        for download in downloads:
            download.run()
    return report_download(session.output, report, time.monotonic() - started_s)


def _found_place(
    snapshot: Snapshot, location: Location, destination: bytes, is_into: bool, is_recursive: bool
) -> tuple[int, bytes, bytes]:
    """The node of a location, and its destination by the rules of `put`: a folder, and the name of a file in it.

    Raises NotFound, InvalidInput.
    """
    node = snapshot.find(location.path)
    if node < 0 or (snapshot.stat(node).is_link and not is_recursive):
        node = snapshot.follow(location.path)
    name = split_path(location.path)[1]
    if not snapshot.stat(node).is_folder:
        if location.is_folder_form:
            raise InvalidInput(f"{location}: not a folder, but a file")
        folder, new_name = (destination, name) if is_into else os.path.split(destination)
        return node, folder or b".", new_name
    if not is_recursive:
        raise InvalidInput(f"{location} is a folder: get it with -r")
    return node, destination if location.is_folder_form else os.path.join(destination, name), b""


def _show_downloads(output: Output, downloads: Sequence[TreeDownload], is_forced: bool) -> int:
    """The dry run."""
    entries = skipped = total_bytes = 0
    for download in downloads:
        snapshot = download.snapshot
        for node in download.nodes():
            wanted, place = snapshot.stat(node), os.path.join(download.folder, download.relative(node))
            try:
                status = os.lstat(place)
            except OSError:
                status = None
            if status is not None and not is_forced and (is_there(status, wanted) or wanted.is_folder):
                skipped += 1
                continue
            entries += 1
            size_bytes = wanted.size if wanted.is_file else 0
            total_bytes += size_bytes
            location = Location(snapshot.dataset, snapshot.path(node), wanted.is_folder)
            _show_entry(output, location, place, size_bytes)
    return output.summary(
        f"would write {count(entries, 'entry')} ({output.size(total_bytes)}), skip {skipped:,} that already exist",
        {"dry_run": True, "entries": entries, "bytes": total_bytes, "skipped": skipped},
    )


def _show_entry(output: Output, location: Location, place: bytes, size_bytes: int) -> None:
    """One entry of a dry run."""
    names = {**name_fields(location.path), **name_fields(place, "destination")}
    output.detail("entry", f"would get {location} -> {printable(place)}", {**names, "size": size_bytes})


def report_download(output: Output, report: TransferReport, elapsed_s: float) -> int:
    """The summary of a download; returns the exit code."""
    text = outcome(output, report, f"wrote {count(report.done_files, 'entry')}", "already existed", elapsed_s)
    fields = {
        "written": report.done_files,
        "written_bytes": report.done_bytes,
        "skipped": report.skipped_files,
        "failed": report.failed_files,
        "is_damaged": report.is_damaged,
        "seconds": round(elapsed_s, 3),
    }
    return output.summary(text, fields, report.exit_code)


@dataclass
class _Plan:
    """What is to be done, as paths below the folder. `written`: new or changed; `attributes`: files and links with
    another mode or time, and folders with another mode; `deleted`: each folder after its content.
    """

    written: list[bytes] = field(default_factory=list)
    attributes: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    skipped: int = 0


def run_folder_sync(session: Session, source: Location, folder: str, options: PutOptions) -> int:
    """Make a local folder equal to a stored one; returns the exit code. Raises NotFound, InvalidInput."""
    return _FolderSync(session, source, folder, options).run()


class _FolderSync:
    def __init__(self, session: Session, source: Location, folder: str, options: PutOptions) -> None:
        self._session = session
        self._location = source
        self._options = options
        self._dataset = session.dataset(source.state)
        self._stored = StoredTree(self._dataset.snapshot, source.path)
        name = b"" if source.is_folder_form else split_path(source.path)[1]
        self._folder = os.path.join(os.fsencode(folder), name) if name else os.fsencode(folder)
        if os.path.lexists(self._folder) and not os.path.isdir(self._folder):
            raise InvalidInput(f"{printable(self._folder)} is not a folder")
        self._permissions = permissions_allowed()
        self._local: LocalTree | None = None  # without a folder
        self._report = TransferReport(is_all_found=True)

    def run(self) -> int:
        started_s = time.monotonic()
        top = Source(self._folder, b"", True)
        if os.path.isdir(self._folder):
            self._local = LocalTree(top, ALL)  # also what is not selected: its folders are not deleted
            for place, reason in self._local.failures:
                self._report.fail(place, reason)
        entries = self._local.entries if self._local is not None else {}
        plan = self._plan(entries)
        self._confirm(plan)
        if self._options.is_dry_run:
            return self._show(plan)
        deleted = 0
        try:
            with shown(self._session.output, "sync", lambda: Reading.of(self._report)):
                deleted += self._delete_in_the_way(plan, entries)
                self._write(plan)
                self._set_attributes(plan)
            deleted += self._delete(plan)
        except DieselfsError as error:
            raise type(error)(f"{error}; the same command continues") from error
        return self._summary(plan, deleted, time.monotonic() - started_s)

    # -- decisions ---------------------------------------------------------------------------------------

    def _wanted(self) -> dict[bytes, Entry]:
        """The selected stored entries, with the modes that they get here."""
        return {
            path: entry
            if entry.type == "link"
            else entry._replace(mode=stat.S_IFMT(entry.mode) | entry.mode & self._permissions)
            for path, entry in self._stored.selected(self._options.patterns).items()
        }

    def _plan(self, entries: Mapping[bytes, Entry]) -> _Plan:
        local = self._local
        wanted, patterns = self._wanted(), self._options.patterns

        def has_same_content(path: bytes) -> bool:
            if local is None or entries[path].mtime_ns == wanted[path].mtime_ns:
                return True
            extents = self._dataset.snapshot.extents(self._stored.nodes[path])
            return local.has_content(path, extents, self._dataset.chunks)

        plan, found = _Plan(), list(differences(selected(entries, patterns), wanted, has_same_content))
        for change, entry in found:
            if change == ATTRIBUTES:
                plan.attributes.append(entry.path)
            elif change != REMOVED:
                plan.written.append(entry.path)
        plan.skipped = len(wanted) - len(plan.written) - len(plan.attributes)
        if self._options.is_mirror:
            below = ((path, entry.is_folder) for path, entry in sorted(entries.items(), reverse=True))
            plan.deleted = list(deletable(below, patterns, self._stored.entries.keys()))
        return plan

    def _confirm(self, plan: _Plan) -> None:
        """Raise InvalidInput if the source is empty, and the user does not confirm to delete everything."""
        options = self._options
        if plan.deleted and not self._stored.entries and not (options.is_confirmed or options.is_dry_run):
            place = printable(self._folder)
            confirm_name(self._location.dataset, f"the source is empty: this deletes everything in {place}")

    # -- effects -----------------------------------------------------------------------------------------

    def _delete_in_the_way(self, plan: _Plan, entries: Mapping[bytes, Entry]) -> int:
        """With `--delete`, delete files in the place of folders, and folders in that of files, with their content."""
        if not self._options.is_mirror:
            return 0
        kinds = [
            path
            for path in plan.written
            if path in entries and entries[path].is_folder != self._stored.entries[path].is_folder
        ]
        chosen = {path for path in plan.deleted if any(path.startswith(top + b"/") for top in kinds)}
        removed = [path for path in plan.deleted if path in chosen] + kinds
        plan.deleted = [path for path in plan.deleted if path not in chosen]
        return self._remove(removed)

    def _write(self, plan: _Plan) -> None:
        if not plan.written and os.path.isdir(self._folder):
            return
        snapshot = self._dataset.snapshot
        top = snapshot.require(self._location.path)
        download = TreeDownload(
            self._dataset.chunks,
            top,
            self._folder,
            spread=in_processes("download", self._options.jobs),
            is_forced=True,
            report=self._report,
            selected=with_folders(snapshot, top, (self._stored.nodes[path] for path in plan.written)),
        )
        download.run()

    def _set_attributes(self, plan: _Plan) -> None:
        if not plan.attributes:
            return
        snapshot = self._dataset.snapshot
        with closing(open_destination(self._folder, self._permissions)) as destination:
            for path in plan.attributes:
                node = self._stored.nodes[path]
                status = snapshot.stat(node)
                try:
                    if status.is_link:
                        destination.make_link(path, snapshot.target(node), status.mtime_ns)
                    else:
                        destination.set_status(path, status)
                except OSError as error:
                    self._fail(path, error)

    def _delete(self, plan: _Plan) -> int:
        """Delete the rest, unless something has failed; returns the number of entries."""
        if plan.deleted and self._report.failed_files:
            self._session.output.error(
                "nothing is deleted, because entries failed; run it again without failures"
            )
            return 0
        return self._remove(plan.deleted)

    def _remove(self, paths: Sequence[bytes]) -> int:
        removed = 0
        if paths:
            with closing(open_destination(self._folder, self._permissions)) as destination:
                for path in paths:
                    try:
                        destination.remove(path)
                        removed += 1
                    except OSError as error:
                        self._fail(path, error)
        return removed

    def _fail(self, path: bytes, error: OSError) -> None:
        self._report.fail(printable(os.path.join(self._folder, path)), error.strerror or str(error))

    # -- output ------------------------------------------------------------------------------------------

    def _show(self, plan: _Plan) -> int:
        """The dry run."""
        output, written = self._session.output, set(plan.written)
        for path in sorted([*plan.written, *plan.attributes]):
            entry, place = self._stored.entries[path], os.path.join(self._folder, path)
            location = Location(
                self._location.dataset, self._dataset.snapshot.path(self._stored.nodes[path]), False
            )
            size_bytes = entry.size if entry.type == "file" and path in written else 0
            self._report.find(size_bytes, entry.is_folder)
            _show_entry(output, location, place, size_bytes)
        for path in plan.deleted:
            place = os.path.join(self._folder, path)
            output.detail("deletion", f"would delete {printable(place)}", name_fields(place, "destination"))
        self._report.skipped_files = plan.skipped
        return intended(output, self._report, "write", "are equal", len(plan.deleted))

    def _summary(self, plan: _Plan, deleted: int, elapsed_s: float) -> int:
        output, report = self._session.output, self._report
        output.failures(report.failures, report.failed_files)
        unread = len(self._local.failures) if self._local is not None else 0
        failed = report.failed_files - unread  # also folders in which something failed
        written = max(len(plan.written) + len(plan.attributes) - failed, 0)
        parts = [f"wrote {count(written, 'entry')} ({output.size(report.done_bytes)})"]
        parts.append(f"skipped {plan.skipped:,} that are equal")
        if deleted:
            parts.append(f"deleted {count(deleted, 'entry')}")
        if report.failed_files:
            parts.append(f"{report.failed_files:,} failed")
        fields = {
            "written": written,
            "written_bytes": report.done_bytes,
            "skipped": plan.skipped,
            "deleted": deleted,
            "failed": report.failed_files,
            "is_damaged": report.is_damaged,
            "seconds": round(elapsed_s, 3),
        }
        return output.summary(f"{', '.join(parts)} in {format_duration(elapsed_s)}", fields, report.exit_code)
