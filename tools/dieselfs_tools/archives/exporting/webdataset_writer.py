"""Exports files as WebDataset shards: tar files of samples in a new folder. This module writes files."""

import os
from typing import BinaryIO

from dieselfs.dataset import Dataset
from dieselfs.names import printable, split_path
from dieselfs_tools.archives.exporting.archive_export import Export, ExportOptions, export_archive
from dieselfs_tools.archives.exporting.tar_writer import TarWriter
from dieselfs_tools.cli.session import Session

SHARD_NAME = "shard-{:06}.tar"


def export(session: Session, dataset: Dataset, folder: int, options: ExportOptions) -> int:
    """Write shards; returns the exit code."""
    return export_archive(session, dataset, folder, options, _write)


def _write(export: Export, aside: str) -> None:
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
        """That of the shard for the next file, of the sample `key`."""
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
