"""A peer that fails is left alone, proves itself, and gets its share back little by little."""

import pytest

from dieselfs.cluster.failure_detector import (
    FIRST_SHARE,
    PEER_AVOIDED_MAX_S,
    PEER_RETURN_S,
    FailureDetector,
    is_within,
    share_after,
)
from dieselfs.limits import PEER_AVOIDED_S


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def suspicion(clock: Clock) -> FailureDetector:
    return FailureDetector(clock)


def test_a_peer_that_is_well_is_asked_for_everything(suspicion: FailureDetector) -> None:
    assert suspicion.share("a") == 1.0 and suspicion.is_requested("a", (1 << 64) - 1)
    suspicion.recovered("a")
    assert not suspicion.suspected() and not suspicion.due()


def test_one_that_failed_is_asked_for_nothing_until_it_has_proved_itself(
    suspicion: FailureDetector, clock: Clock
) -> None:
    suspicion.failed("a")
    assert not suspicion.is_requested("a", 0) and suspicion.is_requested("b", (1 << 64) - 1)
    assert suspicion.is_avoided("a") and suspicion.suspected() == {"a"} and not suspicion.due()
    clock.now_s += PEER_AVOIDED_S
    assert suspicion.due() == ["a"] and not suspicion.is_requested("a", 0)
    suspicion.recovered("a")
    assert not suspicion.due() and not suspicion.is_avoided("a") and suspicion.suspected() == {"a"}
    assert suspicion.is_requested("a", 0) and not suspicion.is_requested("a", (1 << 64) - 1)
    clock.now_s += PEER_RETURN_S
    assert suspicion.share("a") == 1.0 and not suspicion.suspected()


def test_one_that_keeps_failing_is_left_alone_for_longer_each_time(
    suspicion: FailureDetector, clock: Clock
) -> None:
    waits_s = []
    for _ in range(9):
        suspicion.failed("a")
        before_s = clock.now_s
        while not suspicion.due():
            clock.now_s += PEER_AVOIDED_S / 2
        waits_s.append(clock.now_s - before_s)
        suspicion.recovered("a")
    assert waits_s == [min(PEER_AVOIDED_S * 2**n, PEER_AVOIDED_MAX_S) for n in range(9)]
    clock.now_s += PEER_RETURN_S
    suspicion.failed("a")
    clock.now_s += PEER_AVOIDED_S
    assert suspicion.due() == ["a"]  # it had been well in between


def test_one_that_lied_is_left_alone_for_long(suspicion: FailureDetector, clock: Clock) -> None:
    suspicion.sent_corrupt("a")
    clock.now_s += PEER_AVOIDED_MAX_S - 1
    assert not suspicion.due()
    clock.now_s += 1
    assert suspicion.due() == ["a"]


def test_the_share_grows_and_never_takes_back_a_chunk() -> None:
    shares = [share_after(PEER_RETURN_S * tenth / 10) for tenth in range(12)]
    assert shares[0] == FIRST_SHARE and shares[-2:] == [1.0, 1.0]
    assert shares == sorted(shares)
    keys = [n * 0x9E3779B97F4A7C15 % (1 << 64) for n in range(10_000)]
    before: set[int] = set()
    for share in shares:
        asked = {key for key in keys if is_within(key, share)}
        assert before <= asked and abs(len(asked) / len(keys) - share) < 0.01
        before = asked
    assert len(before) == len(keys)
