"""The verbs that look at datasets: `ls`, `stat`, `info`, `find`, `tree`, `cat` and `head`."""

import stat as modes
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import IO, TYPE_CHECKING

import click

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, AccessDenied, InvalidInput, ProtocolError
from dieselfs.limits import LISTING_ENTRIES_MAX
from dieselfs.names import CONTROL_FOLDER, SCHEME, Location, printable, split_path
from dieselfs.rpc.limit_kinds import QUOTAS
from dieselfs.units import count, format_time
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import RECORDS_TOGETHER, Output, name_fields, write_bytes
from dieselfs_tools.cli.patterns import Pattern, Patterns
from dieselfs_tools.cli.session import Session
from dieselfs_tools.commands.limits import quota_text, usage_fields
from dieselfs_tools.transfers.entries import (
    SIZE_COLUMNS,
    TIME_COLUMNS,
    Entry,
    dataset_fields,
    find_file,
    write_contents,
)

if TYPE_CHECKING:
    from dieselfs.rpc.client import ServerClient
    from dieselfs.snapshot.reader import Snapshot


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
@options.where
def ls(
    session: Session, locations: Sequence[Location], is_long: bool, is_recursive: bool, patterns: Patterns
) -> int:
    """List datasets, or the content of a folder, sorted by name. A slash marks a folder.

    Datasets whose metadata is lost are named as failures, with the command that repairs them.
    """
    if not locations:
        if session.where:
            raise InvalidInput("--where selects files of a dataset: name one, as dl://DATASET")
        return _list_datasets(session, is_long)
    listed = 0
    if is_long:
        session.output.heading(f"{'mode':10} {'size':>{SIZE_COLUMNS}} {'changed':{TIME_COLUMNS}} name")

    def line(entry: Entry) -> str:
        name = entry.path if is_recursive else split_path(entry.path)[1]
        return entry.line(session.output, name, is_long)

    for location in locations:
        entries = _entries(session, location, is_recursive)
        if patterns:
            below = location.below
            entries = (each for each in entries if patterns.is_wanted(below(each.path), each.is_folder))
        listed += session.output.records("entry", entries, line, Entry.fields)
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
    lost, note = list[str](), "there are no datasets yet; make one: dlcmd put -r FOLDER/ dl://NAME/"
    try:
        lost = session.client.lost_datasets()
    except AccessDenied as error:  # without a right on any dataset
        note = str(error)
    for name in lost:
        reason = f"its metadata is lost, but its chunks exist; rebuild it: dlcmd rebuild dl://{name}"
        session.output.failure(str(Location(name)), reason)
    if not datasets and not lost:
        session.output.note(note)
    fields = {"datasets": len(datasets), "lost": lost}
    return session.output.summary("", fields, EXIT_DAMAGED if lost else EXIT_OK)


def _entries(session: Session, location: Location, is_recursive: bool) -> Iterator[Entry]:
    # Only a snapshot has the content of a tag, and encrypted names in the order of the plain ones.
    if (
        is_recursive
        or location.tag
        or session.where
        or session.client.known_cipher(location.dataset) is not None
    ):
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
            if prefix or entry.name != CONTROL_FOLDER.encode():
                yield Entry.of_server(prefix + entry.name, entry)
        after = page[-1].name


def _in_snapshot(session: Session, location: Location, is_recursive: bool) -> Iterator[Entry]:
    import numpy as np

    from dieselfs.snapshot.subtree import listed_children, walk_order

    snapshot = session.dataset(location.state).snapshot
    top = snapshot.require(location.path)
    if not snapshot.stat(top).is_folder:
        yield Entry.of_snapshot(snapshot, top)
    nodes = walk_order(snapshot, top) if is_recursive else np.array(listed_children(snapshot, top), np.int64)
    yield from Entry.of_nodes(snapshot, nodes)


