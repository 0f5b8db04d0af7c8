"""Programs that read the mount in each view, and the local file system: ratios of their times, warm and cold.

Cold: a new mount and server, and the kernel's caches dropped on all sides. Warm: after the same program has read the
same files there. Each run is a process of its own; packages are imported before the clock starts.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from bench.harness.figures import Row, Run, Scale, Side, Trial
from bench.harness.forms import (
    VIEWS,
    Home,
    can_drop_caches,
    drop_caches,
    filesystem_type,
    mounted,
    mounted_views,
    running_home,
)
from bench.harness.readers import READ_TIMEOUT_S, ForkedProcess, read_together
from bench.harness.rounds import run_trial
from bench.mounts.program_kinds import PROGRAMS, Program
from lab.server import upload

UNITS, QUICK_UNITS = 1000, 200
COLD_ROUNDS_MAX, QUICK_COLD_ROUNDS = 3, 1
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
"""Of the packages: no network, no messages."""


def programs(folder: Path, scale: Scale) -> Iterator[Iterator[Row]]:
    """One table, a row for each program."""
    os.environ.update(_ENVIRONMENT)
    units = QUICK_UNITS if scale.is_quick else UNITS
    missing = {program.name: _missing(program) for program in PROGRAMS}
    source, items = folder / "source", {}
    for program in PROGRAMS:
        if missing[program.name] is None:
            (source / program.folder).mkdir(parents=True)
            items[program.name] = _write(program, source / program.folder, units)
    with running_home(folder / "home") as home:
        with home.dataset(must_exist=False) as dataset:
            upload(dataset, source)
        comparison = _Comparison(folder, home, units, scale, filesystem_type(folder))
        yield (
            comparison.row(program, items[program.name])
            if program.name in items
            else comparison.empty_row(f"{program.name}: {missing[program.name]}")
            for program in PROGRAMS
        )


def _missing(program: Program) -> str | None:
    """Why a program cannot run; its packages are imported now, and not by each of its processes."""
    for package in program.packages:
        try:
            import_module(package)
        except (ImportError, RuntimeError):
            return f"{package} is not installed"
    return None


def _write(program: Program, folder: Path, units: int) -> int:
    """In a process of its own, as packages start threads, which must not be when the readers are forked."""
    process = ForkedProcess(lambda pipe: pipe.send(program.write(folder, units)))
    with closing(process):
        return int(process.receive(READ_TIMEOUT_S))


@dataclass(frozen=True, slots=True)
class _Comparison:
    folder: Path
    home: Home
    units: int
    scale: Scale
    local: str

    def row(self, program: Program, items: int) -> Row:
        """The seconds on the local file system, and those in each view in units of them."""
        row = dict(self.empty_row(program.name))
        rounds = self.scale.rounds
        if can_drop_caches():
            cold_rounds = QUICK_COLD_ROUNDS if self.scale.is_quick else min(rounds, COLD_ROUNDS_MAX)
            row |= self._cells("cold", self._trial(partial(self._run_cold, program, items), cold_rounds))
        with mounted_views(self.home, self.folder) as views:
            places = {self.local: self.folder / "source", **views}

            def run(side: str) -> Run:
                return _run(program, places[side], self.units, items)

            for side in places:
                run(side)
            row |= self._cells("warm", self._trial(run, rounds))
        return row

    def empty_row(self, name: str) -> Row:
        heads = [f"{self.local}, s", *VIEWS]
        return {"program": name} | {f"{state}: {head}": "" for state in ("warm", "cold") for head in heads}

    def _trial(self, run: Callable[[str], Run], rounds: int) -> Trial:
        sides = [Side(side, partial(run, side), 1, "") for side in (self.local, *VIEWS)]
        return Trial("", sides, rounds, self.local)

    def _cells(self, state: str, trial: Trial) -> dict[str, object]:
        found, left_out = run_trial(trial, self.scale.journal)
        cells: dict[str, object] = {f"{state}: {name}": reason for name, reason in left_out.items()}
        for figure in found:
            if figure.side.name == self.local:
                cells[f"{state}: {self.local}, s"] = figure.duration_s, "{:.3f}"
            elif figure.ratio:
                cells[f"{state}: {figure.side.name}"] = 1 / figure.ratio, "{:.2f}"
        return cells

    def _run_cold(self, program: Program, items: int, side: str) -> Run:
        if side == self.local:
            drop_caches()
            return _run(program, self.folder / "source", self.units, items)
        self.home.stop_server()
        with mounted(self.home, self.folder / side, view=side):
            drop_caches()
            return _run(program, self.folder / side, self.units, items)


def _run(program: Program, place: Path, units: int, items: int) -> Run:
    return read_together([lambda: partial(program.read, place / program.folder, units)], items)
