"""The parts of `dlcmd bench` that need no mount; tests/tools/commands/test_bench.py has the others."""

from dataclasses import astuple
from itertools import count
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.settings import Settings
from dieselfs_tools.observe.timing import FEW, ROUNDS_S, Form, fetch_rate, rounds_in_time, speeds_of


@pytest.mark.processes
def test_chunks_are_fetched_until_the_time_is_over(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", cache=tmp_path / "cache")
    with Dataset(settings, "data", must_exist=False) as data:
        data.put("file", bytes(1_000_000))
        data.flush()
        assert fetch_rate(data.chunks) > 0
        assert fetch_rate(data.chunks, seconds=0.0) == 0


@pytest.mark.parametrize(
    ("round_s", "rounds", "done"),
    [(10.0, 3, 3), (50.0, 3, 3), (60.0, 3, 2), (61.0, 100, 2), (500.0, 3, 1), (0.0, 100, 100)],
)
def test_no_round_begins_after_two_minutes(round_s: float, rounds: int, done: int) -> None:
    """The round that passes the bound is the last one, and there is always one."""
    clock = count(1000.0 + round_s, round_s).__next__  # asked after each round
    assert [*rounds_in_time(rounds, 1000.0 + ROUNDS_S, clock)] == [*range(done)]


def test_the_beginning_of_an_epoch_is_no_cost_of_its_files() -> None:
    def times(form: Form) -> tuple[float, float]:
        return 0.2 + form.files * 50e-6 + form.size_bytes * 1e-9, 0.01 + form.files * 20e-6

    forms = FEW, Form("small", 10_000, 4 << 10), Form("large", 1_500, 128 << 10)
    speeds = speeds_of([(form, times(form)) for form in forms], 5e8)
    assert astuple(speeds.first) == pytest.approx((0.2, 50e-6, 1e-9))
    assert astuple(speeds.later) == pytest.approx((0.01, 20e-6, 0.0), abs=1e-12)


def test_paths_of_a_form_are_distinct() -> None:
    paths = Form("small", 2_500, 100).paths()
    assert len(set(paths)) == 2_500 and {path[:4] for path in paths} == {"0000", "0001", "0002"}
