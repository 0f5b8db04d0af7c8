"""Shuffle policies: found by name, each with its own version in cursors; all keep the same promises."""

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.policies import POLICIES, policy_of
from dieselfs.shuffle.spec import DEFAULT_POLICY, PlanSpec
from tests.support.dataset import TreeEntry, pack_entries

SNAPSHOT = pack_entries(
    [TreeEntry(b"f/%d" % n, 0o100644, n, b"x" * 30) for n in range(50)], chunk_bytes=200
).snapshot


def test_the_default_is_there_and_its_version_stays() -> None:
    assert POLICIES[DEFAULT_POLICY].version == 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("group_chunks", [0, 1, 3])
def test_every_policy_has_each_file_once_and_is_a_function_of_its_spec(
    policy: str, seed: int, group_chunks: int
) -> None:
    spec = PlanSpec(seed, 3, group_chunks, policy=policy)
    nodes = Plan(SNAPSHOT, spec).nodes().tolist()
    assert sorted(nodes) == [node for node in range(len(SNAPSHOT)) if SNAPSHOT.stat(node).is_file]
    assert (
        nodes == Plan(SNAPSHOT, spec).nodes().tolist() != Plan(SNAPSHOT, spec).with_epoch(4).nodes().tolist()
    )
    cursor = Cursor.parse(str(Plan(SNAPSHOT, spec).cursor(7)))
    assert cursor.spec == spec
    order = policy_of(spec).order(Plan(SNAPSHOT, spec).layout, spec)
    groups = len(order.bounds) - 1
    places = list(range(int(order.bounds[1])))
    assert order.nodes(0, groups).tolist() == nodes
    assert order.nodes(0, 1).tolist() == nodes[: len(places)]
    assert [order.nodes_at(0, order.bounds[:1] + place).tolist()[0] for place in places] == nodes[
        : len(places)
    ]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidInput, match="policy is 'best': give one of chunkwise"):
        Plan(SNAPSHOT, PlanSpec(policy="best"))
