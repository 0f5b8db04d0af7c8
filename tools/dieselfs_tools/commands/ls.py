"""`dlcmd ls`: datasets and their folders."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, ProtocolError
from dieselfs.limits import LISTING_ENTRIES_MAX
from dieselfs.names import Location, split_path
from dieselfs.units import format_time
from dieselfs_tools.cli import options
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.entries import SIZE_COLUMNS, TIME_COLUMNS, Entry, dataset_fields

if TYPE_CHECKING:
    from dieselfs.rpc.client import ServerClient


@options.verb(
    "ls",
    "dlcmd ls                                  # the datasets that you may read",
    "dlcmd ls -l dl://imagenet/train/          # one folder, with sizes and times",
    "dlcmd ls -R --json dl://imagenet          # everything, for a program",
)
@click.argument("locations", nargs=-1, type=options.LOCATION, metavar="[dl://DATASET/PATH...]")
@options.flag("-l", "--long", "is_long", text="Print mode, size, time and the target of a link.")
@options.flag("-R", "--recursive", "is_recursive", text="List all folders below, as full paths.")
@options.filters
@options.human
def ls(
    session: Session, locations: Sequence[Location], is_long: bool, is_recursive: bool, patterns: Patterns
) -> int:
    """List datasets, or the content of a folder, sorted by name. A slash marks a folder.

    Datasets whose metadata is lost are named as failures, with the command that repairs them.
    """
    if not locations:
        return _list_datasets(session, is_long)
    listed = 0
    if is_long:
        session.output.heading(f"{'mode':10} {'size':>{SIZE_COLUMNS}} {'changed':{TIME_COLUMNS}} name")
    for location in locations:
        for entry in _entries(session, location, is_recursive):
            if patterns and not patterns.is_wanted(location.below(entry.path), entry.is_folder):
                continue
            name = entry.path if is_recursive else split_path(entry.path)[1]
            session.output.record("entry", entry.line(session.output, name, is_long), entry.fields())
            listed += 1
    return session.output.summary("", {"entries": listed})


def _list_datasets(session: Session, is_long: bool) -> int:
    datasets = session.client.datasets()
    if is_long and datasets:
        session.output.heading(f"{'files':>18} {'size':>{SIZE_COLUMNS}} {'changed':{TIME_COLUMNS}} dataset")
    for dataset in datasets:
        text = str(Location(dataset.name))
        if is_long:
            size = session.output.size(dataset.total_bytes)
            when = format_time(dataset.updated_ns // 10**9)
            text = f"{dataset.files:>12,} files {size:>{SIZE_COLUMNS}} {when} {text}"
        session.output.record("dataset", text, dataset_fields(dataset))
    lost = session.client.lost_datasets()
    for name in lost:
        reason = f"its metadata is lost, but its chunks exist; rebuild it: dlcmd rebuild dl://{name}"
        session.output.failure(str(Location(name)), reason)
    if not datasets and not lost:
        session.output.note("there are no datasets yet; make one: dlcmd put -r FOLDER/ dl://NAME/")
    fields = {"datasets": len(datasets), "lost": lost}
    return session.output.summary("", fields, EXIT_DAMAGED if lost else EXIT_OK)


def _entries(session: Session, location: Location, is_recursive: bool) -> Iterator[Entry]:
    if is_recursive or location.tag:  # only a snapshot has the content of a tag
        return _in_snapshot(session, location, is_recursive)
    return _in_folder(session.client, location)


def _in_folder(client: "ServerClient", location: Location) -> Iterator[Entry]:
    """The content of a folder, or the one file. The server sends a page at a time."""
    found = Entry.of_server(location.path, client.stat(location.dataset, location.path))
    if not found.is_folder:
        yield found
        return
    prefix, after = location.path + b"/" if location.path else b"", b""
    while page := client.list_folder(location.dataset, location.path, after, LISTING_ENTRIES_MAX):
        if page[-1].name <= after:
            raise ProtocolError(f"{location}: the server repeats names in its list")
        for entry in page:
            yield Entry.of_server(prefix + entry.name, entry)
        after = page[-1].name


def _in_snapshot(session: Session, location: Location, is_recursive: bool) -> Iterator[Entry]:
    snapshot = session.dataset(location.state).snapshot
    top = snapshot.require(location.path)
    if not snapshot.stat(top).is_folder:
        yield Entry.of_snapshot(snapshot, top)
    for node in snapshot.walk(top) if is_recursive else snapshot.children(top):
        yield Entry.of_snapshot(snapshot, node)
