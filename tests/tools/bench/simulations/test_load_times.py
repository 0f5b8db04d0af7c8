"""What a training takes when misses take time, worked out by hand."""

import pytest

from bench.simulations.load_times import COMPUTING_MS, LoadTimes

SLOW_MS, FAST_MS = 4 * COMPUTING_MS, COMPUTING_MS / 2


def test_a_step_takes_the_slower_of_loading_and_computing() -> None:
    times = LoadTimes([[32, 0], [16, 0]], 64, [SLOW_MS, FAST_MS])
    miss_ms = (SLOW_MS + FAST_MS) / 16
    first_s, last_s = (32 * miss_ms + COMPUTING_MS) / 1e3, (SLOW_MS + COMPUTING_MS) / 1e3
    assert times.epochs_s() == pytest.approx([first_s, last_s])
    assert times.throughput() == pytest.approx(64 / last_s)


def test_loads_are_those_of_the_last_epoch() -> None:
    times = LoadTimes([[32, 32], [16, 16]], 64, [SLOW_MS, FAST_MS])
    assert times.load_ms() == ((SLOW_MS + FAST_MS) / 2, (SLOW_MS - FAST_MS) / 2)
    assert times.hit_ratio(1) == 0.5


def test_an_epoch_of_hits_only() -> None:
    assert LoadTimes([[8], [0]], 8, [FAST_MS]).epochs_s()[-1] == COMPUTING_MS / 1e3


def test_when_an_accuracy_is_reached() -> None:
    times = LoadTimes([[64], [32], [32]], 64, [SLOW_MS])
    first_s, second_s, _ = times.epochs_s()
    assert times.time_to([0.5, 0.9, 0.8], 0.9) == first_s + second_s
    assert times.time_to([0.5, 0.9, 0.8], 0.95) is None
