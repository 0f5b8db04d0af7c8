"""Runs the sides of a trial in turn."""

import subprocess
from dataclasses import replace

from bench.harness.figures import Figure, KeptRounds, RunFailed, Trial, figures
from bench.harness.journal import Journal
from bench.harness.stopwatch import beside
from dieselfs.errors import DieselfsError

FAILURES = (RunFailed, DieselfsError, OSError, AssertionError, subprocess.SubprocessError)


def run_trial(trial: Trial, journal: KeptRounds | None = None) -> tuple[list[Figure], dict[str, str]]:
    """Run the sides in turn, `trial.rounds` times, without the rounds that the journal has. A side that fails is left
    out, with the reason. Raises NotQuiet.
    """
    journal = journal or Journal()
    runs, left_out = journal.begin(trial)
    first = max(map(len, runs.values()), default=trial.rounds if left_out else 0)
    runs = {side.name: runs.get(side.name, []) for side in trial.sides if side.name not in left_out}
    for number in range(first, trial.rounds):
        facts = journal.begin_round()
        for side in trial.order(number):
            if side.name in runs:
                try:
                    with beside() as machine:
                        run = side.run()
                    runs[side.name].append(replace(run, machine={**facts, **machine}))
                except FAILURES as error:
                    left_out[side.name] = str(error)
                    del runs[side.name]
        journal.note(trial, runs, left_out)
    return figures(trial, runs), left_out
