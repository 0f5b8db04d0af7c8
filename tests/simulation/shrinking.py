"""Makes a failing course smaller: fewer steps, fewer faults, the same kind of violation."""

import re
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.runner import Outcome, simulate
from tests.simulation.scenario import scenario_of

RUNS_MAX = 200


def shrink(outcome: Outcome) -> Outcome:
    """A smaller outcome with a violation of the same kind, after RUNS_MAX runs at most."""
    kinds, left = _kinds(outcome), RUNS_MAX

    def tried(steps: frozenset[int], faults: frozenset[int]) -> Outcome | None:
        nonlocal left
        left -= 1
        found = simulate(replace(outcome.course, steps=steps, faults=faults))
        return found if _kinds(found) & kinds else None

    steps = scenario_of(outcome.course.seed).numbers
    best = tried(steps, frozenset(outcome.faults))
    if best is None:
        return outcome
    is_smaller = True
    while is_smaller and left > 0:
        is_smaller = False
        for name in ("steps", "faults"):
            at: dict[str, frozenset[int]] = {"steps": steps, "faults": frozenset(best.faults)}
            size = len(at[name])
            part = max(size // 2, 1)
            while part and left > 0:
                for group in _groups(sorted(at[name]), part):
                    smaller = at | {name: at[name] - frozenset(group)}
                    if left <= 0 or not at[name]:
                        break
                    if (found := tried(**smaller)) is not None:
                        best, at = found, {"steps": smaller["steps"], "faults": frozenset(found.faults)}
                        is_smaller = True
                part = part // 2 if part > 1 else 0
            steps = at["steps"]
    return best


def _groups(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]


def _kinds(outcome: Outcome) -> set[str]:
    """The violations without their numbers and names."""
    return {re.sub(r"b'.*|\d+|step \d+:", "", violation)[:40] for violation in outcome.violations}


_Trial = Callable[[frozenset[int], frozenset[int]], Outcome | None]
