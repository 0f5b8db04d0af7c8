"""The work of `dlcmd import`, and how workers share its sources.

Names are what sources have in common: the first source that has one keeps it, in the order of the command line. Each
worker places the names of its source alone. If it then turns out that a name occurs in several sources, or is a file of
one and a folder of another, one worker reads those again, in order. It stores what keeps its name, and refuses the
rest, so the dataset and the failures are those of one process.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.attached.web_url import is_web_url
from dieselfs.bucket.url import is_object_url
from dieselfs.errors import InvalidInput
from dieselfs.limits import KIB
from dieselfs.names import split_path
from dieselfs.transfer.upload import Failed
from dieselfs_tools.archives.importing.naming import Names
from dieselfs_tools.archives.importing.record import Record
from dieselfs_tools.archives.importing.records import RecordOptions, Records
from dieselfs_tools.cli.progress import STANDARD_INPUT
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.roster import Unit
from dieselfs_tools.transfers.upload import Upload, Walk, find_target
from dieselfs_tools.transfers.upload_workers import Visit

NAMES_PER_MESSAGE = 64 * KIB
FOLDERS_PER_UNIT = 1024

SOURCE, SHARED, FOLDERS = "source", "shared", "folders"
"""Units: a source, by its number; all sources that share names; some of the folders."""
NAMES, FOLDER, BROKEN = "names", "folder", "broken"
"""Facts, each with the number of a source: hashes of names of files and folders; a folder; it cannot be read."""


def run_import(session: Session, options: RecordOptions) -> int:
    """Store the records of all sources; returns the exit code."""
    with closing(Records(session, options)) as records:
        sources = records.sources
        if sources.count(STANDARD_INPUT) > 1:
            raise InvalidInput("standard input ('-') can be one source only")
        for name in sources:  # all of them, before the first byte is stored
            if not is_web_url(name) and not is_object_url(name) and name != STANDARD_INPUT:
                records.check(name)
        target = find_target(session.client, replace(records.destination, is_folder_form=True))
        # Standard input is read once. The numbers of --rename depend on all names before.
        is_divided = len(sources) > 1 and STANDARD_INPUT not in sources and not options.is_renaming
        walk: Walk = ImportWalk(records) if is_divided else records.all
        # With one process too: an import that was cut off may have left the content of another source under a name.
        return Upload(session, target, options, walk, is_divided=is_divided).run()


class _Folder(NamedTuple):
    number: int
    path: bytes
    name: bytes
    mtime_ns: int
    mode: int


class ImportWalk:
    """The records of several sources. What a worker knows was found in the passes before it: it is a fork."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._files: list[tuple[int, Numbers]] = []  # by the number of a source; in any order
        self._folders: list[tuple[int, Numbers]] = []
        self._contested: set[int] = set()
        self._sharing: list[int] = []
        self._broken: set[int] = set()
        self._stored_last: dict[bytes, _Folder] = {}  # of equal folders, that of the last source counts

    def __call__(self, failed: Failed) -> Iterator[Record]:
        """All records, in order."""
        return self._records.all(failed)

    def passes(self) -> Iterator[Iterable[Unit]]:
        self._records.start()
        yield ((SOURCE, number) for number in range(len(self._records.sources)))
        self._find_contested()
        if self._sharing:
            yield [(SHARED,)]
        self._stored_last = dict(sorted(self._stored_last.items()))
        yield ((FOLDERS, start) for start in range(0, len(self._stored_last), FOLDERS_PER_UNIT))

    def place(self, unit: Unit) -> bytes:
        return os.fsencode(self._records.sources[unit[1]]) if unit and unit[0] == SOURCE else b""

    def steps(self) -> int:
        return self._records.steps

    def entries(self, unit: Unit, visit: Visit) -> Iterator[Record]:
        match unit:
            case [kind, number] if kind == SOURCE:
                yield from self._source(number, visit)
            case [kind, start] if kind == FOLDERS:
                yield from map(self._folder, [*self._stored_last.values()][start : start + FOLDERS_PER_UNIT])
            case _:
                yield from self._shared(visit)

    def note(self, facts: Sequence[Any]) -> None:
        for kind, number, *more in facts:
            if kind == NAMES:
                for found, hashes in zip((self._files, self._folders), more, strict=True):
                    found.append((number, np.frombuffer(hashes, np.int64)))
            elif kind == BROKEN:
                self._broken.add(number)
            else:
                folder = _Folder(number, *more)
                if number >= self._stored_last.get(folder.path, folder).number:
                    self._stored_last[folder.path] = folder

    def _source(self, number: int, visit: Visit) -> Iterator[Record]:
        """The records of a source but folders, which are told."""
        origin, names = self._origin(number), self._records.names()

        def failed(source: bytes, reason: str, is_damaged: bool = False) -> None:
            if source == origin:
                visit.facts.append((BROKEN, number))
            visit.failed(source, reason, is_damaged)

        for record in self._records.of(number, failed, names):
            if record.is_folder:
                self._tell_folder(number, record, visit)
            else:
                yield record
        files, folders = names.hashes()
        for start in range(0, max(len(files), len(folders)), NAMES_PER_MESSAGE):
            part = slice(start, start + NAMES_PER_MESSAGE)
            visit.tell(facts=[(NAMES, number, files[part].tobytes(), folders[part].tobytes())])

    def _tell_folder(self, number: int, record: Record, visit: Visit) -> None:
        visit.facts.append((FOLDER, number, record.path, record.name, record.mtime_ns, record.mode))
        if len(visit.facts) >= FOLDERS_PER_UNIT:
            visit.tell(facts=visit.facts)
            visit.facts.clear()

    def _find_contested(self) -> None:
        """Which names are not of one source alone, and which sources have them."""
        empty = np.empty(0, np.int64)
        files = np.sort(np.concatenate([empty, *(hashes for _, hashes in self._files)]))
        folders = np.concatenate([empty, *(hashes for _, hashes in self._folders)])
        contested = np.concatenate([files[1:][files[1:] == files[:-1]], folders[np.isin(folders, files)]])
        self._contested = set(contested.tolist())
        found = (number for number, hashes in self._files + self._folders if np.isin(hashes, contested).any())
        self._sharing = sorted(set(found)) if self._contested else []
        self._files, self._folders = [], []
        self._stored_last = {
            path: folder for path, folder in self._stored_last.items() if not self._is_contested(path)
        }

    def _is_contested(self, path: bytes) -> bool:
        """Whether a path, or a folder above it, is a name of several sources."""
        while path and self._contested:
            if hash(path) in self._contested:
                return True
            path = split_path(path)[0]
        return False

    def _shared(self, visit: Visit) -> Iterator[Record]:
        """The records with contested names. What their worker has counted for them is taken back."""
        places = Names(b"")
        for number in self._sharing:
            for record in self._again(number, visit):
                if not record.is_folder:
                    visit.retract(record)
                try:
                    places.place(record.path, record.is_folder)
                except InvalidInput as error:
                    visit.failed(record.source, str(error))
                    if not record.is_folder and not places.has_file(record.path):
                        removal = Record(record.name, 0, path=record.path, is_removal=True)
                        visit.retract(removal)  # it is no file that is stored
                        yield removal
                    continue
                if record.is_folder:
                    self._tell_folder(number, record, visit)
                else:
                    record.is_contested = True
                    yield record

    def _again(self, number: int, visit: Visit) -> Iterator[Record]:
        """The records of a source with contested names. Failures of others were told in the first pass."""
        origin, is_known = self._origin(number), number in self._broken

        def failed(source: bytes, reason: str, is_damaged: bool = False) -> None:
            if source == origin and not is_known:
                visit.failed(source, reason, is_damaged)

        for record in self._records.of(number, failed, self._records.names()):
            if self._is_contested(record.path):
                yield record

    def _folder(self, found: _Folder) -> Record:
        record = Record(found.name, found.mtime_ns, mode=found.mode, path=found.path)
        record.origin = self._origin(found.number)
        record.is_contested = self._is_contested(found.path)
        return record

    def _origin(self, number: int) -> bytes:
        return os.fsencode(self._records.sources[number])
