"""Stored files, folders and links: in listings, and their contents. This module writes to standard output."""

import stat
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from dieselfs.errors import Damaged, InvalidInput
from dieselfs.names import Location, printable
from dieselfs.records import DatasetRecord, Op
from dieselfs.rpc.records import RemoteEntry
from dieselfs.units import format_time
from dieselfs_tools.cli.output import Output, name_fields, write_bytes
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs import Dataset
    from dieselfs.arrays import Numbers
    from dieselfs.snapshot.reader import Snapshot


_TYPE_BITS = {Op.FILE: stat.S_IFREG, Op.DIRECTORY: stat.S_IFDIR, Op.SYMLINK: stat.S_IFLNK}
_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}

BLOCK_ENTRIES = 16_384
"""Entries of a snapshot that are made at once."""
SIZE_COLUMNS = 9
TIME_COLUMNS = 19

_mode, _time = lru_cache(256)(stat.filemode), lru_cache(BLOCK_ENTRIES)(format_time)


class Entry(NamedTuple):
    """An entry of a dataset. `mode` has the type bits; `target` is that of a link."""

    path: bytes
    mode: int
    size: int
    mtime_ns: int
    target: bytes = b""

    @property
    def type(self) -> str:
        return _TYPES[stat.S_IFMT(self.mode)]

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @classmethod
    def of_server(cls, path: bytes, entry: RemoteEntry) -> "Entry":
        """Raises ValueError for an unknown kind of entry."""
        op = Op(entry.op)
        mode = stat.S_IMODE(entry.mode) | _TYPE_BITS[op]
        size = len(entry.target) if op == Op.SYMLINK else entry.size
        return cls(path, mode, size, entry.mtime_ns, entry.target)

    @classmethod
    def of_snapshot(cls, snapshot: "Snapshot", node: int) -> "Entry":
        stored = snapshot.stat(node)
        target = snapshot.target(node) if stored.is_link else b""
        return cls(snapshot.path(node), stored.mode, stored.size, stored.mtime_ns, target)

    @classmethod
    def of_nodes(cls, snapshot: "Snapshot", nodes: "Numbers", above_bytes: int = 0) -> "Iterator[Entry]":
        """The entries of nodes, without the first `above_bytes` of their paths. Takes about 1 us each."""
        for first in range(0, len(nodes), BLOCK_ENTRIES):
            block = nodes[first : first + BLOCK_ENTRIES]
            paths = snapshot.path_many(block)
            if above_bytes:
                paths = [path[above_bytes:] for path in paths]
            columns = (snapshot.column(name)[block].tolist() for name in ("modes", "sizes", "mtimes_ns"))
            modes, sizes, mtimes_ns = columns
            targets = [b""] * len(block)
            for place, mode in enumerate(modes):
                if stat.S_ISLNK(mode):
                    targets[place] = snapshot.target(int(block[place]))
            yield from map(cls, paths, modes, sizes, mtimes_ns, targets)

    def fields(self) -> dict[str, object]:
        """For JSON."""
        fields = {
            **name_fields(self.path),
            "kind": self.type,
            "size": self.size,
            "mode": f"{stat.S_IMODE(self.mode):04o}",
            "mtime_ns": self.mtime_ns,
        }
        return {**fields, **name_fields(self.target, "target")} if self.type == "link" else fields

    def line(self, output: Output, name: bytes, is_long: bool) -> str:
        """The entry as text: `name`, with a slash after a folder; `is_long`: mode, size and time before it."""
        is_folder = stat.S_ISDIR(self.mode)
        shown = printable(name) + "/" if is_folder else printable(name)
        if not is_long:
            return shown
        size = "-" if is_folder else output.size(self.size)
        arrow = f" -> {printable(self.target)}" if stat.S_ISLNK(self.mode) else ""
        when = _time(self.mtime_ns // 10**9)
        return f"{_mode(self.mode)} {size:>{SIZE_COLUMNS}} {when} {shown}{arrow}"


def dataset_fields(record: DatasetRecord) -> dict[str, object]:
    """For JSON."""
    return {
        "dataset": record.name,
        "files": record.files,
        "bytes": record.total_bytes,
        "chunks": record.chunks,
        "generation": record.generation,
        "updated_ns": record.updated_ns,
    }


def write_contents(session: Session, locations: Sequence[Location]) -> None:
    """Looks up all files before it writes the first byte. Raises NotFound, InvalidInput, Damaged."""
    if session.output.is_json:
        raise InvalidInput("--json and the content of files cannot both go to standard output")
    session.output.is_stdout_taken = True
    datasets = {name: session.dataset(name) for name in dict.fromkeys(place.state for place in locations)}
    found = [(datasets[place.state], find_file(datasets[place.state], place.path)) for place in locations]
    for dataset, node in found:
        for content in extents(dataset, node):
            write_bytes(content)


def find_file(dataset: "Dataset", path: bytes) -> int:
    """The node of a file; links are followed. Raises NotFound, and InvalidInput for a folder."""
    snapshot = dataset.snapshot
    node = snapshot.find(path)
    if node < 0 or snapshot.stat(node).is_link:
        node = snapshot.follow(path)
    if not snapshot.stat(node).is_file:
        raise InvalidInput(f"{Location(dataset.name, path)} is a folder; name a file")
    return node


def extents(dataset: "Dataset", node: int) -> Iterator[bytes]:
    """The verified bytes of a file, extent by extent. Raises Damaged, Unavailable."""
    end_bytes = 0
    for extent in dataset.snapshot.extents(node):
        if extent.place != end_bytes:
            break
        yield from dataset.chunks.fetch_extents(extent.chunk, [extent])
        end_bytes += extent.length
    if end_bytes != dataset.snapshot.size(node):
        place = Location(dataset.name, dataset.snapshot.path(node), False)
        raise Damaged(f"{place}: its extents have {end_bytes} bytes of {dataset.snapshot.size(node)}")
