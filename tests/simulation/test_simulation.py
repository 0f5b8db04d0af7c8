"""The simulator itself: it repeats its runs and finds known faults. And some of its seeds."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dieselfs.errors import Unavailable
from tests.simulation.holdings import Held, Holdings
from tests.simulation.oracle import Oracle

ROOT = Path(__file__).parents[2]
SEEDS_PER_TEST, SECONDS_PER_TEST = 25, 10
"""Many more run with `make simulate`."""


def simulated(
    *arguments: str, program: Sequence[str] = ("-m", "tests.simulation")
) -> subprocess.CompletedProcess[str]:
    """What the simulator prints, in a process of its own: it replaces threads and clocks."""
    environment = os.environ | {"PYTHONPATH": ":".join(map(str, (ROOT, *(ROOT / p for p in _ROOTS))))}
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


_ROOTS = ("server", "client", "tools")

_ON_A_FULL_DISK = """
import os, runpy
full = os.statvfs_result((4096, 4096, 1 << 22, 0, 0, 1 << 20, 1 << 20, 1 << 20, 0, 255))
os.statvfs = lambda path: full
heap = [bytes(size) for size in range(500) for _ in range(size % 7)]
runpy.run_module("tests.simulation", run_name="__main__")
"""


@pytest.mark.parametrize("first", [1, 10_001])
def test_seeds_hold(first: int) -> None:
    result = simulated("seeds", str(first), str(SEEDS_PER_TEST), "--time", str(SECONDS_PER_TEST))
    assert result.returncode == 0, result.stdout + result.stderr


def test_seeds_with_a_job_hold() -> None:
    result = simulated("seeds", "50001", "40", "--with-job", "--time", str(SECONDS_PER_TEST))
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_known_fault_of_a_job_is_found() -> None:
    result = simulated("mutants", "not-gathered", "--seeds", "30")
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_seed_has_the_same_trace_on_each_machine_and_after_other_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = simulated("run", "7").stdout.splitlines()[-1]
    after = simulated("seeds", "6", "2", "--digests").stdout.splitlines()[1]
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # else the process is replaced, and what it has changed is lost
    again = simulated("run", "7", program=("-c", _ON_A_FULL_DISK)).stdout.splitlines()[-1]
    assert alone == again
    assert after.split()[-1] in alone


def test_a_known_fault_is_found_and_the_command_that_repeats_it_printed() -> None:
    result = simulated("mutants", "applied-first", "--seeds", "30")
    command = result.stdout.splitlines()[-1]
    assert result.returncode == 0, result.stdout + result.stderr
    assert "python -m tests.simulation run" in command


class TestHoldings:
    def test_a_living_master_is_in_each_list_until_a_new_one_of_its_node_is(self) -> None:
        holdings = Holdings()
        holdings.joined("n1", Held(b"old", 0.0, 0.1), 10.0, True)
        with holdings.first_join(b"new", "n1"), holdings.first_join(b"other", "n2"):
            assert holdings.missing({b"old"}, 1.0, 1.1, 10.0) == []
            assert holdings.missing({b"new"}, 1.0, 1.1, 10.0) == []
            assert holdings.missing({b"other"}, 1.0, 1.1, 10.0) == ["n1"]
        assert holdings.missing({b"new"}, 1.0, 1.1, 10.0) == ["n1"], "its join was answered, and not noted"

    def test_a_first_join_without_a_reply_may_count_at_any_time(self) -> None:
        holdings = Holdings()
        holdings.joined("n1", Held(b"old", 0.0, 0.1), 10.0, True)
        with pytest.raises(Unavailable), holdings.first_join(b"new", "n1"):
            raise Unavailable("no answer in time")
        assert holdings.missing({b"new"}, 1.0, 1.1, 10.0) == []


class TestOracle:
    def test_a_write_without_a_reply_may_count_or_not(self) -> None:
        oracle = Oracle()
        oracle.begin(b"a", b"1")
        assert oracle.end(oracle.read(), {}) == []
        assert oracle.end(oracle.read(), {b"a": b"1"}) == []

    def test_what_was_seen_stays(self) -> None:
        oracle = Oracle()
        oracle.begin(b"a", b"1")
        oracle.end(oracle.read(), {b"a": b"1"})
        assert oracle.end(oracle.read(), {}) == ["b'a' is absent, it may be b'1'"]

    def test_what_was_acknowledged_is_there(self) -> None:
        oracle = Oracle()
        oracle.begin(b"a", b"1")
        oracle.acknowledge(b"a", b"1")
        assert oracle.end(oracle.read(), {}) == ["b'a' is absent, it may be b'1'"]

    def test_a_reader_may_see_what_is_written_while_it_reads(self) -> None:
        oracle = Oracle()
        reading = oracle.read()
        oracle.begin(b"a", b"1")
        oracle.acknowledge(b"a", b"1")
        assert oracle.end(reading, {b"a": b"1"}) == []

    def test_a_generation_has_one_snapshot(self) -> None:
        oracle = Oracle()
        assert oracle.snapshot(1, 5, b"x") is None
        assert oracle.snapshot(1, 5, b"x") is None
        assert oracle.snapshot(1, 5, b"y") == "generation 1 has two snapshots"
