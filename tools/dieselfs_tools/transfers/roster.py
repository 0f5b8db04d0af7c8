"""Which worker of a command gets which unit: a worker asks for one, and only a worker that has asked gets one. Pure.

A worker is starting, until it asks; free; busy, until it asks again; ending, once it is told to end; and done. Another
worker is due only while a unit waits and no worker is starting or free, so work of one unit after another has one.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

Unit = Sequence[Any]
"""What msgpack can send. It fits into the buffer of a socket, so giving it to a worker never waits."""


class State(Enum):
    STARTING, FREE, BUSY, ENDING, DONE = range(5)


class Roster:
    """The workers of a command, numbered from 0, and the units that none of them has."""

    def __init__(self, jobs: int, units: Iterable[Unit]) -> None:
        """`jobs`: workers at most. Units are taken one at a time, when none that was added is left."""
        self.states: list[State] = []
        self._jobs = jobs
        self._units = iter(units)
        self._added: list[Unit] = []  # the next one last

    def add(self, units: Sequence[Unit]) -> None:
        """More units, which come before all others."""
        self._added += reversed(units)

    def begin(self) -> None:
        """Another worker is started."""
        self.states.append(State.STARTING)

    def ask(self, worker: int) -> None:
        """A worker has done what it had, and wants a unit."""
        self.states[worker] = State.FREE

    def leave(self, worker: int) -> None:
        """A worker has done all."""
        self.states[worker] = State.DONE

    def gifts(self) -> Iterator[tuple[int, Unit]]:
        """Units for free workers, which are busy from then on."""
        for worker, state in enumerate(self.states):
            if state is State.FREE and self._has_unit():
                self.states[worker] = State.BUSY
                yield worker, self._added.pop()

    def is_short(self) -> bool:
        """Whether another worker is due. After `gifts`."""
        is_one_coming = State.STARTING in self.states or State.FREE in self.states
        return len(self.states) < self._jobs and not is_one_coming and self._has_unit()

    def ends(self) -> Iterator[int]:
        """Workers to tell that there is no other unit, once none is left and none can come."""
        if {State.STARTING, State.BUSY}.isdisjoint(self.states) and not self._has_unit():
            for worker, state in enumerate(self.states):
                if state is State.FREE:
                    self.states[worker] = State.ENDING
                    yield worker

    def is_over(self) -> bool:
        """Whether all workers are done, and no unit is left. After `ends`."""
        return all(state is State.DONE for state in self.states) and not self._has_unit()

    def _has_unit(self) -> bool:
        if not self._added and (unit := next(self._units, None)) is not None:
            self._added.append(unit)
        return bool(self._added)
