"""The simulation of a job's memory, small: links carry no more than they can, and nothing is fetched twice."""

from dataclasses import replace

import numpy as np
import pytest

from bench.simulations.pool_simulation import Rates, inherited, owned, warmed
from bench.simulations.simulated_epoch import BATCH_FILES, group_shares, groups_together, traffic
from bench.simulations.simulated_recovery import Loss, recovery
from dieselfs.cluster.failure_detector import PEER_RETURN_S
from dieselfs.limits import CHUNK_TARGET_BYTES, PEER_PROBE_INTERVAL_S, PEER_SILENCE_S
from dieselfs_client.memory.warming import WARM_SHARE

MANY = 1e12


@pytest.mark.parametrize(
    ("rates", "bytes_per_s"),
    [
        (Rates(1e9, MANY, MANY), 4e9 * WARM_SHARE),
        (Rates(1e9, 5e8, MANY), 1e9),
        (Rates(1e9, MANY, 5e8), 5e8),
    ],
    ids=["nodes", "servers", "store"],
)
def test_warming_is_as_fast_as_the_narrowest_link_allows(rates: Rates, bytes_per_s: float) -> None:
    done = warmed(owned(4, 800), 2, rates)
    assert done["chunks"] == 800
    sent_bytes_per_s = done["sent"][0] * 1e9
    assert sent_bytes_per_s == pytest.approx(800 * CHUNK_TARGET_BYTES / done["all warm"][0])
    assert 0.6 * bytes_per_s < sent_bytes_per_s <= 1.01 * bytes_per_s
    assert 1 <= done["busiest server"][0] <= 2


def test_what_lost_nodes_owned_is_fetched_once_by_the_others() -> None:
    before, gains = owned(5, 1000), inherited(5, 1000, 2)
    assert sorted(np.concatenate(gains).tolist()) == sorted(np.concatenate(before[:2]).tolist())
    assert len(gains) == 3 and min(map(len, gains)) > 0


def test_each_file_of_a_group_has_one_reader() -> None:
    for shares in group_shares(4, 16, 1 << 19):
        assert np.bincount(shares.chunks).tolist().count(8) == 16  # eight files of each of its chunks
        counts = np.bincount(shares.readers, minlength=4)
        assert counts.sum() == 128 and counts.max() - counts.min() <= BATCH_FILES


def test_groups_that_are_fetched_together_make_few_and_large_requests() -> None:
    alone, together = traffic(16, 4096, 1, group_chunks=16), traffic(16, 4096, 8, group_chunks=16)
    assert alone["requests"][0] <= together["requests"][0] <= 15
    assert together["of chunks"][0] == pytest.approx(8 * alone["of chunks"][0], rel=0.1)
    assert together["bytes each"][0] > 4 * alone["bytes each"][0]
    assert together["requests a second"][0] < alone["requests a second"][0] / 4
    assert alone["busiest"][0] > together["busiest"][0] > 1
    assert (groups_together(8), groups_together(64), groups_together(1024)) == (1, 10, 163)


LOSS = Loss(8, 1, 32, True, 6.0, 18.0)


def test_a_node_that_is_cut_off_costs_each_reader_one_wait() -> None:
    found = recovery(LOSS)
    assert len(found.known_s) == len(found.stalled_s) == 7
    assert all(PEER_SILENCE_S <= known_s <= PEER_SILENCE_S + LOSS.group_s for known_s in found.known_s)
    assert max(found.stalled_s) <= PEER_SILENCE_S
    assert set(found.server_requests) <= {*range(int(PEER_SILENCE_S), int(PEER_SILENCE_S + LOSS.group_s) + 1)}


def test_a_node_that_is_killed_costs_no_reader_anything_and_comes_back_little_by_little() -> None:
    found = recovery(replace(LOSS, is_silent=False))
    assert max(found.stalled_s) == 0
    assert max(found.trusted_s) <= 1.0 + 2 * PEER_PROBE_INTERVAL_S  # all have heard of it after a second
    first, last = (found.own_loads[second] for second in (6, 6 + int(PEER_RETURN_S)))
    assert 0 < first < last / 2
    assert found.heir_loads[16] < found.heir_loads[4] / 2
