"""How far a rate falls and when it is back, from what readers write down."""

import numpy as np
import pytest

from bench.harness.figures import RunFailed
from bench.jobs.failover import AFTER_S, BEFORE_S, dip, rates_around, shares
from lab.reader import BIN_S, Moment

LOST_S = 100.0
BINS = round((BEFORE_S + AFTER_S) / BIN_S)
LOST = round(BEFORE_S / BIN_S)


def moments(stall_s: float = 0.0) -> list[Moment]:
    """A reader of 20 files a second; its first read after the loss takes so long."""
    found, late_s = [], 0.0
    for number in range(-LOST - 10, BINS):
        began_s = LOST_S + number * BIN_S + late_s
        late_s += stall_s if number == 0 else 0.0
        ended_s = LOST_S + (number + 1) * BIN_S + late_s
        found.append(Moment(began_s, ended_s, 2, ended_s - began_s))
    return found


def test_a_steady_rate_is_steady_in_every_bin() -> None:
    rates = rates_around(moments() + moments(), LOST_S)
    assert len(rates) == BINS
    assert rates == pytest.approx(np.full(BINS, 40.0))
    found = dip(rates)
    assert found.lowest == pytest.approx(1) and found.after == pytest.approx(1) and found.back_s == BIN_S


def test_a_long_read_is_a_dip_as_long_as_it_took() -> None:
    rates = rates_around(moments(stall_s=2.0), LOST_S)
    assert rates[LOST : LOST + 18].max() < 1 and rates[LOST + 22 :].min() == pytest.approx(20)
    found = dip(rates)
    assert found.lowest == pytest.approx(0, abs=0.01)
    assert 2.0 <= found.back_s <= 2.6  # a rate is that of a second
    assert found.after == pytest.approx((AFTER_S - 2) / AFTER_S, abs=0.01)


def test_a_rate_that_does_not_come_back_is_not_back() -> None:
    rates = np.concatenate([np.full(LOST, 50.0), np.full(BINS - LOST, 44.0)])
    assert dip(rates).back_s == pytest.approx(AFTER_S)
    assert shares(rates.tolist())[-1] == pytest.approx(0.88)


def test_nothing_that_was_read_is_no_rate() -> None:
    with pytest.raises(RunFailed):
        dip(np.zeros(BINS))