@options.verb(
    "stat",
    "dlcmd stat dl://pets/train/cat.jpg",
    "dlcmd stat --json dl://pets/train dl://pets/labels.csv",
)
@click.argument("locations", nargs=-1, required=True, type=options.LOCATION, metavar="dl://DATASET/PATH...")
def stat(session: Session, locations: Sequence[Location]) -> int:
    """Show type, size, mode and time; of a link, not of its target."""
    output = session.output
    for location in locations:
        entry = _find(session, location)
        seconds, nanoseconds = divmod(entry.mtime_ns, 10**9)
        lines = [
            str(Location(location.dataset, location.path, entry.is_folder, location.tag)),
            f"  type      {entry.type}",
            f"  size      {entry.size if entry.is_folder else output.size(entry.size)}",
            f"  mode      {modes.S_IMODE(entry.mode):04o} {modes.filemode(entry.mode)}",
            f"  modified  {format_time(seconds)}.{nanoseconds:09}",
        ]
        if entry.target:
            lines.append(f"  target    {printable(entry.target)}")
        output.record("entry", "\n".join(lines), {"dataset": location.dataset, **entry.fields()})
    return output.summary("", {"entries": len(locations)})


def _find(session: Session, location: Location) -> Entry:
    if location.tag:  # only a snapshot has the content of a tag
        snapshot = session.dataset(location.state).snapshot
        return Entry.of_snapshot(snapshot, snapshot.require(location.path))
    return Entry.of_server(location.path, session.client.stat(location.dataset, location.path))


USAGE_FIELDS = ("owner", "stored_bytes", *(kind.field for kind in QUOTAS))


@options.verb(
    "info",
    "dlcmd info dl://imagenet",
    "dlcmd info dl://imagenet/train/n01440764/a.jpg     # its chunks",
)
@click.argument("locations", nargs=-1, required=True, type=options.LOCATION, metavar="dl://DATASET[/FILE]...")
def info(session: Session, locations: Sequence[Location]) -> int:
    """Show the totals and the generation of a dataset, or the extents of a file."""
    for location in locations:
        if location.path or location.tag:
            _info_of_file(session, location)
        else:
            _info_of_dataset(session, location)
    return session.output.summary("", {"locations": len(locations)})


def _info_of_dataset(session: Session, location: Location) -> None:
    record, output = session.client.dataset(location.dataset), session.output
    average = f", {output.size(record.total_bytes // record.files)} on average" if record.files else ""
    lines = [
        str(location),
        f"  server      {session.client.address}",
        f"  files       {record.files:,}",
        f"  size        {output.size(record.total_bytes)}{average}",
        f"  chunks      {record.chunks:,}",
        f"  generation  {record.generation}",
        f"  updated     {format_time(record.updated_ns // 10**9)}",
        f"  ID          {record.dataset_id.hex()}",
    ]
    (used,) = session.client.usage(record.name)
    lines.insert(4, f"  stored      {output.size(used.stored_bytes)}")
    if limits := quota_text(output, used):
        lines.append(f"  quota       {limits}")
    if used.owner:
        lines.append(f"  owner       {used.owner}")
    fields = {
        **dataset_fields(record),
        "dataset_id": record.dataset_id.hex(),
        "server": str(session.client.address),
        **{name: value for name, value in usage_fields(used).items() if name in USAGE_FIELDS},
    }
    output.record("dataset", "\n".join(lines), fields)


def _info_of_file(session: Session, location: Location) -> None:
    from dieselfs.chunk.ids import chunk_name

    dataset, output = session.dataset(location.state), session.output
    snapshot, node = dataset.snapshot, find_file(dataset, location.path)
    path, size_bytes, extents = snapshot.path(node), snapshot.size(node), snapshot.extents(node)
    lines = [
        f"{Location(dataset.name, path, False)}: {output.size(size_bytes)} in {count(len(extents), 'extent')}, "
        f"generation {snapshot.generation}"
    ]
    listed = []
    for extent in extents:
        chunk, digest = chunk_name(snapshot.chunk_id(extent.chunk)), extent.digest.hex()
        lines.append(
            f"  byte {extent.place}: {extent.length} bytes in chunk {chunk} at {extent.offset}, blake3 {digest}"
        )
        places = {"place": extent.place, "length": extent.length, "chunk": chunk, "offset": extent.offset}
        listed.append({**places, "blake3": digest})
    fields = {"dataset": dataset.name, **name_fields(path), "size": size_bytes, "extents": listed}
    output.record("file", "\n".join(lines), fields)


BITS_OF_TYPE = {"file": modes.S_IFREG, "folder": modes.S_IFDIR, "link": modes.S_IFLNK}
TYPES = {"file": "file", "folder": "folder", "link": "link", "f": "file", "d": "folder", "l": "link"}


