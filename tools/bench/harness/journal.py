"""The rounds of a benchmark so far, in a file, so that the same command continues after it was cut off.

A session is one start of the command. Its facts are kept beside the rounds, whose runs have its number. This module
reads and writes that file.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness.figures import Run, Trial, figures
from bench.harness.quiet import current_load
from bench.harness.report import read_trial, trial_fields

SAME = ("processors", "memory", "kernel", "file system", "Python", "data")
"""Facts of the machine and the data that must be the same in all sessions."""


class Journal:
    """A trial is found by its title and its sides."""

    def __init__(
        self,
        file: Path | None = None,
        machine: Mapping[str, str] | None = None,
        load: Callable[[], float] = current_load,
    ) -> None:
        """`file`: None to keep nothing; `machine`: the facts of this session; `load`: called before each round, to wait
        for a quiet machine or not.
        """
        self._file, self._load = file, load
        self.sessions: dict[str, Mapping[str, str]] = {}
        """Facts by the number of the session."""
        self._left = self._read(machine or {})
        self.session = max([time.time_ns() // 1_000_000, *(1 + int(number) for number in self.sessions)])
        """Its number: the milliseconds since 1970 at its start."""
        self.sessions[str(self.session)] = dict(machine or {})
        self._trials: list[dict[str, Any]] = []

    @property
    def rounds_left(self) -> int:
        """Rounds, of all trials, that an earlier session has left."""
        return sum(max((len(side["runs"]) for side in trial["sides"]), default=0) for trial in self._left)

    def begin_round(self) -> Mapping[str, float]:
        """The session and the load. Raises what the function does that reads the load."""
        return {"session": self.session, "round_load": self._load()}

    def begin(self, trial: Trial) -> tuple[dict[str, list[Run]], dict[str, str]]:
        """What earlier sessions have left of a trial: its runs by side, and the reasons of sides that failed."""
        names = {side.name for side in trial.sides}
        for place, left in enumerate(self._left):
            sides = {side["name"] for side in left["sides"]}
            if left["title"] == trial.title and {*sides, *left["left_out"]} == names:
                _, found, left_out = read_trial(left)
                self._trials.append(self._left.pop(place))
                return {figure.side.name: [*figure.runs] for figure in found}, dict(left_out)
        self._trials.append({})
        return {}, {}

    def note(self, trial: Trial, runs: Mapping[str, Sequence[Run]], left_out: Mapping[str, str]) -> None:
        """After each round of the trial that began last."""
        self._trials[-1] = trial_fields(trial, figures(trial, runs), left_out)
        if self._file is not None:
            new = self._file.with_name(f"{self._file.name}.new")
            trials = [*filter(None, self._trials), *self._left]
            new.write_text(json.dumps({"sessions": self.sessions, "trials": trials}), "utf-8")
            new.replace(self._file)

    def end(self) -> None:
        """All is measured: the next session begins with the first round."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _read(self, machine: Mapping[str, str]) -> list[dict[str, Any]]:
        """Nothing if the file is of another machine, of other data, or of source that was not committed."""
        if self._file is None or not self._file.exists():
            return []
        content = json.loads(self._file.read_text("utf-8"))
        facts = [*content["sessions"].values(), machine]
        if len({tuple(map(each.get, SAME)) for each in facts}) > 1 or any(map(is_dirty, facts)):
            return []
        self.sessions |= content["sessions"]
        trials: list[dict[str, Any]] = content["trials"]
        return trials


def is_dirty(facts: Mapping[str, str]) -> bool:
    """Whether a session ran source that was not committed."""
    return facts.get("commit", "").endswith("-dirty")
