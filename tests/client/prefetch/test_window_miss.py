import random

import pytest

from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import PlanSpec
from dieselfs_client.prefetch.window_miss import READS_MIN, WindowMiss
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries

FILES = 3000
GROUP_CHUNKS = 20
GROUP_FILES = 400


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%04d" % n, 0o100644, 0, bytes(100)) for n in range(FILES)]
    return pack_entries(entries, chunk_bytes=2000)


@pytest.fixture
def plan(packed: PackedDataset) -> Plan:
    return Plan(packed.snapshot, PlanSpec(seed=5, group_chunks=GROUP_CHUNKS))


def test_files_in_the_order_of_the_plan_tell(plan: Plan) -> None:
    window_miss = WindowMiss(plan)
    nodes = plan.nodes(900, 900 + READS_MIN).tolist()
    found = [window_miss.noticed(node, ahead=800) for node in nodes]
    assert found == [None] * (READS_MIN - 1) + [900 + READS_MIN - 1]


def test_so_do_files_of_several_processes_that_are_about_where_the_others_are(plan: Plan) -> None:
    window_miss = WindowMiss(plan)
    nodes = plan.nodes(900, 940).tolist()
    mixed = [nodes[place] for start in range(10) for place in range(start, 40, 10)]
    positions = [window_miss.noticed(node, ahead=800) for node in mixed]
    assert any(position is not None for position in positions)


@pytest.mark.parametrize("seed", range(20))
def test_files_in_another_order_do_not(plan: Plan, seed: int) -> None:
    window_miss = WindowMiss(plan)
    nodes = plan.nodes().tolist()
    random.Random(seed).shuffle(nodes)
    assert not any(window_miss.noticed(node, ahead=800) for node in nodes)


def test_nor_do_files_that_were_handed_out_or_come_much_later(plan: Plan) -> None:
    window_miss = WindowMiss(plan)
    for first in (0, 2000):
        assert not any(
            window_miss.noticed(node, ahead=800) for node in plan.nodes(first, first + 100).tolist()
        )
    assert window_miss.noticed(int(plan.nodes(5, 6)[0]), ahead=len(plan)) is None


def test_it_begins_to_count_anew_when_the_reader_was_heard_of(plan: Plan) -> None:
    window_miss = WindowMiss(plan)
    nodes = plan.nodes(900, 900 + 2 * READS_MIN - 2).tolist()
    for node in nodes[: READS_MIN - 1]:
        assert window_miss.noticed(node, ahead=800) is None
    window_miss.reset()
    for node in nodes[READS_MIN - 1 :]:
        assert window_miss.noticed(node, ahead=800) is None
