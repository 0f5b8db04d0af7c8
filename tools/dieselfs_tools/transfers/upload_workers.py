"""Uploads by several processes: each walks its units, reads, packs and sends.

A worker has a `TreeUpload` of its own, whose walk comes from here, a unit at a time: a folder of a tree
(`trees.py`), or an archive that is imported.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import Any, Protocol, runtime_checkable

from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.upload import Failed, TreeUpload, UploadEntry
from dieselfs_tools.transfers.roster import Unit
from dieselfs_tools.transfers.workers import STALLED_S, Link, Workers

Start = Callable[[Callable[[], object]], TreeUpload]
"""Makes the upload of one worker; its argument is called after each stored chunk."""


class Visit(Protocol):
    """What a worker tells about the unit that it walks. `below`, `facts`: sent when the unit is done;
    `failed`, `retract`: as of `TreeUpload`.
    """

    below: list[Unit]
    facts: list[Any]
    failed: Failed

    def retract(self, entry: UploadEntry) -> None: ...

    def tell(self, below: Sequence[Unit] = (), facts: Sequence[Any] = ()) -> None:
        """Send some of them now, if they are many: a message has 8 MiB at most."""


@runtime_checkable
class Divided(Protocol):
    """A walk that workers share. They are forks of the command, made in each pass."""

    def passes(self) -> Iterator[Iterable[Unit]]:
        """Units whose order does not matter, and which are all done before the next pass begins."""

    def entries(self, unit: Unit, visit: Visit) -> Iterator[UploadEntry]:
        """In a worker: the entries of a unit. The units that it finds meanwhile go to `visit`."""

    def note(self, facts: Sequence[Any]) -> None:
        """In the command: what a worker has told."""

    def place(self, unit: Unit) -> bytes:
        """For messages. A worker that is starting has `()`."""

    def steps(self) -> int:
        """In a worker, for any thread: rises while it reads, also without entries."""


class UploadWorkers:
    """One upload by several processes, by `run`. `report` has its progress, for any thread."""

    def __init__(self, walk: Divided, jobs: int, start: Start, stalled_s: float = STALLED_S) -> None:
        """`jobs` and `stalled_s`: as for `Workers`."""
        self.report = TransferReport()
        self.first: tuple[bytes, bytes] | None = None
        self._walk = walk
        self._workers = Workers(
            "upload", jobs, partial(_work, walk, start), self._finish, walk.place, stalled_s
        )

    def run(self) -> TransferReport:
        """Upload everything; returns when all is stored. Raises what `TreeUpload.run` and `Workers.run` do. Chunks
        stored by then stay, and the next run continues; all workers have ended.
        """
        for units in self._walk.passes():
            self._workers.run(units)
        return self.report

    def _finish(self, result: Sequence[Any]) -> None:
        """A result: counts and failures that the report of the worker has more than at its last one, units below, and
        facts; of the last result of a worker also the generation, and its `first`.
        """
        counts, failures, below, facts, *last = result
        self.report.add(counts, failures)
        self._workers.add(below)
        if facts:
            self._walk.note(facts)
        if last:
            generation, first = last
            # By name: which worker is done first depends on the machine.
            self.first = min(filter(None, (self.first, first and tuple(first))), default=None)
            self.report.generation = max(self.report.generation, generation)
            self.report.is_all_found = True


def _work(walk: Divided, start: Start, link: Link) -> Any:
    return _Work(walk, start, link).run()


class _Work:
    """What a worker does, in its process. A `Visit` of each unit."""

    def __init__(self, walk: Divided, start: Start, link: Link) -> None:
        self.below: list[Unit] = []
        self.facts: list[Any] = []
        self._walk = walk
        self._link = link
        self._lock = Lock()  # guards the two below
        self._sent = TransferReport().counts()
        self._failures_sent = 0
        self._upload = start(self.tell)
        self._report = self._upload.report

    def run(self) -> Any:
        self._upload.run(self._entries)
        return [*self._news(), (), (), self._report.generation, self._upload.first]

    def _news(self) -> tuple[Sequence[int], Sequence[tuple[str, str]]]:
        """Counts and failures of the report that were not sent. Only the thread that walks, and a stored chunk."""
        with self._lock:
            counts, failures = self._report.counts(), self._report.failures[self._failures_sent :]
            news = [now - before for now, before in zip(counts, self._sent, strict=True)]
            self._sent, self._failures_sent = counts, self._failures_sent + len(failures)
            return news, failures

    def tell(self, below: Sequence[Unit] = (), facts: Sequence[Any] = ()) -> None:
        self._link.tell("part", [*self._news(), below, facts])

    def retract(self, entry: UploadEntry) -> None:
        self._upload.retract(entry)

    def _pulse(self) -> tuple[int, bool]:
        return self._upload.steps + self._report.found_files + self._walk.steps(), self._upload.is_sending

    def _entries(self, failed: Failed) -> Iterator[UploadEntry]:
        """The entries of all units that are given."""
        self.failed = failed
        self._link.follow(self._pulse)
        for unit in self._link.units():
            self.below, self.facts = [], []
            yield from self._walk.entries(unit, self)
            self._link.result = [*self._news(), self.below, self.facts]
