"""Who goes next, of those who wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from dieselfs.peers import turns
from dieselfs.peers.turns import Turns

LONG_S = 60.0


class Queue:
    """Threads that wait for one turn, known to have come in the order of their names."""

    def __init__(self) -> None:
        self.turns = Turns(1)
        self.went: list[str] = []
        self.threads: list[Thread] = []
        assert self.turns.take(LONG_S)

    def come(self, name: str, is_again: bool = False) -> None:
        waiting = self.turns._agains if is_again else self.turns._firsts
        length = len(waiting)

        def go() -> None:
            assert self.turns.take(LONG_S, is_again)
            self.went.append(name)
            self.turns.give_back()

        self.threads.append(Thread(target=go))
        self.threads[-1].start()
        while len(waiting) == length:
            pass


@contextmanager
def queue() -> Iterator[Queue]:
    """At the end of the block the turn is given back, and all go."""
    queue = Queue()
    yield queue
    queue.turns.give_back()
    for thread in queue.threads:
        thread.join()


def test_who_comes_for_the_first_time_goes_before_who_comes_again() -> None:
    with queue() as waiting:
        for name in ("a", "b"):
            waiting.come(f"again {name}", is_again=True)
        for name in ("a", "b"):
            waiting.come(f"first {name}")
    assert waiting.went == ["first a", "first b", "again a", "again b"]


def test_who_comes_again_goes_after_so_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "FIRSTS_IN_A_ROW_MAX", 2)
    with queue() as waiting:
        waiting.come("again", is_again=True)
        for name in ("a", "b", "c"):
            waiting.come(name)
    assert waiting.went == ["a", "b", "again", "c"]


@pytest.mark.parametrize("is_again", [False, True])
def test_who_gives_up_takes_the_turn_of_nobody(is_again: bool) -> None:
    line = Turns(2)
    assert line.take(0) and line.take(0) and not line.take(0, is_again)
    line.give_back()
    assert line.take(0, is_again) and not line.take(0)
