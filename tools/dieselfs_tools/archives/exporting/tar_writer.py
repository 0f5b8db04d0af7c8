"""Exports entries as a tar archive, to a file or to standard output. This module writes files.

The bytes depend on the entries alone: GNU format, owner root, whole seconds, permissions without set-user-ID.
"""

import os
import stat
import tarfile
from collections.abc import Iterable
from typing import BinaryIO

from dieselfs.dataset import Dataset
from dieselfs_tools.archives.exporting.archive_export import Export, ExportOptions, export_archive
from dieselfs_tools.archives.exporting.entry_reader import Entry
from dieselfs_tools.cli.session import Session

PERMISSIONS = 0o777
_END = bytes(tarfile.RECORDSIZE)


class TarWriter:
    """Writes entries to `stream`; `close` writes the end mark. `position`: bytes so far."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.position = 0

    def add(self, entry: Entry, content: Iterable[bytes]) -> None:
        """`content`: of a file, in parts. Raises OSError."""
        status = entry.status
        name = entry.path.decode("utf-8", "surrogateescape")
        member = tarfile.TarInfo(name + "/" if status.is_folder else name)
        member.mode = stat.S_IMODE(status.mode) & PERMISSIONS
        member.mtime = status.mtime_ns // 10**9
        if status.is_folder:
            member.type = tarfile.DIRTYPE
        elif status.is_link:
            member.type, member.linkname = tarfile.SYMTYPE, entry.target.decode("utf-8", "surrogateescape")
        else:
            member.size = status.size
        self._write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        for part in content:
            self._write(part)
        self._write(bytes(-self.position % tarfile.BLOCKSIZE))

    def close(self) -> None:
        """The end mark, and zeros up to a whole record, as tar writes them. Does not close the stream."""
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        self._write(_END[: -self.position % tarfile.RECORDSIZE])

    def _write(self, content: bytes) -> None:
        self._stream.write(content)
        self.position += len(content)


def export(session: Session, dataset: Dataset, folder: int, options: ExportOptions) -> int:
    """Write a tar archive; returns the exit code."""
    return export_archive(session, dataset, folder, options, _write, _write_members)


def _write(export: Export, aside: str) -> None:
    with open(aside, "xb", buffering=1 << 20) as file:
        _write_members(export, file)
        file.flush()
        os.fsync(file.fileno())


def _write_members(export: Export, stream: BinaryIO) -> None:
    writer = TarWriter(stream)
    for entry in export.reader.entries():
        writer.add(entry, export.parts(entry))
        export.count(entry)
    writer.close()
