"""Trees of files: sources of `put`, the entries below a folder, stored or local, and what differs between two trees.
This module reads files."""

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dieselfs.digests import extent_digest_of
from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, DieselfsError, InvalidInput, NotFound, os_errors_as
from dieselfs.names import SCHEME, Location, check_path, printable, split_path
from dieselfs.transfer.upload import (
    Failed,
    SourceEntry,
    folder_entries,
    folder_names,
    source_entry,
    walk_source,
)
from dieselfs.units import count
from dieselfs_tools.cli.output import Output, name_fields
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.transfers.entries import Entry

if TYPE_CHECKING:
    from dieselfs.arrays import Numbers
    from dieselfs.snapshot.reader import ExtentRef, Snapshot
    from dieselfs.sources.server import ServerSource
    from dieselfs.transfer.upload import UploadEntry
    from dieselfs_tools.transfers.roster import Unit
    from dieselfs_tools.transfers.upload_workers import Visit

SOURCES_PER_UNIT = 64
NAMES_PER_UNIT = 1024
"""Of a folder with more names, other workers read the rest."""
UNITS_PER_MESSAGE = 16


@dataclass(frozen=True, slots=True)
class Source:
    """A file or folder to put, and its path in the dataset."""

    source: bytes
    path: bytes
    is_folder: bool


def place_of(source: bytes, is_folder: bool, destination: Location, is_into: bool) -> bytes:
    """The path of a source in the dataset, by the rules of rsync.

    A folder is put into the destination; with a slash at its end, its content is. A file is put into a destination that
    is a folder (`is_into`); otherwise the destination is its new name.
    """
    name = os.path.basename(source.rstrip(b"/"))
    if is_folder and (source.endswith(b"/") or name in (b"", b".", b"..")):
        return destination.path
    if is_folder or is_into:
        return destination.path + b"/" + name if destination.path else name
    return destination.path


def find_sources(
    names: Sequence[str], destination: Location, is_into: bool, is_recursive: bool
) -> list[Source]:
    """The named files and folders. A named link is followed, unless `is_recursive`.

    Raises NotFound for a missing one, and InvalidInput for a folder without `is_recursive`.
    """
    return [_find_source(os.fsencode(name), destination, is_into, is_recursive) for name in names]


def _find_source(name: bytes, destination: Location, is_into: bool, is_recursive: bool) -> Source:
    with os_errors_as(NotFound, printable(name)):
        is_folder = stat.S_ISDIR((os.lstat if is_recursive else os.stat)(name).st_mode)
    if is_folder and not is_recursive:
        raise InvalidInput(f"{printable(name)} is a folder: put it with -r")
    path = check_path(place_of(name, is_folder, destination, is_into))
    return Source(name if is_recursive else os.path.realpath(name), path, is_folder)


def listed_sources(names: Sequence[bytes], folder: Source, failed: Failed) -> Iterator[Source]:
    """The names of a `--files-from`, relative to `folder`; errors go to `failed`."""
    for name in names:
        relative = name.removeprefix(b"./").rstrip(b"/")
        try:
            path = check_path(folder.path + b"/" + relative if folder.path else relative)
            source = os.path.join(folder.source, check_path(relative))
            yield Source(source, path, stat.S_ISDIR(os.lstat(source).st_mode))
        except OSError as error:
            failed(name, error.strerror or str(error))
        except DieselfsError as error:
            failed(name, str(error))


def relative_path(source: Source, path: bytes) -> bytes:
    """A path in the dataset, relative to a source folder; the name of a source file."""
    return path[len(source.path) :].lstrip(b"/") if source.is_folder else os.path.basename(path)


