"""Uploads of folder trees by several processes: each lists folders, reads, packs and sends.

A worker has a `TreeUpload` of its own, whose walk comes from here, a unit at a time: some of the sources, a folder, or
some names of a large folder. What folders it finds become units, for any worker.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import Any

from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.upload import (
    Failed,
    SourceEntry,
    TreeUpload,
    UploadEntry,
    folder_entries,
    folder_names,
    source_entry,
)
from dieselfs_tools.transfers.roster import Unit
from dieselfs_tools.transfers.trees import Source, SourceTrees
from dieselfs_tools.transfers.workers import STALLED_S, Link, Workers

SOURCES_PER_UNIT = 64
NAMES_PER_UNIT = 1024
"""Of a folder with more names, other workers read the rest."""
UNITS_PER_MESSAGE = 16

Start = Callable[[Callable[[], object]], TreeUpload]
"""Makes the upload of one worker; its argument is called after each stored chunk."""


class UploadWorkers:
    """One upload of folder trees by several processes, by `run`. `report` has its progress, for any thread."""

    def __init__(
        self,
        trees: SourceTrees,
        jobs: int,
        start: Start,
        noted: Callable[[Sequence[bytes]], object] | None = None,
        stalled_s: float = STALLED_S,
    ) -> None:
        """`jobs` and `stalled_s`: as for `Workers`; `noted` is called with the paths of all entries of the sources."""
        self.report = TransferReport()
        self.first: tuple[bytes, bytes] | None = None
        self._trees = trees
        self._noted = noted
        self._workers = Workers(
            "upload", jobs, partial(self._work, start), self._finish, self._place, stalled_s
        )

    def run(self) -> TransferReport:
        """Upload everything; returns when all is stored. Raises what `TreeUpload.run` and `Workers.run` do. Chunks
        stored by then stay, and the next run continues; all workers have ended.
        """
        for start, stop in self._trees.disjoint():
            places = range(start, stop, SOURCES_PER_UNIT)
            self._workers.run((at, min(at + SOURCES_PER_UNIT, stop)) for at in places)
        return self.report

    def _place(self, unit: Unit) -> bytes:
        """A unit: `(start, stop)`: sources; or `(top, path of the top, folder, path of the folder, names)`, where names
        are separated by NUL bytes, and none stand for all. A worker that is starting has `()`.
        """
        if len(unit) != 2:
            return bytes(unit[2]) if unit else b""
        return self._trees.sources[unit[0] if self._trees.listed is None else 0].source

    def _work(self, start: Start, link: Link) -> Any:
        return _Work(self._trees, start, link, self._noted is not None).run()

    def _finish(self, result: Sequence[Any]) -> None:
        """A result: counts and failures that the report of the worker has more than at its last one, units below, and
        paths of entries; of the last result of a worker also the generation, and its `first`.
        """
        counts, failures, units, paths, *last = result
        self.report.add(counts, failures)
        self._workers.add(units)
        if self._noted is not None:
            self._noted(paths)
        if last:
            generation, first = last
            self.first = self.first or (first and tuple(first))
            self.report.generation = max(self.report.generation, generation)
            self.report.is_all_found = True


class _Work:
    """What a worker does, in its process."""

    def __init__(self, trees: SourceTrees, start: Start, link: Link, has_paths: bool) -> None:
        self._trees = trees
        self._link = link
        self._has_paths = has_paths
        self._lock = Lock()  # guards the two below
        self._sent = TransferReport().counts()
        self._failures_sent = 0
        self._upload = start(self._tell)
        self._report = self._upload.report

    def run(self) -> Any:
        self._upload.run(self._walk)
        return [*self._news(), (), (), self._report.generation, self._upload.first]

    def _news(self) -> tuple[Sequence[int], Sequence[tuple[str, str]]]:
        """Counts and failures of the report that were not sent. Only the thread that walks, and a stored chunk."""
        with self._lock:
            counts, failures = self._report.counts(), self._report.failures[self._failures_sent :]
            news = [now - before for now, before in zip(counts, self._sent, strict=True)]
            self._sent, self._failures_sent = counts, self._failures_sent + len(failures)
            return news, failures

    def _tell(self, units: Sequence[Unit] = ()) -> None:
        self._link.tell("part", [*self._news(), units, ()])

    def _pulse(self) -> tuple[int, bool]:
        return self._upload.steps + self._report.found_files, self._upload.is_sending

    def _walk(self, failed: Failed) -> Iterator[UploadEntry]:
        """The entries of all units that are given."""
        self._link.follow(self._pulse)
        for unit in self._link.units():
            below, paths = list[Unit](), list[bytes]()
            for entry in self._entries(unit, below, failed):
                if self._has_paths:
                    paths.append(entry.path)
                yield entry
            self._link.result = [*self._news(), below, paths]

    def _entries(self, unit: Unit, below: list[Unit], failed: Failed) -> Iterator[SourceEntry]:
        """The selected entries of a unit; folders in it are added to `below`."""
        if len(unit) == 2:
            for source in self._trees.between(unit[0], unit[1], failed):
                yield from self._selected(source, source_entry(source.source, source.path, failed), below)
            return
        top, top_path, folder, path, joined = unit
        names = joined.split(b"\0") if joined else folder_names(folder, failed)
        if len(names) > NAMES_PER_UNIT:
            places = range(NAMES_PER_UNIT, len(names), NAMES_PER_UNIT)
            parts = [(*unit[:4], b"\0".join(names[at : at + NAMES_PER_UNIT])) for at in places]
            for at in range(0, len(parts), UNITS_PER_MESSAGE):
                self._tell(parts[at : at + UNITS_PER_MESSAGE])
        entries = folder_entries(folder, path, names[:NAMES_PER_UNIT], failed)
        yield from self._selected(Source(top, top_path, True), entries, below)

    def _selected(
        self, source: Source, entries: Iterator[SourceEntry], below: list[Unit]
    ) -> Iterator[SourceEntry]:
        for entry in entries:
            if entry.is_folder and not self._trees.is_pruned(source, entry):
                below.append((source.source, source.path, entry.source, entry.path, b""))
            if self._trees.is_wanted(source, entry):
                yield entry
