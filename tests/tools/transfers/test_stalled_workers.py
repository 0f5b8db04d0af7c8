"""An upload whose worker makes no progress ends with one line; one that is slow does not."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from dieselfs.errors import Unavailable
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.upload import TreeUpload
from dieselfs_tools.cli.patterns import ALL
from dieselfs_tools.transfers import upload_workers
from dieselfs_tools.transfers.messages import Writer
from dieselfs_tools.transfers.trees import Source, SourceTrees
from dieselfs_tools.transfers.upload_workers import LOOKS, UploadWorkers, _Work, _Worker

STALLED_S = 0.25
PROCESS_STALLED_S = 1.5
"""For real processes: until then, they have walked their few folders."""


class Walking:
    """In place of an upload: it walks its folders, then does one thing."""

    def __init__(self, last: Callable[[_Work], object]) -> None:
        self.report = TransferReport()
        self.first = None
        self.steps = 0
        self.is_sending = False
        self._last = last

    def run(self, walk: Any) -> None:
        for entry in walk(lambda *_: None):
            if not entry.is_folder:
                self._last(walk.__self__)


def waits(_: _Work) -> None:
    """As in a call to a file system that does not answer."""
    threading.Event().wait()


def is_stopped_while_it_writes(work: _Work) -> None:
    work.end.send(b"\x05")
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("last", [waits, is_stopped_while_it_writes])
def test_a_worker_without_progress_is_killed_and_its_folder_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: Callable[[_Work], object]
) -> None:
    processes = []
    fork = os.fork

    def noted_fork() -> int:
        processes.append(fork())
        return processes[-1]

    monkeypatch.setattr(os, "fork", noted_fork)
    monkeypatch.setattr(upload_workers, "END_TIMEOUT_S", 0.1)
    (tmp_path / "tree/below").mkdir(parents=True)
    (tmp_path / "tree/below/file").touch()
    trees = SourceTrees([Source(os.fsencode(tmp_path / "tree"), b"", True)], ALL)
    workers = UploadWorkers(trees, 2, lambda _: cast(TreeUpload, Walking(last)), stalled_s=PROCESS_STALLED_S)
    with pytest.raises(Unavailable, match=f"no progress in {tmp_path}/tree/below for 1.5 s"):
        workers.run()
    assert processes and not any(Path(f"/proc/{process}").exists() for process in processes)


@contextmanager
def parent_of_one() -> Iterator[tuple[UploadWorkers, Writer]]:
    """A parent, and what its worker writes to."""
    trees = SourceTrees([Source(b"/tree", b"", True)], ALL)
    workers = UploadWorkers(trees, 1, lambda _: cast(TreeUpload, Walking(waits)), stalled_s=STALLED_S)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = _Worker(os.getpid(), ours, STALLED_S)
        worker.give((0, 1))
        workers._workers.append(worker)
        yield workers, Writer(theirs.fileno())
        worker._handle.close()


def test_a_sign_of_life_begins_the_time_again() -> None:
    with parent_of_one() as (workers, messages):
        for _ in range(2):
            for _ in range(LOOKS - 1):
                workers._receive()
            messages.put("alive")
            messages.flush()
            workers._receive()
        for _ in range(LOOKS - 1):
            workers._receive()
        with pytest.raises(Unavailable, match="no progress in /tree for"):
            workers._receive()


def test_a_worker_that_waits_for_work_is_not_stalled() -> None:
    with parent_of_one() as (workers, _):
        workers._workers[0].is_waiting = True
        for _ in range(LOOKS + 1):
            workers._receive()


class Scripted:
    """An upload whose state at each look of its worker is known: `(steps, is_sending)`."""

    def __init__(self, states: list[tuple[int, bool]]) -> None:
        self._states = iter(states)
        self.is_sending = False

    @property
    def steps(self) -> int:
        steps, self.is_sending = next(self._states)
        return steps


def test_a_worker_gives_signs_of_life_while_it_reads_or_sends() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        work = _Work(cast(Any, None), cast(Any, None), theirs, False, 0.001)
        work._messages, work._lock, work._report = Writer(theirs.fileno()), threading.Lock(), TransferReport()
        told = []
        for before, state in (
            ((0, False), (1, False)),
            ((1, False), (1, True)),
            ((1, True), (1, False)),
        ):
            work._upload = cast(TreeUpload, Scripted([before, state]))
            with pytest.raises(StopIteration):
                work._beat()
            told.append(ours.recv(1000).count(b"alive") == 2)
    assert told == [True, True, False], "read, sends, neither"
