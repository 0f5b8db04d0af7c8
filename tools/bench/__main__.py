"""`python -m bench`: runs the benchmarks, prints a table for each trial, and cleans up also when interrupted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import click

from bench.failover import failover
from bench.figures import Figure, Run, RunFailed, Trial, figures
from bench.listing import listing
from bench.machine import machine_facts
from bench.pool import pool
from bench.reading import reading
from bench.rebuild import rebuild
from bench.report import trial_fields, trial_lines
from bench.requests import requests
from bench.resilience import resilience
from bench.scale import FULL, QUICK, Scale
from bench.servers import servers
from bench.snapshot import snapshot
from bench.stores import stores
from bench.transfer import transfer
from bench.upload import upload
from dieselfs.errors import DieselfsError

BENCHMARKS: dict[str, Callable[[Path, Scale], Generator[Trial]]] = {
    "upload": upload,
    "snapshot": snapshot,
    "listing": listing,
    "reading": reading,
    "resilience": resilience,
    "rebuild": rebuild,
    "stores": stores,
    "requests": requests,
    "servers": servers,
    "transfer": transfer,
    "pool": pool,
    "failover": failover,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--quick", is_flag=True, help="Small and soon done, to try it out; the figures mean little.")
@click.option("--rounds", type=click.IntRange(min=1), help="How often each side is run.")
@click.option("--kills", type=click.IntRange(min=2), help="How many nodes `failover` loses.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(tempfile.gettempdir()),
    help="Where to work: on the file system to compare with. Takes 25 GB.  [the folder for temporary files]",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all runs to this file too.")
def main(
    names: tuple[str, ...],
    quick: bool,
    rounds: int | None,
    kills: int | None,
    folder: Path,
    json_file: Path | None,
) -> None:
    """Measure dieselfs on this machine, beside the local file system: all benchmarks, or those named."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    scale = QUICK if quick else FULL
    if rounds is not None:
        scale = replace(scale, rounds=rounds)
    if kills is not None:
        scale = replace(scale, kills=kills)
    facts = machine_facts(folder, sys.argv[1:])
    for name, fact in facts.items():
        print(f"{name + ':':14} {fact}")
    measured = []
    with workplace(folder) as place:
        for name in names or BENCHMARKS:
            (place / name).mkdir()
            with closing(BENCHMARKS[name](place / name, scale)) as trials:
                for trial in trials:
                    done, found = run_trial(trial)
                    print("", *trial_lines(done, found), sep="\n", flush=True)
                    measured.append(trial_fields(done, found))
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": facts, "trials": measured}, indent=1) + "\n")


@contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, removed with all that is in it."""
    folder = parent.resolve() / f"dieselfs-bench-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_trial(trial: Trial) -> tuple[Trial, list[Figure]]:
    """Run the sides in turn, as often as the trial says. A side that fails is left out, with the reason."""
    runs: dict[str, list[Run]] = {side.name: [] for side in trial.sides}
    left_out = dict(trial.left_out)
    for number in range(trial.rounds):
        for side in trial.order(number):
            if side.name not in left_out:
                try:
                    runs[side.name].append(side.run())
                except (RunFailed, DieselfsError, OSError, subprocess.SubprocessError) as error:
                    left_out[side.name] = f"it failed: {error}"
    done = replace(
        trial, sides=[side for side in trial.sides if side.name not in left_out], left_out=left_out
    )
    return done, figures(done, runs)


if __name__ == "__main__":
    main()
