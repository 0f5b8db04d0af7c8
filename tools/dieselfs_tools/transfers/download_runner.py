"""The work of `dlcmd get`. This module writes files."""

import os
import time
from collections.abc import Sequence

from dieselfs.errors import EXIT_OK, InvalidInput
from dieselfs.names import Location, is_location, parse_location, printable, split_path
from dieselfs.snapshot.reader import Snapshot
from dieselfs.transfer.download import TreeDownload, is_there
from dieselfs.transfer.report import TransferReport
from dieselfs.units import count
from dieselfs_tools.cli.output import Output, name_fields
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.progress import Reading, outcome, shown
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.contents import write_contents
from dieselfs_tools.transfers.trees import selected_nodes

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
        node, folder, name = _place(chunks.snapshot, place, os.fsencode(destination), is_into, is_recursive)
        selected = selected_nodes(chunks.snapshot, node, patterns)
        downloads.append(
            TreeDownload(chunks, node, folder, name, jobs, is_forced, report, is_preserving, selected)
        )
    if is_dry_run:
        return _show(session.output, downloads, is_forced)
    with shown(session.output, "get", lambda: Reading.of(report)):
        for download in downloads:
            download.run()
    return report_download(session.output, report, time.monotonic() - started_s)


def _place(
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


def _show(output: Output, downloads: Sequence[TreeDownload], is_forced: bool) -> int:
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
            fields = {
                **name_fields(snapshot.path(node)),
                **name_fields(place, "destination"),
                "size": size_bytes,
            }
            output.detail("entry", f"would get {location} -> {printable(place)}", fields)
    return output.summary(
        f"would write {count(entries, 'entry')} ({output.size(total_bytes)}), skip {skipped:,} that already exist",
        {"dry_run": True, "entries": entries, "bytes": total_bytes, "skipped": skipped},
    )


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
