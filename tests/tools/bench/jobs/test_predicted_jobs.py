"""Jobs on a network: what is predicted of them on one machine, and once, small, a job itself."""

from dataclasses import replace

import pytest

from bench.jobs.predicted_jobs import AMPLE_BYTES, Case, running_lab, sharing
from dieselfs_tools.observe.prediction import NETWORK, READING, Cost, Epoch, Speeds
from tests.support.network import skipping

SPEEDS = Speeds(Cost(0.1, 60e-6, 2e-9), Cost(0.02, 15e-6, 0.2e-9), 400e6)


def test_nodes_of_one_machine_share_its_processors() -> None:
    stores = Epoch({READING: 1.0, NETWORK: 3.0}, 1e6, 0)
    assert sharing(stores, 4, 2).parts_s == {READING: 4.0, NETWORK: 3.0}
    assert sharing(stores, 2, 64).parts_s == stores.parts_s, "there are enough for all"
    reads = replace(stores, from_servers_bytes=0)
    assert sharing(reads, 4, 2).parts_s == {READING: 2.0, NETWORK: 3.0}, "only the readers work"


def test_a_title_names_what_is_limited() -> None:
    case = Case(2, True, AMPLE_BYTES, 6_000_000)
    assert case.title == "2 nodes, pooled, 256 MiB each, each node at 6 MB/s"
    assert Case(2, False, AMPLE_BYTES).title == "2 nodes, each alone, 256 MiB each, no limit of rates"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # as in test_pool.py
@pytest.mark.parametrize("is_pooled", [False, True])
def test_nodes_receive_as_many_bytes_as_predicted(is_pooled: bool) -> None:
    with skipping(), running_lab() as lab:
        (title, epoch, run), later = lab.round([Case(2, is_pooled, AMPLE_BYTES)], SPEEDS)
    assert title.endswith("first epoch") and later[0].endswith("later epoch")
    assert run.seen["server MB"] == pytest.approx(epoch.from_servers_bytes / 1e6, rel=0.25)
    assert run.seen["peer MB"] == pytest.approx(epoch.from_peers_bytes / 1e6, rel=0.25)
    assert run.duration_s > 0
