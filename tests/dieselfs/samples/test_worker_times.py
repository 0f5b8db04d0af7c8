"""Times of processes that read for one dataset: forked, spawned, and gone."""

import gc
import multiprocessing
import os
import pickle  # noqa: TID251  # as a DataLoader hands a dataset to spawned workers
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dieselfs.samples.worker_times import WorkerTimes
from dieselfs.telemetry.stalls import CAUSES, METER

READING, LOADING, PEER = (CAUSES.index(cause) for cause in ("reading", "loading", "peer"))


def compute(seconds: float) -> None:
    ends_s = time.perf_counter() + seconds
    while time.perf_counter() < ends_s:
        pass


def work(times: WorkerTimes) -> None:
    with times.timed("loading"):
        with times.timed("reading"):
            pass
        compute(0.01)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_add_to_the_times_of_their_parent(method: str) -> None:
    times = WorkerTimes()
    context: Any = multiprocessing.get_context(method)
    worker = context.Process(target=work, args=(times,))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    assert times.spent()[LOADING] >= 0.01
    assert times.spent()[READING] > 0


def test_what_is_metered_is_not_counted_twice() -> None:
    times = WorkerTimes()
    began_s = time.perf_counter()
    with times.timed("loading"), times.timed("reading"):
        METER.add("peer", 0.001)
        compute(0.002)
    assert np.isclose(times.spent()[PEER], 0.001)
    assert 0 < times.spent().sum() <= time.perf_counter() - began_s


def test_a_copy_outlives_its_process() -> None:
    program = "import pickle, sys; from dieselfs.samples.worker_times import WorkerTimes as W; "
    program += "sys.stdout.buffer.write(pickle.dumps(W()))"
    pickled = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, timeout=60
    ).stdout
    times = pickle.loads(pickled)
    work(times)
    assert times.spent()[LOADING] > 0


def test_another_file_with_the_number_of_the_memory_is_not_written() -> None:
    times = WorkerTimes()
    with open(os.devnull, "r+b") as file:
        attached, _ = times.__reduce__()
        other = attached(f"/proc/{os.getpid()}/fd/{file.fileno()}")
    work(other)
    assert times.spent().sum() == 0
    assert other.spent().sum() > 0


def open_times() -> int:
    descriptors = Path("/proc/self/fd")
    return sum("dieselfs-times" in os.readlink(each) for each in descriptors.iterdir() if each.is_symlink())


def test_nothing_stays_open() -> None:
    gc.collect()
    before = open_times()
    times = WorkerTimes()
    pickle.loads(pickle.dumps(times))
    assert open_times() > before
    del times
    gc.collect()
    assert open_times() == before
