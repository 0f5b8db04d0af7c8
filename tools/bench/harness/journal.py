"""The rounds of a benchmark so far, in a file, so that the same command continues after it was cut off.

This module reads and writes that file.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness.figures import Run, Trial, figures
from bench.harness.quiet import current_load
from bench.harness.report import read_trial, trial_fields

_SAME = ("processors", "memory", "kernel", "file system", "Python", "commit", "command")
"""Facts of the machine and the software that must be the same to continue."""


class Journal:
    """Trials are found by their order, title and sides: a command has the same ones each time."""

    def __init__(
        self,
        file: Path | None = None,
        machine: Mapping[str, str] | None = None,
        load: Callable[[], float] = current_load,
    ) -> None:
        """`file`: None to keep nothing; `machine`: the facts of this run; `load`: called before each round, to wait for
        a quiet machine or not.
        """
        self._file, self._machine, self._load = file, dict(machine or {}), load
        self._left = self._read()
        self._trials: list[dict[str, Any]] = []

    @property
    def rounds_left(self) -> int:
        """Rounds, of all trials, that an earlier run has left."""
        return sum(max((len(side["runs"]) for side in trial["sides"]), default=0) for trial in self._left)

    def load(self) -> float:
        """Before each round. Raises what the function does."""
        return self._load()

    def begin(self, trial: Trial) -> tuple[dict[str, list[Run]], dict[str, str]]:
        """What an earlier run has left of the next trial: its runs by side, and the reasons of sides that failed."""
        number = len(self._trials)
        if number < len(self._left) and self._left[number]["title"] == trial.title:
            _, found, left_out = read_trial(self._left[number])
            runs = {figure.side.name: [*figure.runs] for figure in found}
            if {*runs, *left_out} == {side.name for side in trial.sides}:
                self._trials.append(self._left[number])
                return runs, dict(left_out)
        self._trials.append({})
        return {}, {}

    def note(self, trial: Trial, runs: Mapping[str, Sequence[Run]], left_out: Mapping[str, str]) -> None:
        """After each round of the trial that began last."""
        self._trials[-1] = trial_fields(trial, figures(trial, runs), left_out)
        if self._file is not None:
            new = self._file.with_name(f"{self._file.name}.new")
            new.write_text(json.dumps({"machine": self._machine, "trials": self._trials}), "utf-8")
            new.replace(self._file)

    def end(self) -> None:
        """All is measured: the next run begins at the first trial."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _read(self) -> list[dict[str, Any]]:
        """Nothing if the file is of another command, or of source that was not committed."""
        if self._file is None or not self._file.exists():
            return []
        content = json.loads(self._file.read_text("utf-8"))
        then, now = (
            {name: facts.get(name) for name in _SAME} for facts in (content["machine"], self._machine)
        )
        trials: list[dict[str, Any]] = content["trials"]
        return trials if then == now and not str(now["commit"]).endswith("-dirty") else []
