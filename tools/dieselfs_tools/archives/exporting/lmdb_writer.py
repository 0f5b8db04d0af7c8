"""Exports files as an LMDB environment: keys are paths, values are contents. This module writes files."""

import os
from typing import Any

from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError, InvalidInput, StorageFull
from dieselfs.limits import MIB
from dieselfs.names import printable
from dieselfs.transfer.destination import DISK_FULL
from dieselfs_tools.archives.exporting.export import Export, ExportedEntry, ExportOptions, export_archive
from dieselfs_tools.archives.formats import required
from dieselfs_tools.cli.session import Session

COMMIT_BYTES = 64 * MIB
"""Contents of one transaction, which are in memory."""

VALUE_BYTES_MAX = 0xFFFF_FFFF
PAGE_BYTES = 4096
_SPARE_BYTES = 16 * MIB


class LmdbWriter:
    """Writes entries into a new folder. The bytes depend on the entries alone."""

    def __init__(self, folder: str, files: int, total_bytes: int) -> None:
        """`files` and `total_bytes`: limits of the entries and of their bytes."""
        self._lmdb: Any = required("lmdb")
        # Each value may begin a page, and each key may have a leaf of its own; the map itself takes no space.
        map_bytes = _SPARE_BYTES + total_bytes + 3 * files * PAGE_BYTES
        self._environment = self._lmdb.open(
            folder, map_size=-(-map_bytes // MIB) * MIB, lock=False, sync=False, metasync=False
        )
        self._transaction: Any = self._environment.begin(write=True)
        self._pending_bytes = 0
        self.key_bytes_max: int = self._environment.max_key_size()

    def add(self, entry: ExportedEntry, content: bytes) -> None:
        """Raises InvalidInput for a path that is too long, or a file that is too large; StorageFull."""
        if len(entry.path) > self.key_bytes_max:
            raise InvalidInput(
                f"keys of LMDB have at most {self.key_bytes_max} bytes, this path {len(entry.path)}"
            )
        if len(content) > VALUE_BYTES_MAX:
            raise InvalidInput(f"values of LMDB have at most {VALUE_BYTES_MAX} bytes")
        try:
            self._transaction.put(entry.path, content)
            self._pending_bytes += len(content) + PAGE_BYTES
            if self._pending_bytes >= COMMIT_BYTES:
                self._transaction.commit()
                self._transaction = self._environment.begin(write=True)
                self._pending_bytes = 0
        except self._lmdb.Error as error:
            raise _failure(error) from None

    def close(self) -> None:
        """Commit and sync. Raises StorageFull."""
        try:
            self._transaction.commit()
            self._environment.sync(True)
        except self._lmdb.Error as error:
            raise _failure(error) from None
        finally:
            self._environment.close()

    def abandon(self) -> None:
        self._transaction.abort()
        self._environment.close()


def _failure(error: Exception) -> DieselfsError:
    reasons = [os.strerror(code) for code in DISK_FULL]
    if any(reason in str(error) for reason in reasons):
        return StorageFull(f"LMDB: {error}; free some space and run the same command again")
    return DieselfsError(f"LMDB: {error}")


def export(session: Session, dataset: Dataset, folder: int, options: ExportOptions) -> int:
    """Write an environment; returns the exit code."""
    return export_archive(session, dataset, folder, options, _write)


def _write(export: Export, aside: str) -> None:
    os.mkdir(aside)
    writer = LmdbWriter(aside, export.report.found_files, export.report.found_bytes)
    try:
        for entry in export.reader.entries():
            if entry.status.is_folder:
                export.count(entry)
                continue
            try:
                if entry.status.is_link:
                    raise InvalidInput("a link; LMDB has values only")
                writer.add(entry, b"".join(export.parts(entry)))
                export.count(entry)
            except InvalidInput as error:
                export.report.fail(printable(entry.path), str(error))
    except BaseException:
        writer.abandon()
        raise
    writer.close()