@dataclass(frozen=True)
class SourceTrees:
    """The sources of one upload, and what of them is wanted. `listed`: names relative to the one source, which are the
    sources in place of it.
    """

    sources: Sequence[Source]
    patterns: Patterns
    is_recursive: bool = True
    listed: Sequence[bytes] | None = None
    noted: Callable[[Sequence[bytes]], object] | None = None

    def __call__(self, failed: Failed) -> Iterator[SourceEntry]:
        """The selected entries, each folder before its content; failures go to `failed`."""
        for source in self._between(0, self._count, failed):
            for entry in walk_source(source.source, source.path, failed, partial(self.is_pruned, source)):
                if self.is_wanted(source, entry):
                    if self.noted is not None:
                        self.noted((entry.path,))
                    yield entry

    @property
    def _count(self) -> int:
        return len(self.sources if self.listed is None else self.listed)

    def _between(self, start: int, stop: int, failed: Failed) -> Iterable[Source]:
        """Some of the sources."""
        if self.listed is None:
            return self.sources[start:stop]
        return listed_sources(self.listed[start:stop], self.sources[0], failed)

    def passes(self) -> Iterator[Iterator["Unit"]]:
        """A unit: `(start, stop)`: sources; or `(top, path of the top, folder, path of the folder, names)`, where names
        are separated by NUL bytes, and none stand for all. What folders a worker finds become units, for any worker.
        """
        for start, stop in self.disjoint():
            places = range(start, stop, SOURCES_PER_UNIT)
            yield ((at, min(at + SOURCES_PER_UNIT, stop)) for at in places)

    def place(self, unit: "Unit") -> bytes:
        if len(unit) != 2:
            return bytes(unit[2]) if unit else b""
        return self.sources[unit[0] if self.listed is None else 0].source

    def steps(self) -> int:
        return 0

    def entries(self, unit: "Unit", visit: "Visit") -> Iterator[SourceEntry]:
        """The selected entries of a unit, whose paths are told if they are noted; folders in it are units below."""
        for source, entry in self._found(unit, visit):
            if entry.is_folder and not self.is_pruned(source, entry):
                visit.below.append((source.source, source.path, entry.source, entry.path, b""))
            if self.is_wanted(source, entry):
                if self.noted is not None:
                    visit.facts.append(entry.path)
                yield entry

    def note(self, facts: Sequence[bytes]) -> None:
        if self.noted is not None:
            self.noted(facts)

    def _found(self, unit: "Unit", visit: "Visit") -> Iterator[tuple[Source, SourceEntry]]:
        failed = visit.failed
        if len(unit) == 2:
            for source in self._between(unit[0], unit[1], failed):
                for entry in source_entry(source.source, source.path, failed):
                    yield source, entry
            return
        top, top_path, folder, path, joined = unit
        names = joined.split(b"\0") if joined else folder_names(folder, failed)
        if len(names) > NAMES_PER_UNIT:
            places = range(NAMES_PER_UNIT, len(names), NAMES_PER_UNIT)
            parts = [(*unit[:4], b"\0".join(names[at : at + NAMES_PER_UNIT])) for at in places]
            for at in range(0, len(parts), UNITS_PER_MESSAGE):
                visit.tell(parts[at : at + UNITS_PER_MESSAGE])
        source = Source(top, top_path, True)
        for entry in folder_entries(folder, path, names[:NAMES_PER_UNIT], failed):
            yield source, entry

    def disjoint(self) -> Iterator[tuple[int, int]]:
        """`(start, stop)` of sources that follow each other, and have no path in common: in any order, they give the
        same dataset. Of a path that is in several sources, the last one counts.
        """
        if self.listed is not None:  # each path has one source
            yield 0, self._count
            return
        start, tops, above = 0, set[bytes](), set[bytes]()
        for place, source in enumerate(self.sources):
            folders = _folders_of(source.path)
            if source.path in above or not tops.isdisjoint(folders):
                yield start, place
                start, tops, above = place, set(), set()
            tops.add(source.path)
            above.update(folders)
        yield start, len(self.sources)

    def is_pruned(self, source: Source, entry: SourceEntry) -> bool:
        """Whether nothing in a folder is wanted."""
        return source.is_folder and (
            not self.is_recursive or self.patterns.is_pruned(relative_path(source, entry.path))
        )

    def is_wanted(self, source: Source, entry: SourceEntry) -> bool:
        return not self.patterns or self.patterns.is_wanted(
            relative_path(source, entry.path), entry.is_folder
        )


