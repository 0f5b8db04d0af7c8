from dataclasses import dataclass

import numpy as np
import pytest

from dieselfs.cluster.warmth import Warmth
from dieselfs_client.prefetch.pushed_chunks import PUSHED_AGAIN_MAX_S, PUSHED_AGAIN_S, PushedChunks

CHUNKS = 4
PAGE_BYTES = np.array([100, 200, 300, 400])


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pushed(clock: Clock) -> PushedChunks:
    return PushedChunks(CHUNKS, clock)


def test_a_chunk_that_was_never_pushed_is_due(pushed: PushedChunks) -> None:
    assert pushed.is_due(0)
    assert not pushed.was_just_pushed(0)
    assert not pushed.is_here(0)
    assert not pushed.push(0), "for the first time"
    assert pushed.is_here(0)
    assert not pushed.is_here(1)


def test_each_push_takes_twice_as_long_until_the_next(pushed: PushedChunks, clock: Clock) -> None:
    waited_s = []
    pushed.push(0)
    for _ in range(9):
        began_s = clock.now_s
        while not pushed.is_due(0):
            clock.now_s += PUSHED_AGAIN_S / 2
        waited_s.append(clock.now_s - began_s)
        assert pushed.push(0), "the kernel has taken it back"
    assert waited_s[:4] == [PUSHED_AGAIN_S * factor for factor in (1, 2, 4, 8)]
    assert waited_s[-2:] == [PUSHED_AGAIN_MAX_S, PUSHED_AGAIN_MAX_S]


def test_what_comes_anyway_is_pushed_again_after_a_moment(pushed: PushedChunks, clock: Clock) -> None:
    for _ in range(5):
        pushed.push(0)
        assert pushed.was_just_pushed(0)
        clock.now_s += PUSHED_AGAIN_S
        assert not pushed.was_just_pushed(0), "however often it was pushed"


def test_what_a_daemon_before_has_pushed_is_here_and_due(pushed: PushedChunks) -> None:
    pushed.restore(2)
    assert pushed.is_here(2)
    assert pushed.is_due(2), "its pages may be gone since"


def test_warmth_counts_pages_and_leaves_out_what_is_damaged(pushed: PushedChunks) -> None:
    assert pushed.warmth(PAGE_BYTES, 1000, ()) == Warmth(0, 1000)
    pushed.push(0)
    pushed.restore(1)
    assert pushed.warmth(PAGE_BYTES, 1000, ()) == Warmth(300, 1000)
    assert pushed.warmth(PAGE_BYTES, 1000, {3}) == Warmth(300, 600, 1)
    assert pushed.warmth(PAGE_BYTES, 650, {3}) == Warmth(300, 600, 1)
    assert pushed.warmth(PAGE_BYTES, 500, {3}).share == 1, "what would come does not fit"
