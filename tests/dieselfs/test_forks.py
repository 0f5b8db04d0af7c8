"""What a forked child does before anything else: everything that lives is told, and nothing that is gone."""

import gc
import os
from threading import Event, Thread

from dieselfs.forks import SingleFlight, renew_after_fork

TIMEOUT_S = 60.0


class Noted:
    def __init__(self, notes: list[str], name: str) -> None:
        self._notes = notes
        self._name = name
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._notes.append(self._name)


def test_a_child_begins_with_what_lives() -> None:
    notes: list[str] = []
    kept = Noted(notes, "kept")
    Noted(notes, "gone")
    gc.collect()
    child = os.fork()
    if not child:
        os._exit(0 if notes == ["kept"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert kept and notes == []


def test_one_thread_fetches_and_others_wait() -> None:
    """For each chunk; a child of a process in the middle of it waits for nobody."""
    flights, order = SingleFlight(TIMEOUT_S), list[str]()
    begun, may_end = Event(), Event()

    def first() -> None:
        with flights.of(1):
            assert flights.is_taken(1) and not flights.is_taken(2)
            begun.set()
            assert may_end.wait(TIMEOUT_S)
            order.append("first")

    def second() -> None:
        with flights.of(1):
            order.append("second")

    threads = [Thread(target=first), Thread(target=second)]
    threads[0].start()
    assert begun.wait(TIMEOUT_S)
    threads[1].start()
    with flights.of(2):
        order.append("another")
    child = os.fork()
    if not child:
        with flights.of(1):
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    may_end.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert order == ["another", "first", "second"]


def test_nobody_waits_for_longer_than_allowed() -> None:
    flights = SingleFlight(0.0)
    with flights.of(1), flights.of(1):
        pass
