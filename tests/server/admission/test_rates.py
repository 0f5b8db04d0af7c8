"""Token buckets of users and jobs: who waits how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs_server.admission import rates
from dieselfs_server.admission.rates import BURST_S, MEMBERSHIP_S, Rates, TokenBucket

RATE = {"bytes_per_s": 1000, "requests_per_s": 10, "job_bytes_per_s": 100}


def test_the_first_second_is_free_and_then_each_waits_longer() -> None:
    found = Rates()
    waits = [found.bytes_wait_s("ada", None, RATE, 500, 0.0) for _ in range(5)]
    assert waits == [0.0, 0.0, 0.5, 1.0, 1.5]
    assert found.bytes_wait_s("ada", None, RATE, 500, 1.5) == pytest.approx(0.5)
    assert found.bytes_wait_s("ada", None, RATE, 500, 100.0) == 0.0
    assert found.bytes_wait_s("ada", None, RATE, 1000, 100.0) == pytest.approx(
        0.5
    )  # idle time saves one second


def test_users_do_not_wait_for_each_other_and_requests_not_for_bytes() -> None:
    found = Rates()
    assert found.bytes_wait_s("ada", None, RATE, 10_000, 0.0) == 9.0
    assert found.bytes_wait_s("bob", None, RATE, 1000, 0.0) == 0.0
    assert [found.request_wait_s("ada", None, RATE, 0.0) for _ in range(12)][9:] == pytest.approx(
        [0.0, 0.1, 0.2]
    )
    assert found.request_wait_s("eve", None, {"bytes_per_s": 1}, 0.0) == 0.0


def test_a_job_has_a_bucket_of_its_own_within_that_of_its_user() -> None:
    found = Rates()
    found.join("ada", "node-1", "pets", "train", 0.0)
    assert found.job_of("ada", "node-1", "pets", 1.0) == "train"
    for other in (("bob", "node-1", "pets"), ("ada", "node-2", "pets"), ("ada", "node-1", "ants")):
        assert found.job_of(*other, 1.0) is None
    assert found.job_of("ada", "node-1", "pets", MEMBERSHIP_S) is None
    assert found.bytes_wait_s("ada", "train", RATE, 200, 0.0) == 1.0
    assert found.bytes_wait_s("ada", "other", RATE, 100, 0.0) == 0.0
    assert found.bytes_wait_s("ada", None, RATE, 700, 0.0) == 0.0
    assert found.bytes_wait_s("ada", None, RATE, 500, 0.0) == 0.5  # all three count to the user


def test_a_changed_rate_counts_at_once() -> None:
    bucket = TokenBucket(10, 0.0, 0.0)
    assert bucket.take(100, 10, 0.0) == 10.0
    assert bucket.take(0, 100, 0.0) == 1.0


def test_buckets_that_are_full_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "BUCKETS_MAX", 2)
    found = Rates()
    assert found.request_wait_s("idle", None, RATE, 0.0) == 0.0
    for _ in range(20):
        owed_s = found.request_wait_s("busy", None, RATE, 0.0)
    assert found.request_wait_s("new", None, RATE, 0.2) == 0.0
    assert found.request_wait_s("busy", None, RATE, 0.2) == pytest.approx(owed_s + 0.1 - 0.2)


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 3)), min_size=1, max_size=50))
def test_who_waits_as_told_never_gets_more_than_the_rate_and_a_burst(steps: list[tuple[int, float]]) -> None:
    found, now_s, taken = Rates(), 0.0, 0
    for amount, pause_s in steps:
        now_s += pause_s + found.bytes_wait_s("ada", None, RATE, amount, now_s + pause_s)
        taken += amount
        assert taken <= 1000 * (now_s + BURST_S) + 1e-6
