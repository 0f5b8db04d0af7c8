"""When a mount or a server is given up because its processes die."""

import pytest

from dieselfs.process.restart_policy import (
    DEATHS_BEFORE_READY_MAX,
    FAULTS_MAX,
    KILL_PAUSE_MAX_S,
    KILLS_MAX,
    PAUSE_S,
    WINDOW_S,
    RestartPolicy,
)


def test_daemons_that_never_serve_are_given_up() -> None:
    patience = RestartPolicy()
    for number in range(DEATHS_BEFORE_READY_MAX):
        assert patience.note_death(number * WINDOW_S, was_ready=False, was_killed=False) is None
        assert not patience.next_start_s, "the mount command must report it soon"
    reason = patience.note_death(1000 * WINDOW_S, was_ready=False, was_killed=False)
    assert reason == f"{DEATHS_BEFORE_READY_MAX + 1} daemons in a row died before they could serve"


def test_one_that_served_in_between_counts() -> None:
    patience = RestartPolicy()
    for number in range(10 * DEATHS_BEFORE_READY_MAX):
        was_ready = number % DEATHS_BEFORE_READY_MAX == 0
        assert patience.note_death(number * WINDOW_S, was_ready, was_killed=False) is None


def test_daemons_that_are_killed_before_they_serve_are_replaced_after_a_pause() -> None:
    patience, now_s, pauses_s = RestartPolicy(), 1000.0, []
    for _ in range(10 * KILLS_MAX):
        assert patience.note_death(now_s, was_ready=False, was_killed=True) is None
        pauses_s.append(patience.next_start_s - now_s)
        now_s = patience.next_start_s + 0.1
    assert pauses_s[:3] == pytest.approx([PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S])
    assert max(pauses_s) == pytest.approx(KILL_PAUSE_MAX_S)
    assert patience.note_death(now_s, was_ready=True, was_killed=True) is None
    assert patience.next_start_s <= now_s, "one that has served is replaced at once"
    patience.note_death(now_s, was_ready=False, was_killed=True)
    assert patience.next_start_s - now_s == pytest.approx(PAUSE_S)


def test_kills_do_not_hide_daemons_that_never_serve() -> None:
    patience = RestartPolicy()
    reasons = [
        patience.note_death(number * WINDOW_S, was_ready=False, was_killed=number % 2 == 0)
        for number in range(2 * DEATHS_BEFORE_READY_MAX + 2)
    ]
    assert not any(reasons[:-1]) and reasons[-1] is not None


def test_crashes_are_given_up_when_they_come_close_together() -> None:
    patience = RestartPolicy()
    for number in range(FAULTS_MAX):
        assert patience.note_death(number, was_ready=True, was_killed=False) is None
    assert "11 daemons crashed within 10 s" in str(patience.note_death(10, True, False))


def test_crashes_far_apart_are_borne_for_ever() -> None:
    patience = RestartPolicy()
    for number in range(100):
        now_s = number * WINDOW_S / (FAULTS_MAX - 1)
        assert patience.note_death(now_s, was_ready=True, was_killed=False) is None


def test_being_killed_ten_times_a_second_is_borne() -> None:
    patience = RestartPolicy()
    for number in range(6000):
        assert patience.note_death(number / 10, was_ready=True, was_killed=True) is None


def test_being_killed_without_end_is_not() -> None:
    patience = RestartPolicy()
    reasons = [patience.note_death(number / 1000, True, True) for number in range(KILLS_MAX + 1)]
    assert reasons[-2] is None
    assert "were killed within 2 s" in str(reasons[-1])


def test_workers_that_cannot_start_are_replaced_ever_later() -> None:
    policy = RestartPolicy("workers", faults_max=100, fault_pause_max_s=5.0)
    pauses_s = []
    for _ in range(DEATHS_BEFORE_READY_MAX):
        assert policy.note_death(1000.0, was_ready=False, was_killed=False) is None
        pauses_s.append(policy.next_start_s - 1000.0)
    assert pauses_s[:3] == pytest.approx([PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S])
    assert max(pauses_s) == pytest.approx(5.0)
    assert "11 workers in a row" in str(policy.note_death(1000.0, was_ready=False, was_killed=False))
