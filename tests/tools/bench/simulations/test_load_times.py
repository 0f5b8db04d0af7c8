"""What a training takes when misses take time, worked out by hand."""

import pytest

from bench.simulations.load_times import COMPUTING_MS, MISS_MS, LoadTimes

ALL_MISSED, HALF_MISSED = [False] * 64, [False, True] * 32


def test_a_step_takes_the_slower_of_loading_and_computing() -> None:
    times = LoadTimes.of_hits([ALL_MISSED, [True] * 64, ALL_MISSED[:32] + [True] * 32], 32)
    slow_s, fast_s = 32 * MISS_MS / 1e3, COMPUTING_MS / 1e3
    assert slow_s > fast_s
    assert times.epochs_s() == pytest.approx([2 * slow_s, 2 * fast_s, slow_s + fast_s])
    assert times.throughput(1) == pytest.approx(128 / (3 * fast_s + slow_s))


def test_loads_vary_within_an_epoch() -> None:
    even = LoadTimes.of_hits([ALL_MISSED, HALF_MISSED, HALF_MISSED], 16)
    assert even.load_ms(1) == (8 * MISS_MS, 0) and even.hit_ratio(1) == 0.5
    uneven = LoadTimes.of_hits([sorted(HALF_MISSED)], 32)
    assert uneven.load_ms(0) == (16 * MISS_MS, 16 * MISS_MS)


def test_the_last_batch_may_be_shorter() -> None:
    assert LoadTimes.of_hits([ALL_MISSED[:20]], 16).misses == [[16, 4]]


def test_when_an_accuracy_is_reached() -> None:
    times = LoadTimes.of_hits([ALL_MISSED, HALF_MISSED, HALF_MISSED], 64)
    first_s, second_s, _ = times.epochs_s()
    assert times.time_to([0.5, 0.9, 0.8], 0.9) == first_s + second_s
    assert times.time_to([0.5, 0.9, 0.8], 0.95) is None
