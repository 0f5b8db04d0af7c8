"""Exports entries as a tar archive, or as WebDataset shards: tar files of samples. This module writes files.

The bytes depend on the entries alone: GNU format, owner root, whole seconds, permissions without set-user-ID.
"""

import os
import stat
import tarfile
from collections.abc import Iterable
from typing import BinaryIO

from dieselfs.dataset import Dataset
from dieselfs.names import printable, split_path
from dieselfs_tools.archives.exporting.export import Export, ExportedEntry, ExportOptions, export_archive
from dieselfs_tools.cli.session import Session

PERMISSIONS = 0o777
_END = bytes(tarfile.RECORDSIZE)


class TarWriter:
    """Writes entries to `stream`; `close` writes the end mark. `position`: bytes so far."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.position = 0

    def add(self, entry: ExportedEntry, content: Iterable[bytes]) -> None:
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


def export_tar(session: Session, dataset: Dataset, folder: int, options: ExportOptions) -> int:
    """Write a tar archive; returns the exit code."""
    return export_archive(session, dataset, folder, options, _write_tar, _write_members)


def _write_tar(export: Export, aside: str) -> None:
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


SHARD_NAME = "shard-{:06}.tar"


def export_shards(session: Session, dataset: Dataset, folder: int, options: ExportOptions) -> int:
    """Write shards; returns the exit code."""
    return export_archive(session, dataset, folder, options, _write_shards)


def _write_shards(export: Export, aside: str) -> None:
    """Samples, the files with one base name in a folder, are never split. A shard is full at `shard_bytes`."""
    os.mkdir(aside)
    shards = _Shards(aside, export.options.shard_bytes)
    try:
        for entry in export.reader.entries():
            if entry.status.is_folder:
                export.count(entry)
            elif entry.status.is_link:
                export.report.fail(printable(entry.path), "a link; WebDataset has files only")
            elif (key := sample_key(entry.path)) is None:
                export.report.fail(printable(entry.path), "WebDataset ignores names without a suffix")
            else:
                shards.writer(key).add(entry, export.parts(entry))
                export.count(entry)
    finally:
        shards.close()


def sample_key(path: bytes) -> bytes | None:
    """The key of a file in WebDataset: its path up to the first dot of its name. None without a suffix."""
    folder, name = split_path(path)
    base, dot, suffix = name.partition(b".")
    return folder + b"/" + base if base and dot and suffix else None


class _Shards:
    """Shards in a folder, each begun when the one before is full and a sample ends."""

    def __init__(self, folder: str, shard_bytes: int) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._number = 0
        self._key: bytes | None = None
        self._file: BinaryIO | None = None
        self._writer: TarWriter | None = None

    def writer(self, key: bytes) -> TarWriter:
        """The writer of the shard for the next file, which is of the sample `key`."""
        if self._writer is not None and key != self._key and self._writer.position >= self._shard_bytes:
            self.close()
        self._key = key
        if self._writer is None:
            path = os.path.join(self._folder, SHARD_NAME.format(self._number))
            self._file = open(path, "xb", buffering=1 << 20)  # noqa: SIM115  # close() closes it
            self._writer = TarWriter(self._file)
            self._number += 1
        return self._writer

    def close(self) -> None:
        """End the shard that is being written."""
        if self._writer is not None and self._file is not None:
            with self._file as file:
                self._writer.close()
                file.flush()
                os.fsync(file.fileno())
            self._file = self._writer = None