def _folders_of(path: bytes) -> list[bytes]:
    """The path, and all folders above it."""
    found = [path]
    while path:
        path = split_path(path)[0]
        found.append(path)
    return found


def selected(entries: Mapping[bytes, Entry], patterns: Patterns) -> Mapping[bytes, Entry]:
    """The entries that the patterns select."""
    if not patterns:
        return entries
    return {path: entry for path, entry in entries.items() if patterns.is_wanted(path, entry.is_folder)}


class StoredTree:
    """The entries below a folder of a snapshot, and their nodes, by the path relative to the folder."""

    def __init__(self, snapshot: "Snapshot", folder: bytes) -> None:
        """Raises NotFound, InvalidInput."""
        from dieselfs.snapshot.subtree import walk_order

        top = snapshot.require(folder)
        if not snapshot.stat(top).is_folder:
            raise InvalidInput(f"{SCHEME}{snapshot.dataset}/{printable(folder)} is not a folder")
        start = len(folder) + 1 if folder else 0
        nodes = walk_order(snapshot, top)
        self.entries = {entry.path: entry for entry in Entry.of_nodes(snapshot, nodes, start)}
        self.nodes = dict(zip(self.entries, nodes.tolist(), strict=True))

    def selected(self, patterns: Patterns) -> Mapping[bytes, Entry]:
        """The entries that the patterns select."""
        return selected(self.entries, patterns)

    def reversed_paths(self) -> Iterator[tuple[bytes, bool]]:
        """(path, is_folder), each folder after its content."""
        return ((path, entry.is_folder) for path, entry in reversed(self.entries.items()))


class LocalTree:
    """The entries below a folder, by the path relative to it. `failures`: entries that cannot be read, with the reason;
    `unread` has their places.
    """

    def __init__(self, source: Source, patterns: Patterns) -> None:
        """The entries that the patterns select; each folder before its content."""
        self.entries: dict[bytes, Entry] = {}
        self.failures: list[tuple[str, str]] = []
        self.unread: set[bytes] = set()
        self._top = source.source
        for found in SourceTrees([source], patterns)(self.fail):
            path = relative_path(source, found.path)
            try:
                if path:
                    self.entries[path] = _entry(path, found)
            except OSError as error:  # it was removed meanwhile
                self.fail(found.source, error.strerror or str(error))
            except InvalidInput as error:
                self.fail(found.source, str(error))

    def fail(self, place: bytes, reason: str, is_damaged: bool = False) -> None:
        self.failures.append((printable(place), reason))
        self.unread.add(place)

    def place(self, path: bytes) -> bytes:
        return os.path.join(self._top, path)

    def has_content(self, path: bytes, extents: Sequence["ExtentRef"], chunks: "ServerSource") -> bool:
        """Whether a file of the right size has the bytes of these extents of `chunks`; True if it cannot be read.
        Extents of an encrypted dataset are fetched: their digests are those of the ciphertext.
        """
        is_encrypted = chunks.snapshot.header.is_encrypted
        try:
            with open(self.place(path), "rb", buffering=0) as file:
                for extent in extents:
                    content = os.pread(file.fileno(), extent.length, extent.place)
                    if is_encrypted:
                        is_same = content == chunks.fetch_extents(extent.chunk, [extent])[0]
                    else:
                        is_same = extent_digest_of(content) == extent.digest
                    if not is_same:
                        return False
        except OSError as error:
            self.fail(self.place(path), error.strerror or str(error))
        return True


def _entry(path: bytes, found: "UploadEntry") -> Entry:
    """Raises OSError, and InvalidInput for devices, pipes and sockets."""
    if not (found.is_folder or stat.S_ISREG(found.mode) or stat.S_ISLNK(found.mode)):
        raise InvalidInput("neither file nor folder nor link")
    is_link = stat.S_ISLNK(found.mode)
    target = os.readlink(found.source) if is_link else b""
    return Entry(path, found.mode, len(target) if is_link else found.file_bytes, found.mtime_ns, target)