@options.verb(
    "find",
    "dlcmd find dl://pets --name '*.jpg' --min-size 1M",
    "dlcmd find dl://imagenet@v1/train --type folder",
    "dlcmd find dl://pets --name 'old/*' --null | xargs -0 -n 100 dlcmd rm",
)
@click.argument("locations", nargs=-1, required=True, type=options.LOCATION, metavar="dl://DATASET/PATH...")
@click.option(
    "--name",
    "names",
    multiple=True,
    type=options.Parsed("PATTERN", Pattern),
    help="Entries with this name, as '*.jpg', or path. Several: any of them.",
)
@click.option("--type", "kind", type=click.Choice(list(TYPES)), help="Only entries of this type.")
@click.option("--min-size", type=options.SIZE, help="Only files of at least this size.")
@click.option("--max-size", type=options.SIZE, help="Only files of at most this size.")
@options.filters
@options.flag("-l", "--long", "is_long", text="Print mode, size, time and the target of a link.")
@options.flag("-0", "--null", "is_null", text="Print raw locations, each with a NUL byte at its end.")
@options.human
@options.where
def find(
    session: Session,
    locations: Sequence[Location],
    names: Sequence[Pattern],
    kind: str | None,
    min_size: int | None,
    max_size: int | None,
    is_long: bool,
    is_null: bool,
    patterns: Patterns,
) -> int:
    """Print the locations of entries below folders, in the order of their paths, without the folders given.

    --name matches the end of the path in the dataset, and not what is in a folder that it matches; --include and
    --exclude, as those of other verbs, also that, by the path below the given folder. All conditions must hold. Nothing
    found is no error.
    """
    output, found, total_bytes = session.output, 0, 0
    if is_null and (output.is_json or is_long):
        raise InvalidInput("--null does not go with --json or --long")

    def wanted(location: Location, entries: Iterator[Entry]) -> Iterator[Entry]:
        nonlocal total_bytes
        for entry in entries:
            if names and not any(pattern.matches(entry.path, entry.is_folder) for pattern in names):
                continue
            if patterns and not patterns.is_wanted(location.below(entry.path), entry.is_folder):
                continue
            total_bytes += entry.size if modes.S_ISREG(entry.mode) else 0
            yield entry

    for location in locations:
        start = f"{SCHEME}{location.state}/".encode("ascii")
        entries = wanted(
            location,
            _of_kind(session, location, kind or ("file" if session.where else None), min_size, max_size),
        )
        if is_null:
            while block := [*islice(entries, RECORDS_TOGETHER)]:
                write_bytes(b"".join([start + entry.path + b"\0" for entry in block]))
        else:
            line = partial(_located_line, output, start, is_long)
            found += output.records("entry", entries, line, partial(_located_fields, location.state))
    if is_null:
        return EXIT_OK
    return output.summary("", {"entries": found, "bytes": total_bytes})


def _located_line(output: Output, start: bytes, is_long: bool, entry: Entry) -> str:
    return entry.line(output, start + entry.path, is_long)


def _located_fields(dataset: str, entry: Entry) -> dict[str, object]:
    return {"dataset": dataset, **entry.fields()}


def _of_kind(
    session: Session, location: Location, kind: str | None, least: int | None, most: int | None
) -> Iterator[Entry]:
    """The entries below a folder, or the one file, of a type, and with a limit of sizes, only files within it."""
    import numpy as np

    from dieselfs.snapshot.subtree import walk_order

    snapshot = session.dataset(location.state).snapshot
    top = snapshot.require(location.path)
    nodes = walk_order(snapshot, top) if snapshot.stat(top).is_folder else np.array([top])
    if kind is not None:
        nodes = nodes[snapshot.types(nodes) == BITS_OF_TYPE[TYPES[kind]]]
    if least is not None or most is not None:
        sizes = snapshot.column("sizes")[nodes]
        is_within = (snapshot.types(nodes) == modes.S_IFREG) & (sizes >= (least or 0))
        if most is not None:
            is_within &= sizes <= most
        nodes = nodes[is_within]
    return Entry.of_nodes(snapshot, nodes)


DRAWN_LINES, ASCII_LINES = ("├── ", "└── ", "│   ", "    "), ("|-- ", "`-- ", "|   ", "    ")
"""Before an entry, before the last one of a folder, and below each."""


