"""The work of `dlcmd import`, and how workers share its sources, and the parts of a large archive.

Names are what parts have in common: the first part that has one keeps it, in the order of the command line and of the
archive. Each worker places the names of its part alone. If it then turns out that a name occurs several times, or is a
file of one part and a folder of another, one worker reads those parts again, in order. It stores what keeps its name,
and refuses the rest, so the dataset and the failures are those of one process.
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
from dieselfs_tools.archives.importing.records import Part, RecordOptions, Records
from dieselfs_tools.cli.progress import STANDARD_INPUT
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.roster import Unit
from dieselfs_tools.transfers.upload import Upload, Walk, find_target
from dieselfs_tools.transfers.upload_workers import Visit

NAMES_PER_MESSAGE = 64 * KIB
FOLDERS_PER_UNIT = 1024

PART, SHARED, FOLDERS = "part", "shared", "folders"
"""Units: a part; all parts that share names; some of the folders."""
NAMES, FOLDER = "names", "folder"
"""Facts, each with the number of a part: hashes of names of files and folders; a folder."""


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
        is_divided = (
            (len(sources) > 1 or records.has_divisible)
            and STANDARD_INPUT not in sources
            and not options.is_renaming
        )
        walk: Walk = ImportWalk(records, options.jobs) if is_divided else records.all
        # With one process too: an import that was cut off may have left the content of another part under a name.
        return Upload(session, target, options, walk, is_divided=is_divided).run()


class _Folder(NamedTuple):
    number: int
    path: bytes
    name: bytes
    mtime_ns: int
    mode: int


class ImportWalk:
    """The records of several parts. What a worker knows was found in the passes before it: it is a fork."""

    def __init__(self, records: Records, jobs: int) -> None:
        self._records = records
        self._jobs = jobs
        self._parts: list[Part] = []
        self._files: list[tuple[int, Numbers]] = []  # by the number of a part; in any order
        self._folders: list[tuple[int, Numbers]] = []
        self._contested: set[int] = set()
        self._sharing: list[int] = []
        self._stored_last: dict[bytes, _Folder] = {}  # of equal folders, that of the last part counts

    def __call__(self, failed: Failed) -> Iterator[Record]:
        """All records, in order."""
        return self._records.all(failed)

    def passes(self) -> Iterator[Iterable[Unit]]:
        self._records.start()
        yield ((PART, *part) for part in self._found_parts())
        self._find_contested()
        if self._sharing:
            yield [(SHARED,)]
        self._stored_last = dict(sorted(self._stored_last.items()))
        yield ((FOLDERS, start) for start in range(0, len(self._stored_last), FOLDERS_PER_UNIT))

    def _found_parts(self) -> Iterator[Part]:
        for part in self._records.parts(self._jobs):
            self._parts.append(part)
            yield part

    def place(self, unit: Unit) -> bytes:
        return self._origin(Part(*unit[1:])) if unit and unit[0] == PART else b""

    def steps(self) -> int:
        return self._records.steps

    def entries(self, unit: Unit, visit: Visit) -> Iterator[Record]:
        match unit:
            case [kind, *part] if kind == PART:
                yield from self._part(Part(*part), visit)
            case [kind, start] if kind == FOLDERS:
                yield from map(self._folder, [*self._stored_last.values()][start : start + FOLDERS_PER_UNIT])
            case _:
                yield from self._shared(visit)

    def note(self, facts: Sequence[Any]) -> None:
        for kind, number, *more in facts:
            if kind == NAMES:
                for found, hashes in zip((self._files, self._folders), more, strict=True):
                    found.append((number, np.frombuffer(hashes, np.int64)))
            else:
                folder = _Folder(number, *more)
                if number >= self._stored_last.get(folder.path, folder).number:
                    self._stored_last[folder.path] = folder

    def _part(self, part: Part, visit: Visit) -> Iterator[Record]:
        """The records of a part but folders, which are told."""
        number, names = part.number, self._records.names()
        for record in self._records.of(part, visit.failed, names):
            if record.is_folder:
                self._tell_folder(number, record, visit)
            else:
                yield record
        files, folders = names.hashes()
        for start in range(0, max(len(files), len(folders)), NAMES_PER_MESSAGE):
            some = slice(start, start + NAMES_PER_MESSAGE)
            visit.tell(facts=[(NAMES, number, files[some].tobytes(), folders[some].tobytes())])

    def _tell_folder(self, number: int, record: Record, visit: Visit) -> None:
        visit.facts.append((FOLDER, number, record.path, record.name, record.mtime_ns, record.mode))
        if len(visit.facts) >= FOLDERS_PER_UNIT:
            visit.tell(facts=visit.facts)
            visit.facts.clear()

    def _find_contested(self) -> None:
        """Which names occur several times, and which parts have them."""
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
        """Whether a path, or a folder above it, occurs several times."""
        while path and self._contested:
            if hash(path) in self._contested:
                return True
            path = split_path(path)[0]
        return False

    def _shared(self, visit: Visit) -> Iterator[Record]:
        """The records with contested names. What their worker has counted for them is taken back."""
        places = Names(b"")
        for number in self._sharing:
            for record in self._again(self._parts[number], visit):
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

    def _again(self, part: Part, visit: Visit) -> Iterator[Record]:
        """The records of a part with contested names. Failures of records were told in the first pass."""
        origin = self._origin(part)

        def failed(source: bytes, reason: str, is_damaged: bool = False) -> None:
            if source == origin:
                visit.failed(source, reason, is_damaged)

        for record in self._records.of(part, failed, self._records.names()):
            if self._is_contested(record.path):
                yield record

    def _folder(self, found: _Folder) -> Record:
        record = Record(found.name, found.mtime_ns, mode=found.mode, path=found.path)
        record.origin = self._origin(self._parts[found.number])
        record.is_contested = self._is_contested(found.path)
        return record

    def _origin(self, part: Part) -> bytes:
        return os.fsencode(self._records.sources[part.source])
