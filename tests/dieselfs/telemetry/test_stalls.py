"""Times of a training, with a clock that the tests turn."""

import math
import os
from collections.abc import Iterator

import numpy as np
import pytest

from dieselfs.telemetry.stalls import (
    CAUSES,
    STEPS_KEPT,
    DaemonWork,
    Meter,
    Stalls,
    predicted_waiting_s,
    shared_out,
    shared_with_daemon,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds


def of(**seconds: float) -> dict[str, float]:
    return dict.fromkeys(CAUSES, 0.0) | seconds


def by_cause(spent: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> dict[str, float]:
    return dict(zip(CAUSES, spent.tolist(), strict=True))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_waiting_and_computing(clock: Clock) -> None:
    def loader() -> Iterator[int]:
        for batch in range(3):
            clock.pass_by(2.0)
            yield batch
        clock.pass_by(50.0)  # its end, which no step waits for

    stalls = Stalls(clock=clock)
    seen = []
    for batch in stalls.timed(loader()):
        seen.append(batch)
        clock.pass_by(6.0)
    assert seen == [0, 1, 2]
    assert stalls.summary() == {
        "steps": 3,
        "waiting_s": 6.0,
        "computing_s": 18.0,
        "waiting_share": 0.25,
        "waiting_by_cause_s": {},
    }
    assert stalls.steps.tolist() == [[2.0, 6.0]] * 3


def test_a_training_without_steps() -> None:
    assert Stalls(lambda: np.zeros(len(CAUSES))).summary()["waiting_share"] == 0.0
    assert Stalls().steps.shape == (0, 2)


def test_waiting_is_shared_out_as_the_work_of_the_readers() -> None:
    work = np.array([*of(server=100.0).values()])  # before this training
    stalls = Stalls(lambda: work.copy())
    work += [*of(server=3.0, verification=1.0, loading=4.0).values()]
    stalls.add(16.0, 1.0)
    assert stalls.summary()["waiting_by_cause_s"] == of(server=6.0, verification=2.0, loading=8.0)


def daemon_work(waited_s: float, **seconds: float) -> DaemonWork:
    return DaemonWork(waited_s, np.array([*of(**seconds).values()]))


def test_waiting_for_a_daemon_is_shared_out_as_its_work() -> None:
    work = np.zeros(len(CAUSES))
    told = [daemon_work(50.0, push=7.0, server=9.0), daemon_work(56.0, push=8.0, server=11.0)]
    stalls = Stalls(lambda: work.copy(), daemon=lambda: told.pop(0))
    work += [*of(reading=8.0, loading=2.0).values()]
    stalls.add(10.0, 1.0)
    assert stalls.summary()["waiting_by_cause_s"] == of(push=2.0, server=4.0, reading=2.0, loading=2.0)


@pytest.mark.parametrize(
    ("daemon", "found"),
    [
        (daemon_work(3.0), of(reading=8.0)),  # it did nothing
        (daemon_work(0.0, push=5.0), of(reading=8.0)),  # nobody waited
        (daemon_work(20.0, push=1.0, verification=3.0), of(push=2.0, verification=6.0)),  # others waited too
    ],
)
def test_no_more_is_shared_out_than_was_read(daemon: DaemonWork, found: dict[str, float]) -> None:
    assert by_cause(shared_with_daemon(np.array([*of(reading=8.0).values()]), daemon)) == found


def test_a_daemon_that_was_replaced_began_at_zero() -> None:
    now = daemon_work(5.0, push=1.0)
    assert now.since(daemon_work(50.0, push=0.5)) is now
    assert now.since(daemon_work(1.0, push=2.0)) is now


@pytest.mark.parametrize("told", [[None], [daemon_work(1.0, push=1.0), None]])
def test_a_daemon_that_cannot_be_asked(told: list[DaemonWork | None]) -> None:
    work, left = np.zeros(len(CAUSES)), [*told]
    stalls = Stalls(lambda: work.copy(), daemon=lambda: left.pop(0))
    work += [*of(reading=1.0).values()]
    stalls.add(1.0, 1.0)
    assert stalls.summary()["waiting_by_cause_s"] == of(reading=1.0)


def test_old_steps_are_only_summed() -> None:
    stalls = Stalls()
    for _ in range(STEPS_KEPT + 5):
        stalls.add(1.0, 1.0)
    assert len(stalls.steps) == STEPS_KEPT
    assert stalls.count == STEPS_KEPT + 5


def test_the_meter_leaves_out_what_another_cause_has(clock: Clock) -> None:
    meter = Meter(clock)
    with meter.timed("server", but=["verification"]):
        clock.pass_by(5.0)
        with meter.timed("verification"):
            clock.pass_by(2.0)
        clock.pass_by(1.0)
    assert by_cause(meter.spent()) == of(server=6.0, verification=2.0)


def test_the_meter_counts_what_fails(clock: Clock) -> None:
    meter = Meter(clock)
    with pytest.raises(ZeroDivisionError), meter.timed("peer"):
        clock.pass_by(1.0)
        raise ZeroDivisionError
    assert by_cause(meter.spent()) == of(peer=1.0)


def test_a_forked_child_begins_at_zero() -> None:
    meter = Meter()
    meter.add("peer", 1.0)
    child = os.fork()
    if not child:
        os._exit(int(meter.spent().sum()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("elapsed_s", "noted", "found"),
    [
        (4.0, of(), of(reading=4.0)),
        (4.0, of(server=1.0, verification=0.5), of(server=1.0, verification=0.5, reading=2.5)),
        (4.0, of(server=6.0, peer=2.0), of(server=3.0, peer=1.0)),  # by several threads
        (0.0, of(), of()),
    ],
)
def test_work_of_several_threads_fits_into_its_time(
    elapsed_s: float, noted: dict[str, float], found: dict[str, float]
) -> None:
    assert by_cause(shared_out(elapsed_s, np.array([*noted.values()]), "reading")) == found


def test_prediction() -> None:
    assert predicted_waiting_s(0.02, 0.1) == 0.0
    assert math.isclose(predicted_waiting_s(0.1, 0.02), 0.08)
