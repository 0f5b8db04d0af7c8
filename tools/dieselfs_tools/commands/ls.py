"""`dlcmd ls`: datasets, and what is in their folders."""

from collections.abc import Iterator, Sequence

import click

from dieselfs.errors import EXIT_OK, ProtocolError
from dieselfs.limits import LISTING_ENTRIES_MAX
from dieselfs.names import Location, split_path
from dieselfs.rpc.client import ServerClient
from dieselfs_tools import options
from dieselfs_tools.entries import SIZE_COLUMNS, Entry
from dieselfs_tools.session import Session
from dieselfs_tools.units import format_time


@options.verb(
    "ls",
    "dlcmd ls                                  # the datasets that you may read",
    "dlcmd ls -l dl://imagenet/train/          # one folder, with sizes and times",
    "dlcmd ls -R --json dl://imagenet          # everything, for a program",
)
@click.argument("locations", nargs=-1, type=options.LOCATION, metavar="[dl://DATASET/PATH...]")
@click.option("-l", "--long", "is_long", is_flag=True, help="With mode, size, time and the target of a link.")
@click.option(
    "-R", "--recursive", "is_recursive", is_flag=True, help="With all that is below, as full paths."
)
@options.human
def ls(session: Session, locations: Sequence[Location], is_long: bool, is_recursive: bool) -> int:
    """List datasets, or what is in a folder, sorted by name. A slash marks a folder."""
    if not locations:
        return _list_datasets(session, is_long)
    listed = 0
    for location in locations:
        for entry in _entries(session, location, is_recursive):
            name = entry.path if is_recursive else split_path(entry.path)[1]
            session.output.record("entry", entry.line(session.output, name, is_long), entry.fields())
            listed += 1
    return session.output.summary("", {"entries": listed}, EXIT_OK)


def _list_datasets(session: Session, is_long: bool) -> int:
    datasets = session.client.datasets()
    for dataset in datasets:
        fields = {
            "dataset": dataset.name,
            "files": dataset.files,
            "bytes": dataset.total_bytes,
            "chunks": dataset.chunks,
            "generation": dataset.generation,
            "updated_ns": dataset.updated_ns,
        }
        text = str(Location(dataset.name))
        if is_long:
            size = session.output.size(dataset.total_bytes)
            when = format_time(dataset.updated_ns // 10**9)
            text = f"{dataset.files:>12,} files {size:>{SIZE_COLUMNS}} {when} {text}"
        session.output.record("dataset", text, fields)
    if not datasets:
        session.output.note("there are no datasets yet; make one: dlcmd put -r FOLDER/ dl://NAME/")
    return session.output.summary("", {"datasets": len(datasets)}, EXIT_OK)


def _entries(session: Session, location: Location, is_recursive: bool) -> Iterator[Entry]:
    if is_recursive or location.tag:  # only a snapshot knows what a tag names
        return _in_snapshot(session, location, is_recursive)
    return _in_folder(session.client, location)


def _in_folder(client: ServerClient, location: Location) -> Iterator[Entry]:
    """What is in a folder, or the one file; asked from the server page by page, whatever the size of the dataset."""
    found = Entry.of_server(location.path, client.stat(location.dataset, location.path))
    if not found.is_folder:
        yield found
        return
    prefix, after = location.path + b"/" if location.path else b"", b""
    while page := client.list_folder(location.dataset, location.path, after, LISTING_ENTRIES_MAX):
        if page[-1].name <= after:
            raise ProtocolError("the server lists the same names again and again")
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