def selected_nodes(snapshot: "Snapshot", top: int, patterns: Patterns) -> "Numbers | None":
    """The nodes from `top` on that the patterns select, and the folders that have them; None for all of them.

    Ascending, of shape (n,).
    """
    if not patterns:
        return None
    from dieselfs.snapshot.subtree import walk_order

    above_bytes, nodes = len(snapshot.path(top)) + 1 if top else 0, walk_order(snapshot, top)
    entries = zip(nodes.tolist(), Entry.of_nodes(snapshot, nodes, above_bytes), strict=True)
    wanted = (node for node, entry in entries if patterns.is_wanted(entry.path, entry.is_folder))
    return with_folders(snapshot, top, wanted)


def with_folders(snapshot: "Snapshot", top: int, nodes: Iterable[int]) -> "Numbers":
    """The folder `top`, nodes in it, and the folders between. Ascending, of shape (n,)."""
    import numpy as np

    found = {top}
    for node in nodes:
        while node not in found:
            found.add(node)
            node = snapshot.parent(node)
    return np.array(sorted(found), np.int64)


ADDED, REMOVED, CHANGED, ATTRIBUTES = "added", "removed", "changed", "attributes"
MARKS = {ADDED: "+", REMOVED: "-", CHANGED: "*", ATTRIBUTES: "~"}
"""The same as those of rclone, and one for equal content with another mode or time."""

_COLOURS = {ADDED: "green", REMOVED: "red", CHANGED: "yellow", ATTRIBUTES: "cyan"}


class Difference(NamedTuple):
    """`entry`: of the second tree, unless it is only in the first."""

    change: str
    entry: Entry


def differences(
    first: Mapping[bytes, Entry], second: Mapping[bytes, Entry], has_same_content: Callable[[bytes], bool]
) -> Iterator[Difference]:
    """In the order of paths. `has_same_content(path)` is called for files of equal size, before the first difference is
    known. The time of a folder does not count: it changes with its content.
    """
    found = [Difference(ADDED, entry) for path, entry in second.items() if path not in first]
    for path, old in first.items():
        new = second.get(path)
        if new is None:
            found.append(Difference(REMOVED, old))
        elif old != new or stat.S_ISREG(old.mode):
            change = _change(old, new, has_same_content)
            if change is not None:
                found.append(Difference(change, new))
    yield from sorted(found, key=lambda one: one.entry.path)


def _change(old: Entry, new: Entry, has_same_content: Callable[[bytes], bool]) -> str | None:
    """What differs between two entries of one path."""
    is_same_kind = stat.S_IFMT(old.mode) == stat.S_IFMT(new.mode) and old.target == new.target
    is_file = stat.S_ISREG(old.mode)
    if not is_same_kind or (is_file and (old.size != new.size or not has_same_content(old.path))):
        return CHANGED
    is_same_time = old.mtime_ns == new.mtime_ns or old.is_folder
    return None if old.mode == new.mode and is_same_time else ATTRIBUTES


def print_differences(
    output: Output, found: Iterable[Difference], entries: int, failures: Sequence[tuple[str, str]] = ()
) -> int:
    """Print one line for each, and the summary; returns the exit code. `entries`: of the first tree. `failures`: the
    entries that could not be compared, complete at the end of `found`.
    """
    counts: Counter[str] = Counter()
    for change, entry in found:
        counts[change] += 1
        text = f"{MARKS[change]} {printable(entry.path)}{'/' if entry.is_folder else ''}"
        text = output.coloured(text, _COLOURS[change])
        output.record("difference", text, {"change": change, **name_fields(entry.path), "kind": entry.type})
    total = counts.total()
    output.failures([*failures], len(failures))
    text = "" if failures else f"no differences in {count(entries, 'entry')}"
    if total:
        parts = ", ".join(f"{counts[change]:,} {change}" for change in MARKS if counts[change])
        output.error(f"{count(total, 'difference')}: {parts}")
        text = ""
    fields = {"entries": entries, **{change: counts[change] for change in MARKS}, "failed": len(failures)}
    return output.summary(text, fields, EXIT_PARTIAL if total or failures else EXIT_OK)
