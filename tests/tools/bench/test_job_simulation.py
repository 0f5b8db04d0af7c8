"""The simulation of a job, small: the nodes agree in time, and the servers are asked no more than was promised."""

import pytest

from bench.job_simulation import STEADY_S, agreements, balance
from dieselfs.limits import JOB_INTERVAL_S_MIN, JOB_LEASE_S_MIN
from dieselfs_client.cluster.membership import JITTER


@pytest.mark.parametrize("nodes", [3, 24])
def test_nodes_agree_in_time_and_ask_seldom(nodes: int) -> None:
    found = {agreement.what: agreement for agreement in agreements(nodes)}
    calls_per_s = nodes / JOB_INTERVAL_S_MIN / (1 - JITTER) + 1
    assert max(agreement.calls_per_s for agreement in found.values()) <= calls_per_s
    assert found["steady"].told_mb == 0 and found["steady"].took_s >= STEADY_S
    assert found["a node dies"].took_s <= JOB_LEASE_S_MIN + 2 * JOB_INTERVAL_S_MIN
    assert found["it comes back"].took_s <= 2 * JOB_INTERVAL_S_MIN


def test_a_lost_node_moves_its_chunks_and_no_others() -> None:
    found = balance(16, 20_000)
    assert found.moved_needlessly == 0
    assert 0.85 < found.emptiest <= 1 <= found.fullest < 1.15
    assert found.moved == round(found.fullest * 20_000 / 16)
    assert found.fullest_heir < 1.15 * 16 / 15
