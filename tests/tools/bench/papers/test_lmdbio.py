"""Readers of a batch share it out; the table has a step for each optimisation, and each reads all files."""

from pathlib import Path

import pytest

from bench.harness.figures import QUICK
from bench.harness.rounds import run_trial
from bench.papers.lmdbio import PART_FILES, SOME_FILES, STEPS, lmdbio, parts_of


@pytest.mark.parametrize("readers", [1, 3, 16])
@pytest.mark.parametrize("files", [SOME_FILES, 5_000])
def test_readers_take_turns(readers: int, files: int) -> None:
    paths = [f"{number:05}" for number in range(files)]
    parts = [parts_of(paths, reader, readers) for reader in range(readers)]
    assert all(each and max(map(len, each)) <= PART_FILES for each in parts)
    in_turn = [reader[turn] for turn in range(len(parts[0])) for reader in parts if turn < len(reader)]
    assert [path for part in in_turn for path in part] == paths


def test_each_step_reads_all_files(tmp_path: Path) -> None:
    pytest.importorskip("lmdb", reason="the library is compared with py-lmdb")
    trials = lmdbio(tmp_path, QUICK)
    trial = next(trials)
    trials.close()
    batched = [side for side in trial.sides if side.amount > SOME_FILES]
    figures, left_out = run_trial(type(trial)(trial.title, batched, 1, trial.base))
    assert not left_out and len(figures) == len(batched) == len(STEPS) - 2 + 1
