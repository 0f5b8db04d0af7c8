"""Workers of a command: in all orders of their messages each unit is given once, and the command ends."""

from collections.abc import Sequence

import pytest

from dieselfs_tools.transfers.roster import Roster, State

Tree = tuple["Tree", ...]
"""A unit, as those that it adds when it is done."""

LEAF: Tree = ()
DEPTH_MAX = 60


class Model:
    """A command and its workers. Each step is the next message of one worker, chosen by `choices`, then by 0."""

    def __init__(self, jobs: int, units: Sequence[Tree], choices: Sequence[int]) -> None:
        self.roster = Roster(jobs, (((at,), tree) for at, tree in enumerate(units)))
        self.given: list[tuple[int, ...]] = []
        self.branches: list[int] = []
        self._at: dict[int, tuple[tuple[int, ...], Tree]] = {}
        self._settle()
        while not self.roster.is_over():
            able = [
                worker
                for worker, state in enumerate(self.roster.states)
                if state in (State.STARTING, State.BUSY, State.ENDING)
            ]
            assert able, "a stall: the command waits, and no worker will tell anything"
            at = len(self.branches)
            assert at < DEPTH_MAX
            self.branches.append(len(able))
            self._tell(able[choices[at] if at < len(choices) else 0])
            self._settle()

    def _tell(self, worker: int) -> None:
        if self.roster.states[worker] is State.ENDING:
            self.roster.leave(worker)
            return
        if worker in self._at:
            place, below = self._at.pop(worker)
            self.roster.add([((*place, at), tree) for at, tree in enumerate(below)])
        self.roster.ask(worker)

    def _settle(self) -> None:
        for worker, (place, below) in self.roster.gifts():
            assert worker not in self._at, "a unit for a worker that has not asked"
            self.given.append(place)
            self._at[worker] = place, below
        if self.roster.is_short():
            self.roster.begin()
        for worker in self.roster.ends():
            assert worker not in self._at


def all_orders(jobs: int, units: Sequence[Tree]) -> list[Model]:
    """The command in each order of messages."""
    found, choices = [], list[int]()
    while True:
        found.append(Model(jobs, units, choices))
        branches = found[-1].branches
        choices += [0] * (len(branches) - len(choices))
        while choices and choices[-1] + 1 == branches[len(choices) - 1]:
            choices.pop()
        if not choices:
            return found
        choices[-1] += 1


def places(units: Sequence[Tree], above: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    found = []
    for at, below in enumerate(units):
        found += [(*above, at), *places(below, (*above, at))]
    return found


@pytest.mark.parametrize("jobs", [1, 2, 3])
@pytest.mark.parametrize(
    "units",
    [
        [],
        [LEAF],
        [LEAF] * 4,
        [(LEAF, LEAF)],
        [((LEAF,), LEAF), LEAF],
    ],
)
def test_each_unit_is_given_once_and_the_command_ends_in_all_orders(jobs: int, units: Sequence[Tree]) -> None:
    for model in all_orders(jobs, units):
        assert sorted(model.given) == sorted(places(units))
        assert len(model.roster.states) <= min(jobs, len(model.given))


@pytest.mark.parametrize("units", [[LEAF], [(LEAF,)], [((LEAF,),)]])
def test_work_of_one_unit_after_another_has_one_worker(units: Sequence[Tree]) -> None:
    for model in all_orders(3, units):
        assert len(model.roster.states) == 1


def test_work_of_many_units_has_all_workers() -> None:
    assert any(len(model.roster.states) == 3 for model in all_orders(3, [LEAF] * 4))
