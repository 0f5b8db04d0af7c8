"""Runs that fail are made smaller; the simulation itself is replaced."""

import pytest

from tests.simulation import shrinking
from tests.simulation.runner import Outcome
from tests.simulation.scenario import scenario_of
from tests.simulation.shrinking import RUNS_MAX, shrink
from tests.simulation.world import Course

FAULTS = frozenset(range(3, 40, 3))


def outcome(course: Course, violations: tuple[str, ...]) -> Outcome:
    faults = FAULTS if course.faults is None else FAULTS & course.faults
    return Outcome(course, "digest", violations, tuple(sorted(faults)), 0, 0, 0.0, ())


@pytest.fixture
def needed(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The two steps without which a course finds nothing; it also needs fault 12."""
    first, *_, last = sorted(scenario_of(7).numbers)

    def simulate(course: Course) -> Outcome:
        steps = scenario_of(7).numbers if course.steps is None else course.steps
        faults = FAULTS if course.faults is None else course.faults
        if {first, last} <= steps and 12 in faults:
            return outcome(course, (f"step {len(steps)}: b'a' is absent",))
        return outcome(course, (f"step {len(steps)}: the run hangs",) if first in steps else ())

    monkeypatch.setattr(shrinking, "simulate", simulate)
    return first, last


def test_what_a_violation_does_not_need_is_left_out(needed: tuple[int, int]) -> None:
    whole = outcome(Course(7), ("step 5: b'b' is absent",))
    smaller = shrink(whole)
    assert smaller.course == Course(7, frozenset(needed), frozenset({12}))
    assert smaller.violations == ("step 2: b'a' is absent",)
    steps = ",".join(map(str, needed))
    assert smaller.course.command() == f"python -m tests.simulation run 7 --steps {steps} --faults 12"


def test_a_violation_that_does_not_come_again_stays_as_it_was(needed: tuple[int, int]) -> None:
    whole = outcome(Course(7), ("two snapshots",))
    assert shrink(whole) is whole


def test_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = 0

    def simulate(course: Course) -> Outcome:
        nonlocal runs
        runs += 1
        return outcome(course, ("lost",) if runs % 2 else ())

    monkeypatch.setattr(shrinking, "simulate", simulate)
    shrink(outcome(Course(7), ("lost",)))
    assert runs <= RUNS_MAX
