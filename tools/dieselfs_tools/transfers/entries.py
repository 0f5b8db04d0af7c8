"""Stored files, folders and links in listings. No I/O."""

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dieselfs.names import printable
from dieselfs.records import DatasetRecord, Op
from dieselfs.rpc.records import RemoteEntry
from dieselfs.units import format_time
from dieselfs_tools.cli.output import Output, name_fields

if TYPE_CHECKING:
    from dieselfs.snapshot.reader import Snapshot

_TYPE_BITS = {Op.FILE: stat.S_IFREG, Op.DIRECTORY: stat.S_IFDIR, Op.SYMLINK: stat.S_IFLNK}
_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}

SIZE_COLUMNS = 9
TIME_COLUMNS = 19


@dataclass(frozen=True, slots=True)
class Entry:
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
        """As text: `name`, with a slash after a folder; `is_long`: mode, size and time before it."""
        shown = printable(name) + ("/" if self.is_folder else "")
        if not is_long:
            return shown
        size = "-" if self.is_folder else output.size(self.size)
        arrow = f" -> {printable(self.target)}" if self.type == "link" else ""
        when = format_time(self.mtime_ns // 10**9)
        return f"{stat.filemode(self.mode)} {size:>{SIZE_COLUMNS}} {when} {shown}{arrow}"


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
