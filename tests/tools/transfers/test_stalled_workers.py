"""A command whose worker makes no progress ends with one line; one that is slow does not."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dieselfs.errors import Unavailable
from dieselfs_tools.transfers import workers as workers_module
from dieselfs_tools.transfers.messages import Writer
from dieselfs_tools.transfers.workers import LOOKS, Link, Worker, Workers

STALLED_S = 0.25
PROCESS_STALLED_S = 1.5
"""For real processes: until then, they have walked their few folders."""


def waits(_: Link) -> None:
    """As in a call to a file system that does not answer."""
    threading.Event().wait()


def is_stopped_while_it_writes(link: Link) -> None:
    os.write(link._orders.pipe, b"\x05")
    os.kill(os.getpid(), signal.SIGSTOP)


def is_killed(_: Link) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(last: Callable[[Link], object]) -> None:
    """Two workers; one of them does `last` in its second unit."""
    units: list[list[Any]] = [[number, number == 3] for number in range(9)]

    def work(link: Link) -> None:
        for _, is_last in link.units():
            if is_last:
                last(link)

    def place(unit: Any) -> bytes:
        return b"folder-%d" % unit[0]

    Workers("upload", 2, work, lambda _: None, place, PROCESS_STALLED_S).run(units)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (waits, "no progress in folder-3 for 1.5 s"),
        (is_stopped_while_it_writes, "no progress in folder-3 for 1.5 s"),
        (is_killed, r"a process of the upload has ended \(SIGKILL\); with --jobs 1"),
    ],
)
def test_a_worker_without_progress_is_killed_and_its_place_named(
    monkeypatch: pytest.MonkeyPatch, last: Callable[[Link], object], message: str
) -> None:
    processes = []
    fork = os.fork

    def noted_fork() -> int:
        processes.append(fork())
        return processes[-1]

    monkeypatch.setattr(os, "fork", noted_fork)
    monkeypatch.setattr(workers_module, "END_TIMEOUT_S", 0.1)
    with pytest.raises(Unavailable, match=message):
        run(last)
    assert processes and not any(Path(f"/proc/{process}").exists() for process in processes)


@contextmanager
def parent_of_one() -> Iterator[tuple[Workers, Writer]]:
    """A parent of one worker, and what that writes to."""
    workers = Workers("upload", 1, waits, lambda _: None, lambda _: b"/tree", stalled_s=STALLED_S)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = Worker(os.getpid(), ours, STALLED_S)
        workers.begin(worker)
        yield workers, Writer(theirs.fileno())
        worker._handle.close()


def test_a_sign_of_life_begins_the_time_again() -> None:
    with parent_of_one() as (workers, messages):
        for _ in range(2):
            for _ in range(LOOKS - 1):
                workers.receive()
            messages.put("alive")
            messages.flush()
            workers.receive()
        for _ in range(LOOKS - 1):
            workers.receive()
        with pytest.raises(Unavailable, match="no progress in /tree for"):
            workers.receive()


def test_a_worker_that_waits_for_work_is_not_stalled() -> None:
    with parent_of_one() as (workers, messages):
        for message in (["next", None], ["part", None]):  # what another thread of it tells changes nothing
            messages.put(*message)
            messages.flush()
            workers.receive()
        for _ in range(LOOKS + 1):
            workers.receive()


def test_a_worker_gives_signs_of_life_while_it_works_or_a_server_does() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link, told = Link(theirs, 0.001), []
        for looks in (
            ((0, False), (1, False)),
            ((1, False), (1, True)),
            ((1, True), (1, False)),
        ):
            states = iter(looks)
            with pytest.raises(StopIteration):
                link.beat(partial(next, states))
            told.append(ours.recv(1000).count(b"alive") == 2)
    assert told == [True, True, False], "works, is served, neither"
