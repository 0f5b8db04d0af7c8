"""Runs the sides of a trial in turn."""

import subprocess
from dataclasses import replace

from bench.harness.figures import Figure, Run, RunFailed, Trial, figures
from bench.harness.stopwatch import beside
from dieselfs.errors import DieselfsError

FAILURES = (RunFailed, DieselfsError, OSError, AssertionError, subprocess.SubprocessError)


def run_trial(trial: Trial) -> tuple[list[Figure], dict[str, str]]:
    """Run the sides in turn, `trial.rounds` times. A side that fails is left out, with the reason."""
    runs: dict[str, list[Run]] = {side.name: [] for side in trial.sides}
    left_out: dict[str, str] = {}
    for number in range(trial.rounds):
        for side in trial.order(number):
            if side.name in runs:
                try:
                    with beside() as machine:
                        run = side.run()
                    runs[side.name].append(replace(run, machine=machine))
                except FAILURES as error:
                    left_out[side.name] = str(error)
                    del runs[side.name]
    return figures(trial, runs), left_out
