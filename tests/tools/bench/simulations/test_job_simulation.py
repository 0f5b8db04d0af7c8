"""The simulation of a job, small: the nodes agree in time, and the servers are asked no more than was promised."""

import pytest

from bench.simulations.job_simulation import STEADY_S, agreements, balance
from dieselfs.limits import JOB_INTERVAL_S_MIN, JOB_LEASE_S_MIN
from dieselfs_client.cluster.membership import JITTER


@pytest.mark.parametrize("nodes", [3, 24])
def test_nodes_agree_in_time_and_ask_seldom(nodes: int) -> None:
    rows = agreements(nodes)
    calls_per_s = nodes / JOB_INTERVAL_S_MIN / (1 - JITTER) + 1
    assert max(row["calls per s"][0] for row in rows) <= calls_per_s
    lists_mb, took_s = ({row["what"]: row[head][0] for row in rows} for head in ("lists", "until all know"))
    assert lists_mb["steady"] == 0 and took_s["steady"] >= STEADY_S
    assert took_s["a node dies"] <= JOB_LEASE_S_MIN + 2 * JOB_INTERVAL_S_MIN
    assert took_s["it comes back"] <= 2 * JOB_INTERVAL_S_MIN


def test_a_lost_node_moves_its_chunks_and_no_others() -> None:
    found = balance(16, 20_000)
    fullest, emptiest, fullest_then = (found[head][0] for head in ("fullest", "emptiest", "fullest then"))
    assert found["needlessly"] == 0
    assert 0.85 < emptiest <= 1 <= fullest < 1.15
    assert found["moved by a loss"] == round(fullest * 20_000 / 16)
    assert fullest_then < 1.15 * 16 / 15