@options.verb(
    "tree",
    "dlcmd tree dl://pets",
    "dlcmd tree -d -L 2 dl://imagenet@v1      # two levels of folders",
)
@click.argument("location", type=options.LOCATION, metavar="dl://DATASET/PATH")
@click.option("-L", "--level", "levels", type=click.IntRange(1), help="Only this many levels.")
@options.flag("-d", "--folders", "is_folders", text="Only folders.")
@options.where
def tree(session: Session, location: Location, levels: int | None, is_folders: bool) -> int:
    """Draw a folder with its content, sorted by name. A slash marks a folder."""
    output, snapshot = session.output, session.dataset(location.state).snapshot
    top = snapshot.require(location.path)
    try:
        "".join(DRAWN_LINES).encode(sys.stdout.encoding)
        lines = DRAWN_LINES
    except UnicodeEncodeError:
        lines = ASCII_LINES
    output.note(str(location))
    folders = others = 0
    for before, node in drawn(snapshot, top, lines, levels, is_folders):
        entry = Entry.of_snapshot(snapshot, node)
        folders += entry.is_folder
        others += not entry.is_folder
        text = before + entry.line(output, split_path(entry.path)[1], is_long=False)
        output.record("entry", text, entry.fields())
    others_text = "" if is_folders else f", {count(others, 'file')}"
    fields = {"folders": folders} if is_folders else {"folders": folders, "files": others}
    return output.summary(count(folders, "folder") + others_text, fields)


def drawn(
    snapshot: "Snapshot",
    top: int,
    lines: tuple[str, str, str, str] = DRAWN_LINES,
    levels: int | None = None,
    is_folders: bool = False,
) -> Iterator[tuple[str, int]]:
    """The entries below `top`, each with the lines before its name. `levels`: None for all."""
    tee, corner, pipe, blank = lines
    from dieselfs.snapshot.subtree import listed_children

    # The entries to come, in reverse order; a stack, as folders may be nested deeper than Python's calls.
    ahead: list[tuple[str, int, bool]] = []

    def add(before: str, folder: int) -> None:
        nodes = [
            node
            for node in listed_children(snapshot, folder)
            if not is_folders or snapshot.stat(node).is_folder
        ]
        ahead.extend((before, node, node == nodes[-1]) for node in reversed(nodes))

    if snapshot.stat(top).is_folder:
        add("", top)
    while ahead:
        before, node, is_last = ahead.pop()
        yield before + (corner if is_last else tee), node
        is_deep = levels is not None and len(before) // len(blank) + 1 >= levels
        if snapshot.stat(node).is_folder and not is_deep:
            add(before + (blank if is_last else pipe), node)


@options.verb(
    "cat",
    "dlcmd cat dl://pets/labels.csv | head",
    "dlcmd cat dl://runs/part1 dl://runs/part2 > whole",
)
@click.argument("locations", nargs=-1, required=True, type=options.LOCATION, metavar="dl://DATASET/PATH...")
def cat(session: Session, locations: Sequence[Location]) -> int:
    """Write the content of files to standard output, one after the other."""
    write_contents(session, locations)
    return EXIT_OK


LINES = 10
READ_BYTES = 1 << 20


@options.verb(
    "head",
    "dlcmd head dl://pets/labels.csv              # 10 lines",
    "dlcmd head -c 512 dl://pets/cat.jpg | xxd",
)
@click.argument("locations", nargs=-1, required=True, type=options.LOCATION, metavar="dl://DATASET/PATH...")
@click.option("-n", "--lines", type=click.IntRange(0), help=f"Number of lines. [{LINES}]")
@click.option("-c", "--size", type=options.SIZE, help="Number of bytes, instead of lines.")
def head(session: Session, locations: Sequence[Location], lines: int | None, size: int | None) -> int:
    """Write the first lines of files to standard output, one after the other. Of a large file, only the chunks that
    have them are fetched.
    """
    if lines is not None and size is not None:
        raise InvalidInput("give --lines or --size, not both")
    if session.output.is_json:
        raise InvalidInput("--json and the content of files cannot both go to standard output")
    session.output.is_stdout_taken = True
    datasets = {state: session.dataset(state) for state in dict.fromkeys(place.state for place in locations)}
    files = [datasets[place.state].open(place.path) for place in locations]
    for file in files:
        with file:
            if size is not None:
                _write_bytes(file, size)
            else:
                for _ in range(LINES if lines is None else lines):
                    write_bytes(file.readline())
    return EXIT_OK


def _write_bytes(file: IO[bytes], size: int) -> None:
    while size > 0 and (content := file.read(min(size, READ_BYTES))):
        write_bytes(content)
        size -= len(content)
