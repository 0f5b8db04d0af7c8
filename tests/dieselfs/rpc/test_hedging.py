"""When a second request is sent: not too early, not too often, and after the 95th percentile of its kind."""

from hypothesis import given
from hypothesis import strategies as st

from dieselfs.rpc.hedging import (
    HEDGE_BURST,
    HEDGE_CEILING_S,
    HEDGE_FLOOR_S,
    HEDGE_KINDS_MAX,
    HEDGE_KNOWN,
    HEDGE_LATEST,
    HEDGE_SHARE,
    Hedging,
    hedge_after_s,
    kind_of,
)

KIND = kind_of("get_ranges", 1000)
TIMES_S = st.floats(0, 100)


@given(st.none() | TIMES_S)
def test_the_wait_is_within_its_bounds(p95_s: float | None) -> None:
    assert HEDGE_FLOOR_S <= hedge_after_s(p95_s) <= HEDGE_CEILING_S
    if p95_s is not None and HEDGE_FLOOR_S <= p95_s <= HEDGE_CEILING_S:
        assert hedge_after_s(p95_s) == p95_s


@given(st.lists(st.booleans(), max_size=400))
def test_second_requests_are_a_small_share_of_the_first(calls: list[bool]) -> None:
    """Each call begins a request (True), or finds one slow; all may."""
    hedging, began = Hedging(), 0
    for is_new in calls:
        if is_new:
            began += 1
            hedging.after_s(KIND)
        else:
            hedging.may_send()
        assert hedging.sent <= HEDGE_BURST + began * HEDGE_SHARE


def test_overload_adds_no_more_than_the_share() -> None:
    hedging = Hedging()
    for _ in range(10_000):  # all of them are slow
        hedging.after_s(KIND)
        hedging.may_send()
    assert 10_000 * HEDGE_SHARE - 1 <= hedging.sent <= HEDGE_BURST + 10_000 * HEDGE_SHARE


@given(st.lists(TIMES_S, min_size=HEDGE_LATEST, max_size=HEDGE_LATEST))
def test_at_most_one_in_twenty_of_the_latest_took_longer(times_s: list[float]) -> None:
    hedging = Hedging()
    for took_s in [1000.0] * 200 + times_s:  # what is older than the latest does not count
        hedging.answered(KIND, took_s)
    after_s = hedging.after_s(KIND)
    longer = sum(took_s > after_s for took_s in times_s)
    assert longer <= len(times_s) * 0.05 or after_s == HEDGE_CEILING_S
    shorter = sum(took_s < after_s for took_s in times_s)
    assert shorter <= len(times_s) * 0.96 or after_s == HEDGE_FLOOR_S


def test_a_kind_with_few_requests_waits_as_long_as_any() -> None:
    hedging = Hedging()
    for _ in range(HEDGE_KNOWN - 1):
        hedging.answered(KIND, 0.1)
    assert hedging.after_s(KIND) == HEDGE_CEILING_S
    hedging.answered(KIND, 0.1)
    assert hedging.after_s(KIND) == 0.1
    assert hedging.after_s(kind_of("get_payload", 1000)) == HEDGE_CEILING_S


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_lengths_of_a_kind_differ_by_less_than_a_factor_of_four(one: int, other: int) -> None:
    if kind_of("m", one) == kind_of("m", other):
        assert max(one, other) < 4 * max(min(one, other), 1)
    assert kind_of("m", one) != kind_of("n", one)


def test_only_so_many_kinds_are_remembered() -> None:
    hedging = Hedging()
    for number in range(HEDGE_KINDS_MAX + 1):
        for _ in range(HEDGE_KNOWN):
            hedging.answered(number, 0.1)
    assert hedging.after_s(0) == HEDGE_CEILING_S and hedging.after_s(1) == 0.1


def test_what_was_won_is_counted() -> None:
    hedging = Hedging()
    hedging.answered(KIND, 0.1)
    hedging.answered(KIND, 0.1, is_second=True)
    assert (hedging.sent, hedging.won) == (0, 1)
